"""A stage: a bridge, workers and a desk that puts jobs, each a process, in a realm of their own."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast, final

import trio

import iris
from benchmarks.bridge.children import Child, bridge_child, open_realm

_ROOT: Final = Path(__file__).resolve().parents[2]


class Record(NamedTuple):
    """Records of the workers, by the number of the job."""

    begun: Mapping[int, list[float]]
    """Times at which each job began, in seconds since 1970."""
    done: Mapping[int, list[float]]
    oldest: float
    """Seconds that a job was on the bridge's disk when it was begun, at most."""


@final
class Stage:
    """Processes of a run.

    Args:
        directory: of the realm.
        workers: how many.
        bridge: options of the bridge.
        options: of each worker, see ``benchmarks.queue.worker``.
    """

    def __init__(self, directory: Path, workers: int, bridge: Sequence[str] = (), **options: object) -> None:
        self.directory: Final = directory
        self.bridge: Final = bridge_child(directory, *bridge)
        self._records = [directory / f"record{number}" for number in range(workers)]
        self.workers: Final = [self._worker(number, options) for number in range(workers)]

    def _worker(self, number: int, options: Mapping[str, object]) -> Child:
        command = [sys.executable, "-m", "benchmarks.queue.worker", "--record", str(self._records[number])]
        for name, value in options.items():
            chosen = cast("list[object]", value)[number] if isinstance(value, list) else value
            command += [f"--{name}", str(chosen)]
        log = self.directory / f"worker{number}.txt"
        return Child(command, ready="ready", log=log, environment={"PYTHONPATH": str(_ROOT)})

    def end(self) -> None:
        """Kill everything."""
        for child in (*self.workers, self.bridge):
            child.end()

    def record_of(self, number: int) -> Record:
        """Return what one worker has written down."""
        begun: dict[int, list[float]] = {}
        done: dict[int, list[float]] = {}
        oldest = 0.0
        path = self._records[number]
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, job, at, *age = line.split()
            (begun if kind == "B" else done).setdefault(int(job), []).append(float(at))
            oldest = max([oldest, *map(float, age)])
        return Record(begun, done, oldest)

    def record(self) -> Record:
        """Return what all have written down."""
        begun: dict[int, list[float]] = {}
        done: dict[int, list[float]] = {}
        oldest = 0.0
        for number in range(len(self.workers)):
            own = self.record_of(number)
            oldest = max(oldest, own.oldest)
            for job, times in own.begun.items():
                begun.setdefault(job, []).extend(times)
            for job, times in own.done.items():
                done.setdefault(job, []).extend(times)
        return Record(begun, done, oldest)


@contextlib.contextmanager
def open_stage(workers: int, *, bridge: Sequence[str] = (), **options: object) -> Iterator[Stage]:
    """Start a bridge and workers; kill them at the end of the block."""
    with open_realm() as directory:
        stage = Stage(directory, workers, bridge, **options)
        try:
            stage.bridge.start()
            for worker in stage.workers:
                worker.launch()
            for worker in stage.workers:
                worker.wait_ready()
            yield stage
        finally:
            stage.end()


@contextlib.asynccontextmanager
async def open_desk(queue: str = "jobs") -> AsyncIterator[tuple[iris.Node, iris.WorkQueue]]:
    """Open a node that puts jobs."""
    async with iris.open_node("workers") as node, node.queue(queue) as jobs:
        await node.wait_for("bridge", timeout=60)
        yield node, jobs


async def put_all(
    jobs: iris.WorkQueue,
    numbers: Iterable[int],
    *,
    keys: int = 0,
    at_a_time: int = 256,
    kind: str = "plain",
    **options: Any,
) -> dict[int, float]:
    """Put jobs with these numbers; return when each was, in seconds since 1970, once all are on the bridge's disk."""
    left = iter(numbers)
    put: dict[int, float] = {}

    async def some() -> None:
        for number in left:
            key = f"k{number % keys}" if keys else None
            put[number] = time.time()
            await jobs.put(f"{number} {kind}".encode(), key=key, timeout=120.0, **options)

    async with trio.open_nursery() as nursery:
        for _ in range(at_a_time):
            nursery.start_soon(some)
    return put


async def status(node: iris.Node, queue: str = "jobs", *, timeout: float = 60.0) -> dict[str, Any]:
    """Return the status of a queue, from a bridge that may be starting."""
    found: dict[str, Any] = await node.request(
        "bridge", {"group": f"queue/{queue}"}, operation="queue", timeout=timeout, idempotent=True, wait=60.0
    )
    return found


async def wait_done(node: iris.Node, count: int, queue: str = "jobs", *, timeout: float = 600.0) -> dict[str, Any]:
    """Wait until so many jobs of a queue have ended, in whatever way."""
    found: dict[str, Any] = {}
    with trio.move_on_after(timeout):
        while True:
            found = await status(node, queue)
            if found["done"] + found["dead"] + found["expired"] >= count:
                return found
            await trio.sleep(0.2)
    raise RuntimeError(f"{count} jobs have not ended in {timeout:g} s: {found}")


def repeats(times: Mapping[int, list[float]]) -> int:
    """Return how many jobs more there were than different ones."""
    return sum(Counter({job: len(each) - 1 for job, each in times.items()}).values())
