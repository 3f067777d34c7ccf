"""Airport: starts the processes of the demo, leads them through its stages, and collects their reports."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

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
from iris.demo.processes import PeakMemory, Process, Processes, describe_status, open_processes
from iris.demo.tower import MEMBERS
from iris.kernel.errors import IrisError
from iris.kernel.tasks import open_background

_SILENCE: Final = 120.0
"""Seconds without a report after which a process has failed; on a busy machine Spark takes 40 to start."""

_NOTHING_TO_READ: Final = 5.0
"""Seconds longer that Spark may be silent: it has nothing to say while the publisher is silent, who is to be named."""

_AT_MOST: Final = 900.0
"""Seconds after which the demo gives up whatever is still moving."""

_LONGEST_PATH: Final = 24
"""Sockets live in the demo's directory, and their paths are limited to some 108 bytes."""


async def run_airport(rows: int, stages: Stages) -> Outcome:
    """Run the demo with the first ``rows`` flights.

    All its processes use a realm of their own, in a directory that is removed at the end; none of them is left then,
    also after an error or when it is cancelled.

    Raises:
        ProcessFailed: a process ended or fell silent; it says which.
        IrisError: it took more than a quarter of an hour.
    """
    start = time.monotonic()
    with trio.move_on_after(_AT_MOST):
        async with (
            _open_directory() as directory,
            open_processes(directory / "work", _environment(directory)) as processes,
        ):
            return await _Airport(rows, stages, processes, directory / "work").run(start)
    raise IrisError(f"the demo was not over after {_AT_MOST:g} s")


@contextlib.asynccontextmanager
async def _open_directory() -> AsyncGenerator[Path]:
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_PATH:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes a private one in it
    directory = Path(tempfile.mkdtemp(prefix="iris-demo-", dir=parent))
    try:
        for name in ("work", "run"):
            (directory / name).mkdir(mode=0o700)
        yield directory
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, directory, ignore_errors=True))


def _environment(directory: Path) -> dict[str, str]:
    """Return the environment of the processes: nothing of theirs touches this user's realm, or stays behind."""
    own = {
        "IRIS_HOME": str(directory / "home"),
        # Not where they run: Python would take the folder "iris" that nodes make in it for the package.
        "XDG_RUNTIME_DIR": str(directory / "run"),
        "TMPDIR": str(directory / "work"),
    }
    return {name: text for name, text in os.environ.items() if name != "IRIS_CREDENTIAL"} | own


@final
class _Airport:
    """One run of the demo."""

    def __init__(self, rows: int, stages: Stages, processes: Processes, directory: Path) -> None:
        self._rows = rows
        self._stages = stages
        self._processes = processes
        self._directory = directory
        self._memory = PeakMemory()

    async def run(self, start: float) -> Outcome:
        """Do all the stages and return what they found out."""
        async with open_background() as nursery:
            nursery.start_soon(self._memory.watch, self._processes)
            spark = await self._start("Spark", "iris.demo.spark", str(self._directory))
            pandas, hours, changes, size = await self._read()
            members, tower, publisher = await self._gather()
            reading = trio.Event()
            nursery.start_soon(self._begin_to_read, spark, reading)
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

    async def _start(self, name: str, module: str, *arguments: str) -> Process:
        return await self._processes.start(name, [module, *arguments], reports=True)

    async def _read(self) -> tuple[dict[str, CarrierFigures], int, int, int]:
        """Read the table and have pandas count; return that, and how much the stages will have to do."""

        def read() -> tuple[dict[str, CarrierFigures], int, int, int]:
            flights = read_flights(self._rows)
            figures = count_by_carrier(flights)
            return figures, len(departure_hours(flights)), len(gate_changes(flights)), len(flights_table(self._rows))

        with self._stages.stage("Read the table", total=self._rows, unit="flights"):
            return await trio.to_thread.run_sync(read)

    async def _gather(self) -> tuple[dict[str, list[Process]], Process, Process]:
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
            tower = await self._start("the tower", "iris.demo.tower", str(self._rows))
            publisher = await self._start("the publisher", "iris.demo.publisher", str(self._rows))
            await tower.order("gather")
            await tower.result("find every cluster", _SILENCE, stage.reach)
            await publisher.wait_news("ready", "find the bridge", _SILENCE)
        return members, tower, publisher

    @property
    def _bridge(self) -> list[str]:
        return ["iris", "bridge", "--topic", TOPICS, "--data", str(self._directory / "log")]

    async def _ask(self, tower: Process, victim: Process, hours: int) -> tuple[dict[str, Any], str]:
        """Have the tower ask for the weather, and kill a member when a third is done."""
        with self._stages.stage("Ask for the weather (request)", total=hours, unit="hours") as stage:
            await tower.order("ask")
            await tower.wait_news("kill", "ask for the weather", _SILENCE, stage.reach)
            await victim.kill()
            await tower.order("killed")
            asked = await tower.result("ask for the weather", _SILENCE, stage.reach)
        return asked, describe_status(victim.status)

    async def _change_gates(self, tower: Process, changes: int) -> dict[str, Any]:
        with self._stages.stage("Change gates (broadcast, survey)", total=changes, unit="changes") as stage:
            await tower.order("change-gates")
            return await tower.result("broadcast the gate changes", _SILENCE, stage.reach)

    async def _fill_archive(self, tower: Process, size: int) -> dict[str, Any]:
        with self._stages.stage("Archive the table (tunnel)", total=size, unit="MB") as stage:
            await tower.order("fill-archive")
            return await tower.result("send the table to the archive", _SILENCE, stage.reach)

    async def _begin_to_read(self, spark: Process, reading: trio.Event) -> None:
        """Have Spark read the bridge's log; it takes its time to start, in which the other stages go on."""
        await spark.wait_news("ready", "start", _SILENCE)
        await spark.order("start")
        await spark.wait_news("reading", "begin to read", _SILENCE)
        reading.set()

    async def _publish(self, publisher: Process, spark: Process) -> tuple[dict[str, Any], Mapping[str, CarrierFigures]]:
        """Have every flight published while Spark reads."""
        figures: dict[str, CarrierFigures] = {}

        async def read() -> None:
            result = await spark.result("read what the bridge has", _SILENCE + _NOTHING_TO_READ, reading.reach)
            spark.may_end = True
            figures.update(figures_from_report(result["carriers"]))

        with self._stages.stage("Count by carrier (Spark)", total=self._rows, unit="flights") as reading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                with self._stages.stage("Publish the flights", total=self._rows, unit="flights") as stage:
                    await publisher.order("publish")
                    published = await publisher.result("publish the flights", _SILENCE, stage.reach)
                await spark.order("finish")
        return published, figures


def _member(cluster: str) -> list[str]:
    return ["iris", "run", f"iris.demo.{cluster}:{cluster}"]
