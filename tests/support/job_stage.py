"""A stage: a bridge, workers and a desk that puts jobs, each a process, in a realm of their own."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import trio

import iris
from tests.support.processes import Child, bridge_child, open_realm


class Record(NamedTuple):
    """How often each job was begun and done by the workers, by its number."""

    begun: Counter[int]
    done: Counter[int]


@final
class Stage:
    """Processes of a run.

    Args:
        directory: of the realm.
        workers: how many.
        bridge: options of the bridge.
        options: of each worker, see ``tests.support.programs.job_worker``.
    """

    def __init__(self, directory: Path, workers: int, bridge: Sequence[str] = (), **options: object) -> None:
        self.directory: Final = directory
        self.bridge: Final = bridge_child(directory, *bridge)
        self._records = [directory / f"record{number}" for number in range(workers)]
        self.workers: Final = [self._worker(number, options) for number in range(workers)]

    def _worker(self, number: int, options: Mapping[str, object]) -> Child:
        command = [sys.executable, "-m", "tests.support.programs.job_worker", "--record", str(self._records[number])]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        log = self.directory / f"worker{number}.txt"
        return Child(command, ready="ready", log=log)

    def end(self) -> None:
        """Kill everything."""
        for child in (*self.workers, self.bridge):
            child.end()

    def record(self) -> Record:
        """Return what all workers have written down."""
        found = Record(Counter(), Counter())
        for path in self._records:
            for line in path.read_text().splitlines() if path.exists() else ():
                kind, job = line.split()
                (found.begun if kind == "B" else found.done)[int(job)] += 1
        return found


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
    async with iris.open_node("workers") as node, node.bridge().queue(queue) as jobs:
        await node.wait_for("bridge", timeout=60)
        yield node, jobs


async def put_all(jobs: iris.WorkQueue, numbers: Iterable[int], *, keys: int) -> None:
    """Put jobs with these numbers; return once all are on the bridge's disk."""
    left = iter(numbers)

    async def some() -> None:
        for number in left:
            await jobs.put(b"%d" % number, key=f"k{number % keys}", timeout=120.0)

    async with trio.open_nursery() as nursery:
        for _ in range(256):
            nursery.start_soon(some)


async def status(node: iris.Node, queue: str = "jobs", *, timeout: float = 60.0) -> dict[str, Any]:
    """Return the status of a queue, from a bridge that may be starting."""
    found: dict[str, Any] = await node.request(
        "bridge",
        {"group": f"queue/{queue}"},
        operation="queue",
        timeout=timeout,
        wait=60.0,
        options=iris.RequestOptions(idempotent=True),
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
