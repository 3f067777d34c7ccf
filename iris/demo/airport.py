"""Airport: starts the processes of the demo, leads them through its stages, and collects their reports."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

import iris
from iris.demo.checks import Outcome, figures_from_report
from iris.demo.data import (
    TOPICS,
    CarrierFigures,
    count_by_carrier,
    departure_hours,
    flights_table,
    gate_changes,
    read_flights,
)
from iris.demo.display import Stages
from iris.demo.kafka import DemoTopic
from iris.demo.page import DemoPage
from iris.demo.processes import PeakMemory, Process, Processes, ProcessFailed, describe_status, open_processes
from iris.demo.tower import MEMBERS, first_third
from iris.kernel.tasks import open_background

_SILENCE: Final = 120.0
"""Seconds without progress after which a process has failed; on a busy machine Spark takes 40 to start."""

_NOTHING_TO_READ: Final = 5.0
"""Seconds longer that Spark may be silent: it has nothing to say while the publisher is silent, who is to be named."""

_LOOK: Final = 0.1
"""Seconds between two questions for the progress of a process: often enough for the eye."""

_LAST_WORDS: Final = 1.0
"""Seconds in which a process that does not answer turns out to have ended."""

_AT_MOST: Final = 900.0
"""Seconds after which the demo gives up whatever is still moving."""

_LONGEST_PATH: Final = 5
"""Longest path that the demo's directory may be in, in characters: it adds 19, and XDG_RUNTIME_DIR may have 26."""


async def run_airport(
    rows: int, stages: Stages, topic: DemoTopic | None = None, page: DemoPage | None = None
) -> Outcome:
    """Run the demo with the first ``rows`` flights, with the bridge's events in a topic of Kafka or its own log.

    All its processes use a realm of their own, in a directory that is removed at the end; none of them is left then,
    also after an error or when it is cancelled.

    Raises:
        ProcessFailed: a process ended or fell silent; it says which.
        IrisError: it took more than a quarter of an hour.
    """
    start = time.monotonic()
    with trio.move_on_after(_AT_MOST):
        async with _open_directory() as directory:
            with _own_environment(directory):
                async with (
                    open_processes(directory / "work") as processes,
                    iris.open_node("airport") as node,
                    contextlib.nullcontext() if page is None else page.watching(node),
                ):
                    return await _Airport(rows, stages, processes, node, directory / "work", topic, page).run(start)
    raise iris.IrisError(f"the demo was not over after {_AT_MOST:g} s")


@contextlib.asynccontextmanager
async def _open_directory() -> AsyncGenerator[Path]:
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_PATH:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes a private one in it
    directory = Path(tempfile.mkdtemp(prefix="iris-demo-", dir=parent))
    try:
        for name in ("work", "r"):
            (directory / name).mkdir(mode=0o700)
        yield directory
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, directory, ignore_errors=True))


@contextlib.contextmanager
def _own_environment(directory: Path) -> Generator[None]:
    """Let this process and those that it starts touch nothing of this user's realm, and leave nothing behind."""
    before = dict(os.environ)
    for name in ("IRIS_CREDENTIAL", "IRIS_SEEDS"):  # of the user's realm
        os.environ.pop(name, None)
    os.environ |= {
        "IRIS_HOME": str(directory / "home"),
        # Not where they run: Python would take the folder "iris" that nodes make in it for the package.
        "XDG_RUNTIME_DIR": str(directory / "r"),
        "TMPDIR": str(directory / "work"),
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _nobody_looks(done: int) -> None:
    """Take note of how far a process is, where there is nothing to show."""


@final
class Worker:
    """A process that does stages when it is asked to: the only member of its cluster."""

    def __init__(self, node: iris.Node, cluster: str, process: Process, patience: float = _SILENCE) -> None:
        self._node = node
        self._cluster = cluster
        self._process = process
        self._patience = patience

    async def wait(self, what: str) -> None:
        """Wait until it is there; the arguments and errors are those of ``do``."""
        try:
            await self._node.wait_for(self._cluster, timeout=self._patience)
        except iris.RequestTimeout:
            raise self._silence(what) from None

    async def do(self, operation: str | None, what: str, reach: Callable[[int], None] = _nobody_looks) -> Any:
        """Have it do a stage, and return what comes of it.

        Args:
            operation: the stage.
            what: it should do, for messages; such as "publish the flights".
            reach: called with how much is done, again and again.

        Raises:
            ProcessFailed: it failed, or was silent for too long.
        """
        async with open_background() as nursery:
            nursery.start_soon(self._follow, what, reach)
            try:
                return await self._node.request(self._cluster, operation=operation, timeout=_AT_MOST)
            except iris.IrisError as error:
                with trio.move_on_after(_LAST_WORDS):
                    await self._process.wait()
                    await trio.sleep_forever()  # that it has ended is said elsewhere
                raise self._process.failure(f"did not {what}: {error}") from None

    async def _follow(self, what: str, reach: Callable[[int], None]) -> None:
        before, changed = 0, trio.current_time()
        while trio.current_time() < changed + self._patience:
            with trio.move_on_at(changed + self._patience), contextlib.suppress(iris.IrisError):
                done: int = await self._node.request(self._cluster, operation="progress", timeout=self._patience)
                if done != before:
                    before, changed = done, trio.current_time()
                    reach(done)
            await trio.sleep(_LOOK)
        raise self._silence(what)

    def _silence(self, what: str) -> ProcessFailed:
        return self._process.failure(f"did not {what}: nothing was heard of it for {self._patience:g} s")


@final
class _Airport:
    """One run of the demo."""

    def __init__(
        self,
        rows: int,
        stages: Stages,
        processes: Processes,
        node: iris.Node,
        directory: Path,
        topic: DemoTopic | None = None,
        page: DemoPage | None = None,
    ) -> None:
        self._rows = rows
        self._topic = topic
        self._page = page
        self._stages = stages
        self._processes = processes
        self._node = node
        self._directory = directory
        self._memory = PeakMemory()

    async def run(self, start: float) -> Outcome:
        """Do all the stages and return what they found out."""
        async with open_background() as nursery:
            nursery.start_soon(self._memory.watch, self._processes)
            patience = _SILENCE + _NOTHING_TO_READ
            topic = () if self._topic is None else (self._topic.bootstrap, self._topic.name)
            spark = await self._start("Spark", "spark", str(self._directory), *topic, patience=patience)
            pandas, hours, changes, size = await self._read()
            members, tower, publisher = await self._gather()
            reading = trio.Event()
            nursery.start_soon(self._wait_reading, spark, reading)
            asked, killed = await self._ask(tower, members["weather"][1], hours)
            changed = await self._change_gates(tower, changes)
            archived = await self._fill_archive(tower, size)
            with self._stages.stage("Start Spark"):
                await reading.wait()
            published, figures = await self._publish(publisher, spark)
        return Outcome(
            rows=self._rows,
            pandas=pandas,
            spark=figures,
            asked=asked,
            killed=killed,
            changed=changed,
            boards=MEMBERS["boards"],
            archived=archived,
            published=published,
            seconds=dict(self._stages.seconds),
            total_seconds=time.monotonic() - start,
            peak_memory=self._memory.peak,
        )

    async def _start(self, name: str, cluster: str, *arguments: str, patience: float = _SILENCE) -> Worker:
        process = await self._processes.start(name, [f"iris.demo.{cluster}", *arguments])
        return Worker(self._node, cluster, process, patience)

    async def _read(self) -> tuple[dict[str, CarrierFigures], int, int, int]:
        """Read the table and have pandas count; return that, and how much the stages will have to do."""

        def read() -> tuple[dict[str, CarrierFigures], int, int, int]:
            flights = read_flights(self._rows)
            figures = count_by_carrier(flights)
            return figures, len(departure_hours(flights)), len(gate_changes(flights)), len(flights_table(self._rows))

        with self._stages.stage("Read the table", total=self._rows, unit="flights"):
            return await trio.to_thread.run_sync(read)

    async def _gather(self) -> tuple[dict[str, list[Process]], Worker, Worker]:
        """Start every node and wait until all see each other."""
        members: dict[str, list[Process]] = {}
        with self._stages.stage("Start the nodes", total=sum(MEMBERS.values()), unit="members") as stage:
            for cluster, number in MEMBERS.items():
                members[cluster] = [
                    await self._processes.start(
                        f"member {turn} of {cluster}", self._bridge if cluster == "bridge" else _member(cluster)
                    )
                    for turn in range(1, number + 1)
                ]
            tower = await self._start("the tower", "tower", str(self._rows))
            publisher = await self._start("the publisher", "publisher", str(self._rows))
            await tower.wait("start")
            await tower.do("gather", "find every cluster", stage.reach)
            await publisher.wait("find the bridge")
        return members, tower, publisher

    @property
    def _bridge(self) -> list[str]:
        events = ("--data", str(self._directory / "log")) if self._topic is None else self._topic.options
        return ["iris", "bridge", "--topic", TOPICS, *events]

    async def _ask(self, tower: Worker, victim: Process, hours: int) -> tuple[dict[str, Any], str]:
        """Have the tower ask for the weather, and kill a member when a third is done."""
        third = trio.Event()

        async def kill() -> None:
            await third.wait()
            if self._page is not None:
                await self._page.look()  # a browser may not have looked yet at what it cannot see afterwards
            await victim.kill()
            if self._page is not None:
                self._page.note_killed(victim.session)
            await tower.do("killed", "take note of a death")

        with self._stages.stage("Ask for the weather (request)", total=hours, unit="hours") as stage:

            def reach(done: int) -> None:
                stage.reach(done)
                if done >= first_third(hours):
                    third.set()

            async with open_background() as nursery:
                nursery.start_soon(kill)
                asked = await tower.do("ask", "ask for the weather", reach)
        return asked, describe_status(victim.status)

    async def _change_gates(self, tower: Worker, changes: int) -> dict[str, Any]:
        with self._stages.stage("Change gates (broadcast, survey)", total=changes, unit="changes") as stage:
            changed: dict[str, Any] = await tower.do("change_gates", "broadcast the gate changes", stage.reach)
        return changed

    async def _fill_archive(self, tower: Worker, size: int) -> dict[str, Any]:
        with self._stages.stage("Archive the table (tunnel)", total=size, unit="MB") as stage:
            archived: dict[str, Any] = await tower.do("fill_archive", "send the table to the archive", stage.reach)
        return archived

    async def _wait_reading(self, spark: Worker, reading: trio.Event) -> None:
        """Wait until Spark reads the bridge's log; it takes its time to start, in which the other stages go on."""
        await spark.wait("begin to read")
        reading.set()

    async def _publish(self, publisher: Worker, spark: Worker) -> tuple[dict[str, Any], Mapping[str, CarrierFigures]]:
        """Have every flight published while Spark reads."""
        figures: dict[str, CarrierFigures] = {}

        async def read() -> None:
            figures.update(figures_from_report(await spark.do("count", "read what the bridge has", reading.reach)))

        with self._stages.stage("Count by carrier (Spark)", total=self._rows, unit="flights") as reading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                with self._stages.stage("Publish the flights", total=self._rows, unit="flights") as stage:
                    published = await publisher.do(None, "publish the flights", stage.reach)
                await spark.do("finish", "end its count")
        return published, figures


def _member(cluster: str) -> list[str]:
    return ["iris", "run", f"iris.demo.{cluster}:{cluster}"]
