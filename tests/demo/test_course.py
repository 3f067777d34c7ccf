"""The course of the demo: who is asked for what and when, with processes that only pretend to be some."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

import iris
from iris.demo import airport, processes
from iris.demo.airport import _Airport, run_airport
from iris.demo.checks import Outcome, check_outcome
from iris.demo.display import open_stages
from iris.demo.kafka import DemoTopic
from iris.demo.processes import Processes, ProcessFailed
from iris.demo.tower import MEMBERS
from tests.support.outcomes import right_outcome
from tests.support.stages import open_stage

ROWS: Final = 5
RIGHT: Final = right_outcome()
HERE: Final = "HERE"
"""Marker in the place of an operation: the process is there at all."""

REPLIES: Final[dict[str, dict[str, Any]]] = {
    "tower": {
        "gather": {"members": 8},
        "ask": RIGHT.asked,
        "killed": None,
        "change_gates": RIGHT.changed,
        "fill_archive": RIGHT.archived,
    },
    "publisher": {"": RIGHT.published},
    "spark": {
        "count": {carrier: dataclasses.asdict(figures) for carrier, figures in RIGHT.spark.items()},
        "finish": None,
    },
}
"""Replies of each cluster to each operation."""


class Pretended:
    """A process that writes its death into the common record."""

    def __init__(self, name: str, record: list[str]) -> None:
        self.name = name
        self.status: int | None = None
        self.session = 0
        self._record = record

    def failure(self, what: str) -> ProcessFailed:
        return ProcessFailed(f"{self.name} {what}", "")

    async def wait(self) -> None:
        await trio.sleep_forever()

    async def kill(self) -> None:
        self._record.append(f"{self.name}: killed")
        self.status = -9
        await trio.sleep(1)


class PretendedProcesses:
    """Starts processes that only pretend."""

    def __init__(self, record: list[str]) -> None:
        self.started: dict[str, list[str]] = {}
        self._record = record
        self._every: list[Pretended] = []

    def __iter__(self) -> Iterator[Pretended]:
        return iter(self._every)

    async def start(self, name: str, arguments: Sequence[str]) -> Pretended:
        self.started[name] = list(arguments)
        await trio.lowlevel.checkpoint()
        self._every.append(Pretended(name, self._record))
        return self._every[-1]


class Course:
    """A demo whose clusters have their replies ready, and who was asked for what."""

    def __init__(self, directory: Path) -> None:
        self.record: list[str] = []
        self.silent: tuple[str, str] | None = None
        self.failing: tuple[str, str] | None = None
        self.processes = PretendedProcesses(self.record)
        self.shown = io.StringIO()
        self.topic: DemoTopic | None = None
        self._directory = directory
        self._published = trio.Event()

    async def run(self) -> Outcome:
        async with open_stage() as stage:
            node = await stage.node("airport")
            for cluster, replies in REPLIES.items():
                if self.silent != (cluster, HERE):
                    await stage.member(self._service(cluster, replies))
            try:
                with open_stages(Console(file=self.shown)) as stages:
                    processes = cast("Processes", self.processes)
                    airport = _Airport(ROWS, stages, processes, node, self._directory, self.topic)
                    return await airport.run(time.monotonic())
            finally:
                stage.forget_accounts()

    def _service(self, cluster: str, replies: dict[str, Any]) -> iris.Service:
        service = iris.Service(cluster)

        def serve(operation: str, reply: Any) -> Callable[[iris.Request], Any]:
            async def answer(request: iris.Request) -> object:
                self.record.append(f"{cluster}: {operation}")
                if self.silent == (cluster, operation):
                    await trio.sleep_forever()
                if self.failing == (cluster, operation):
                    raise iris.RemoteError("broken", "so it is")
                if operation == "finish":
                    self._published.set()
                if operation == "count":
                    await self._published.wait()
                await trio.sleep(1)
                return reply

            return answer

        for operation, reply in replies.items():
            handler = serve(operation, reply)
            service.request(operation)(handler) if operation else service.request(handler)

        @service.request("progress")
        async def progress(request: iris.Request) -> object:
            return 9

        return service

    def position(self, told: str) -> int:
        assert self.record.count(told) == 1, self.record
        return self.record.index(told)


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A course over five flights that are quickly read, on a machine without /proc."""
    contents: dict[str, Any] = {
        "read_flights": [],
        "count_by_carrier": dict(RIGHT.pandas),
        "departure_hours": range(10),
        "gate_changes": range(4),
        "flights_table": bytes(100),
    }
    for name, content in contents.items():
        monkeypatch.setattr(airport, name, _returning(content))
    monkeypatch.setattr(processes, "read_table", list)
    return Course(tmp_path)


def _returning(content: Any) -> Callable[[object], Any]:
    return lambda _: content


async def test_what_the_processes_reply_is_the_outcome(course: Course, autojump_clock: MockClock) -> None:
    outcome = await course.run()
    assert [check.name for check in check_outcome(outcome) if not check.ok] == []
    assert (outcome.rows, outcome.killed, outcome.boards) == (ROWS, "SIGKILL", MEMBERS["boards"])
    assert outcome.spark == outcome.pandas == RIGHT.pandas
    assert (outcome.asked, outcome.changed) == (RIGHT.asked, RIGHT.changed)
    assert (outcome.archived, outcome.published) == (RIGHT.archived, RIGHT.published)
    shown = [line.split(":")[0] for line in course.shown.getvalue().splitlines()]
    assert sorted(outcome.seconds) == sorted(shown)  # those are in the order in which they began, these ended
    assert len(outcome.seconds) == 8


async def test_every_member_is_started_and_spark_before_all_others(course: Course, autojump_clock: MockClock) -> None:
    await course.run()
    names = list(course.processes.started)
    assert names[0] == "Spark"
    members = [f"member {turn} of {cluster}" for cluster, number in MEMBERS.items() for turn in range(1, number + 1)]
    assert names[1:] == [*members, "the tower", "the publisher"]
    started = course.processes.started
    assert started["member 3 of weather"] == ["iris", "run", "iris.demo.weather:weather"]
    assert started["member 1 of bridge"][:4] == ["iris", "bridge", "--topic", "flights.>"]
    assert started["the tower"] == ["iris.demo.tower", str(ROWS)]


async def test_with_kafka_the_bridge_and_spark_have_its_topic(course: Course, autojump_clock: MockClock) -> None:
    course.topic = DemoTopic(bootstrap="k1:9092,k2:9092", name="iris-demo-1", min_insync=2)
    await course.run()
    started = course.processes.started
    options = ["--kafka", "k1:9092,k2:9092", "--kafka-topic", "iris-demo-1", "--min-insync", "2"]
    assert started["member 1 of bridge"] == ["iris", "bridge", "--topic", "flights.>", *options]
    assert started["Spark"][2:] == ["k1:9092,k2:9092", "iris-demo-1"]


async def test_one_member_is_killed_between_the_requests_and_the_tower_is_told_when_it_is_dead(
    course: Course, autojump_clock: MockClock
) -> None:
    await course.run()
    told = ["tower: gather", "tower: ask", "member 2 of weather: killed"]
    assert [course.position(one) for one in told] == sorted(course.position(one) for one in told)
    assert [one for one in course.record if one.endswith(": killed") and "member" in one] == told[2:]


async def test_flights_are_published_when_spark_reads_and_it_ends_when_they_are_confirmed(
    course: Course, autojump_clock: MockClock
) -> None:
    await course.run()
    assert course.position("publisher: ") < course.position("spark: finish")
    assert course.position("spark: count") < course.position("spark: finish")
    assert course.record[-1] == "spark: finish"


async def failure_of(course: Course) -> str:
    with pytest.raises((ProcessFailed, ExceptionGroup)) as caught:
        await course.run()
    failure: BaseException = caught.value
    while isinstance(failure, BaseExceptionGroup):
        (failure,) = cast("BaseExceptionGroup[BaseException]", failure).exceptions
    assert trio.current_time() < 1000
    return str(failure)


@pytest.mark.parametrize(
    ("cluster", "operation", "complaint"),
    [
        pytest.param(
            "tower", HERE, "the tower did not start: nothing was heard of it for 120 s", marks=pytest.mark.long
        ),
        ("tower", "gather", "the tower did not find every cluster: nothing was heard of it for 120 s"),
        pytest.param("tower", "ask", "the tower did not ask for the weather: ", marks=pytest.mark.long),
        pytest.param("tower", "change_gates", "the tower did not broadcast the gate changes: ", marks=pytest.mark.long),
        pytest.param(
            "tower", "fill_archive", "the tower did not send the table to the archive: ", marks=pytest.mark.long
        ),
        ("publisher", HERE, "the publisher did not find the bridge: "),
        pytest.param("publisher", "", "the publisher did not publish the flights: ", marks=pytest.mark.long),
        ("spark", HERE, "Spark did not begin to read: nothing was heard of it for 125 s"),
        pytest.param("spark", "count", "Spark did not read what the bridge has: ", marks=pytest.mark.long),
    ],
)
async def test_a_process_that_falls_silent_ends_the_demo_and_is_named(
    cluster: str, operation: str, complaint: str, course: Course, autojump_clock: MockClock
) -> None:
    course.silent = cluster, operation
    assert (await failure_of(course)).startswith(complaint)


async def test_a_stage_that_fails_is_said_with_its_reason(course: Course, autojump_clock: MockClock) -> None:
    course.failing = "tower", "change_gates"
    assert await failure_of(course) == "the tower did not broadcast the gate changes: broken: so it is"


@contextlib.asynccontextmanager
async def alone(name: str) -> AsyncGenerator[None]:
    """Stand for ``open_node`` where nobody asks the node for anything."""
    yield


def contents_of(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_a_demo_that_moves_but_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def run_for_ever(airport: _Airport, start: float) -> Outcome:
        return await trio.sleep_forever()

    monkeypatch.setattr(iris, "open_node", alone)
    monkeypatch.setattr(_Airport, "run", run_for_ever)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    began = trio.current_time()
    with (
        open_stages(Console(file=io.StringIO())) as stages,
        pytest.raises(iris.IrisError, match="not over after 900 s"),
    ):
        await run_airport(ROWS, stages)
    assert trio.current_time() - began == pytest.approx(900, abs=1)
    assert contents_of(tmp_path) == []


@pytest.mark.parametrize("length", [10, 60])
async def test_the_processes_live_in_a_directory_of_their_own_with_a_short_path(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    seen: list[tuple[Path, dict[str, str]]] = []

    @contextlib.asynccontextmanager
    async def look(directory: Path) -> AsyncGenerator[PretendedProcesses]:
        assert contents_of(directory) == []
        seen.append((directory, dict(os.environ)))
        raise iris.IrisError("seen")
        yield PretendedProcesses([])

    long = tmp_path / ("x" * length)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setenv("IRIS_CREDENTIAL", "of-the-user")
    monkeypatch.setattr(airport, "open_processes", look)
    with open_stages(Console(file=io.StringIO())) as stages, pytest.raises(iris.IrisError, match="seen"):
        await run_airport(ROWS, stages)
    ((work, environment),) = seen
    assert work.parent.parent == Path("/tmp")
    assert not work.exists()
    assert "IRIS_CREDENTIAL" not in environment
    for name in ("IRIS_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
        assert Path(environment[name]).parent == work.parent
    assert len(environment["XDG_RUNTIME_DIR"]) <= 26, "else its sockets are elsewhere"
    assert os.environ["IRIS_CREDENTIAL"] == "of-the-user"
