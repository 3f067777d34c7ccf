"""The course of the demo: who is told what and when, with processes that only pretend to be some."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from iris.demo import airport, processes
from iris.demo.airport import _Airport, run_airport
from iris.demo.checks import Outcome, check_outcome
from iris.demo.control import Report
from iris.demo.display import open_stages
from iris.demo.processes import Processes, ProcessFailed
from iris.demo.tower import MEMBERS
from iris.kernel.errors import IrisError
from tests.support.outcomes import right_outcome

ROWS: Final = 5
RIGHT: Final = right_outcome()

Script = dict[str, list[Report]]


def result(value: Mapping[str, Any]) -> Report:
    return Report("result", dict(value))


def progress(done: int) -> Report:
    return Report("progress", done)


def news(text: str) -> Report:
    return Report("news", text)


def scripts() -> dict[str, Script]:
    """What each process says of itself (the empty order) and after each order."""
    carriers = {carrier: dataclasses.asdict(figures) for carrier, figures in RIGHT.spark.items()}
    return {
        "the tower": {
            "gather": [progress(4), result({"members": 8})],
            "ask": [progress(3), news("kill")],
            "killed": [progress(9), result(RIGHT.asked)],
            "change-gates": [result(RIGHT.changed)],
            "fill-archive": [result(RIGHT.archived)],
        },
        "the publisher": {"": [news("ready")], "publish": [progress(2), result(RIGHT.published)]},
        "Spark": {
            "": [news("ready")],
            "start": [news("reading"), progress(1)],
            "finish": [result({"carriers": carriers})],
        },
    }


class Pretended:
    """A process that answers orders from its script, and writes what happens to it into a common record."""

    def __init__(self, name: str, script: Script, record: list[str]) -> None:
        self.name = name
        self.may_end = False
        self.status: int | None = None
        self.session = 0
        self._record = record
        self._script = script
        self._sender, self._receiver = trio.open_memory_channel[Report](100)
        self._say("")

    def _say(self, order: str) -> None:
        for report in self._script.get(order, ()):
            self._sender.send_nowait(report)

    async def order(self, order: str) -> None:
        self._record.append(f"{self.name}: {order}")
        self._say(order)
        await trio.sleep(1)

    async def wait_news(
        self, wanted: str, what: str, timeout: float, progress: Callable[[int], None] | None = None
    ) -> None:
        while (await self._next(what, timeout, progress)) != news(wanted):
            pass

    async def result(self, what: str, timeout: float, progress: Callable[[int], None] | None = None) -> Any:
        while (report := await self._next(what, timeout, progress)).kind != "result":
            pass
        return report.value

    async def _next(self, what: str, timeout: float, progress: Callable[[int], None] | None) -> Report:
        with trio.move_on_after(timeout):
            report = await self._receiver.receive()
            if report.kind == "progress" and progress is not None:
                progress(report.value)
            return report
        raise ProcessFailed(f"{self.name} did not {what}: nothing was heard of it for {timeout:g} s", "")

    async def kill(self) -> None:
        self._record.append(f"{self.name}: killed")
        self.may_end, self.status = True, -9
        await trio.sleep(1)


class PretendedProcesses:
    """Starts processes that only pretend."""

    def __init__(self, written: dict[str, Script], record: list[str]) -> None:
        self.started: dict[str, list[str]] = {}
        self._scripts = written
        self._record = record
        self._every: list[Pretended] = []

    def __iter__(self) -> Iterator[Pretended]:
        return iter(self._every)

    async def start(self, name: str, arguments: Sequence[str], *, reports: bool = False) -> Pretended:
        assert reports == (name in self._scripts)
        self.started[name] = list(arguments)
        await trio.lowlevel.checkpoint()
        self._every.append(Pretended(name, self._scripts.get(name, {}), self._record))
        return self._every[-1]


class Course:
    """A demo whose processes follow scripts, and what was told to whom."""

    def __init__(self, directory: Path) -> None:
        self.scripts = scripts()
        self.record: list[str] = []
        self.processes = PretendedProcesses(self.scripts, self.record)
        self.shown = io.StringIO()
        self._directory = directory

    async def run(self) -> Outcome:
        with open_stages(Console(file=self.shown)) as stages:
            airport = _Airport(ROWS, stages, cast("Processes", self.processes), self._directory)
            return await airport.run(time.monotonic())

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


async def test_what_the_processes_report_is_the_outcome(course: Course, autojump_clock: MockClock) -> None:
    outcome = await course.run()
    assert [check.name for check in check_outcome(outcome) if not check.ok] == []
    assert (outcome.rows, outcome.killed, outcome.boards) == (ROWS, "SIGKILL", MEMBERS["boards"])
    assert outcome.spark == outcome.pandas == RIGHT.pandas
    assert (outcome.asked, outcome.changed) == (RIGHT.asked, RIGHT.changed)
    assert (outcome.archived, outcome.published) == (RIGHT.archived, RIGHT.published)
    assert list(outcome.seconds) == [line.split(":")[0] for line in course.shown.getvalue().splitlines()]
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


async def test_one_member_is_killed_between_the_requests_and_the_tower_is_told_when_it_is_dead(
    course: Course, autojump_clock: MockClock
) -> None:
    await course.run()
    told = ["the tower: gather", "the tower: ask", "member 2 of weather: killed", "the tower: killed"]
    assert [course.position(one) for one in told] == sorted(course.position(one) for one in told)
    assert [one for one in course.record if one.endswith(": killed") and "member" in one] == told[2:3]


async def test_flights_are_published_when_spark_reads_and_it_ends_when_they_are_confirmed(
    course: Course, autojump_clock: MockClock
) -> None:
    await course.run()
    told = ["Spark: start", "the publisher: publish", "Spark: finish"]
    assert [course.position(one) for one in told] == sorted(course.position(one) for one in told)
    assert course.record[-1] == "Spark: finish"


@pytest.mark.parametrize(
    ("name", "order", "complaint"),
    [
        ("the tower", "gather", "the tower did not find every cluster: nothing was heard of it for 120 s"),
        ("the tower", "killed", "the tower did not ask for the weather: "),
        ("the tower", "change-gates", "the tower did not broadcast the gate changes: "),
        ("the tower", "fill-archive", "the tower did not send the table to the archive: "),
        ("the publisher", "", "the publisher did not find the bridge: "),
        ("the publisher", "publish", "the publisher did not publish the flights: "),
        ("Spark", "", "Spark did not start: "),
        ("Spark", "start", "Spark did not begin to read: "),
        ("Spark", "finish", "Spark did not read what the bridge has: "),
    ],
)
async def test_a_process_that_falls_silent_ends_the_demo_and_is_named(
    name: str, order: str, complaint: str, course: Course, autojump_clock: MockClock
) -> None:
    course.scripts[name][order] = [report for report in course.scripts[name][order] if report.kind == "progress"]
    with pytest.raises((ProcessFailed, ExceptionGroup)) as caught:
        await course.run()
    failure: BaseException = caught.value
    while isinstance(failure, BaseExceptionGroup):
        (failure,) = cast("BaseExceptionGroup[BaseException]", failure).exceptions
    assert str(failure).startswith(complaint)
    assert trio.current_time() < 1000


def contents_of(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_a_demo_that_moves_but_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def run_for_ever(airport: _Airport, start: float) -> Outcome:
        return await trio.sleep_forever()

    monkeypatch.setattr(_Airport, "run", run_for_ever)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    began = trio.current_time()
    with open_stages(Console(file=io.StringIO())) as stages, pytest.raises(IrisError, match="not over after 900 s"):
        await run_airport(ROWS, stages)
    assert trio.current_time() - began == pytest.approx(900, abs=1)
    assert contents_of(tmp_path) == []


@pytest.mark.parametrize("length", [10, 60])
async def test_the_processes_live_in_a_directory_of_their_own_with_a_short_path(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    seen: list[tuple[Path, Mapping[str, str]]] = []

    @contextlib.asynccontextmanager
    async def look(directory: Path, environment: Mapping[str, str]) -> AsyncGenerator[PretendedProcesses]:
        assert contents_of(directory) == []
        seen.append((directory, environment))
        raise IrisError("seen")
        yield PretendedProcesses({}, [])

    long = tmp_path / ("x" * length)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setenv("IRIS_CREDENTIAL", "of-the-user")
    monkeypatch.setattr(airport, "open_processes", look)
    with open_stages(Console(file=io.StringIO())) as stages, pytest.raises(IrisError, match="seen"):
        await run_airport(ROWS, stages)
    ((work, environment),) = seen
    assert work.parent.parent == Path("/tmp")
    assert not work.exists()
    assert "IRIS_CREDENTIAL" not in environment
    for name in ("IRIS_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
        assert Path(environment[name]).parent == work.parent
