"""The stages of the tower, with the clusters of the demo on a network in memory: what it finds out, right or wrong."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.demo import tower
from iris.demo.archive import archive
from iris.demo.boards import DepartureBoard, boards
from iris.demo.data import departure_hours, flights_table, gate_changes, read_flights, read_observations
from iris.demo.tower import MEMBERS, Tower, digest_of, first_third
from iris.demo.weather import weather
from tests.support.stages import Stage, open_stage

ROWS: Final = 500


class Data:
    """The first flights of the table, read once."""

    def __init__(self) -> None:
        self.flights = read_flights(ROWS)
        self.table = flights_table(ROWS)
        self.changes = gate_changes(self.flights)
        self.observations = read_observations()


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


@pytest.fixture(autouse=True)
def _read_once(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"read_flights": data.flights, "flights_table": data.table}
    for name, content in contents.items():

        def read(rows: int, content: Any = content) -> Any:
            assert rows == ROWS
            return content

        monkeypatch.setattr(tower, name, read)
    monkeypatch.setattr(tower, "read_observations", lambda: data.observations)


async def open_tower(stage: Stage, *clusters: str) -> Tower:
    """Bring the tower up, which serves its cluster, and wait until it sees these clusters."""
    node = await stage.node("tower")
    for cluster in clusters:
        await node.wait_for(cluster)
    tower = Tower(node, ROWS)
    await stage.join(node, tower.service())
    return tower


async def open_airport(stage: Stage) -> iris.Node:
    """Bring up a node that asks the tower."""
    airport = await stage.node("airport")
    await airport.wait_for("tower")
    return airport


def nothing_failed(counters: dict[str, Any], number: int, *, answered: bool = True) -> bool:
    ended = counters["answered"] if answered else counters["handed_over"]
    return (counters["sent"], ended, counters["waiting"]) == (number, number, 0)


# -- gather -------------------------------------------------------------------------------------------------


async def test_the_tower_waits_for_every_member_of_every_cluster(autojump_clock: MockClock) -> None:
    results: list[Any] = []
    async with trio.open_nursery() as nursery, open_stage() as stage:
        tower = await open_tower(stage)

        async def gather() -> None:
            results.append(await tower.gather())

        nursery.start_soon(gather)
        hosts = [(cluster, turn) for cluster, number in MEMBERS.items() for turn in range(number)]
        for cluster, turn in hosts:
            assert not results
            await stage.member(iris.Service(cluster), f"{cluster}-{turn}")
        await trio.sleep(1)
    assert results == [{"members": sum(MEMBERS.values())}]


async def test_a_member_that_does_not_come_is_named(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        tower = await open_tower(stage)
        await stage.member(iris.Service("weather"), "weather-1")
        with pytest.raises(iris.RequestTimeout, match="cluster 'weather' has 1 of 3 members after 30 s"):
            await tower.gather()


# -- ask ----------------------------------------------------------------------------------------------------


async def test_no_request_fails_when_a_member_dies_while_it_is_asked(autojump_clock: MockClock, data: Data) -> None:
    async with open_stage() as stage:
        for turn in range(3):
            await stage.member(weather, f"weather-{turn}")
        await open_tower(stage, "weather")
        airport, hours = await open_airport(stage), len(departure_hours(data.flights))

        async def kill() -> None:  # the airport's part
            done = 0
            while done < first_third(hours):
                done = await airport.request("tower", operation="progress")
            stage.crash("weather-1")
            await trio.sleep(0.005)
            await airport.request("tower", operation="killed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            result = await airport.request("tower", operation="ask", timeout=900)
    assert result["asked"] >= result["hours"] == hours > 0
    assert result["right"] == result["asked"]
    assert (result["wrong"], result["failed"], result["errors"]) == (0, 0, [])
    assert nothing_failed(result["counters"], result["asked"])


async def test_replies_that_are_wrong_or_missing_are_counted_and_the_first_errors_kept(
    autojump_clock: MockClock,
) -> None:
    turns = itertools.count()
    broken = iris.Service("weather")

    @broken.request
    async def observe(request: iris.Request) -> object:
        match next(turns) % 3:
            case 0:
                raise iris.RemoteError("dark", "no instrument")
            case 1:
                return {"temp": -300.0}
            case _:
                asked = request.payload
                return read(asked)

    def read(asked: dict[str, str]) -> object:
        return observations.get((asked["airport"], asked["hour"]))

    observations = read_observations()
    async with open_stage() as stage:
        await stage.member(broken, "weather-0")
        tower = await open_tower(stage, "weather")
        airport = await open_airport(stage)
        await airport.request("tower", operation="killed")
        result = await tower.ask()
    assert result["failed"] + result["wrong"] + result["right"] == result["asked"]
    assert min(result["failed"], result["wrong"], result["right"]) >= result["asked"] // 3 - 1
    assert result["errors"] == ("RemoteError: dark: no instrument",) * 3


# -- change gates -------------------------------------------------------------------------------------------


def make_board(shows: Callable[[int], bool] = lambda _: True) -> iris.Service:
    """A board of its own; those of one process share the one of the module.  It shows the changes that it ``shows``."""
    service, board = iris.Service("boards"), DepartureBoard()

    @service.broadcast
    async def change_gate(message: iris.Message) -> None:
        if shows(message.payload["number"]):
            board.show(message.payload)

    @service.request
    async def summarize(request: iris.Request) -> object:
        return board.summary()

    return service


async def test_every_board_is_told_every_change_and_says_so(data: Data, autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        for turn in range(3):
            await stage.member(make_board(), f"board-{turn}")
        tower = await open_tower(stage, "boards")
        result = await tower.change_gates()
    number = len(data.changes)
    assert number > 10
    assert (result["changes"], result["digest"]) == (number, digest_of(data.changes))
    assert result["boards"] == [{"changes": number, "digest": result["digest"]}] * 3
    assert nothing_failed(result["counters"], 3 * number, answered=False)
    assert nothing_failed(result["survey_counters"], 3 * result["surveys"])


async def test_a_board_that_misses_a_change_is_reported_as_it_is_after_ten_seconds(
    data: Data, autojump_clock: MockClock
) -> None:
    missed = data.changes[3].number
    async with open_stage() as stage:
        await stage.member(make_board(), "board-0")
        await stage.member(make_board(lambda number: number != missed), "board-1")
        tower = await open_tower(stage, "boards")
        began = trio.current_time()
        result = await tower.change_gates()
        assert 10 <= trio.current_time() - began < 12
    shown = sorted(board["changes"] for board in result["boards"])
    assert shown == [len(data.changes) - 1, len(data.changes)]
    assert sum(board["digest"] == result["digest"] for board in result["boards"]) == 1


async def test_the_boards_cluster_shows_and_proves_what_it_was_told(data: Data, autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(boards)
        before = await shop.request("boards")
        for change in data.changes[:5]:
            await shop.broadcast("boards", change.as_payload())
        await trio.sleep(1)
        after = await shop.request("boards")
    assert after["changes"] - before["changes"] == 5
    assert after["digest"] != before["digest"]


# -- fill archive -------------------------------------------------------------------------------------------


async def test_the_archive_returns_the_size_and_the_digest_of_what_it_read_back(
    data: Data, autojump_clock: MockClock
) -> None:
    async with open_stage() as stage:
        await stage.member(archive)
        tower = await open_tower(stage, "archive")
        result = await tower.fill_archive()
        await trio.sleep(1)
    digest = hashlib.sha256(data.table).hexdigest()
    assert (result["bytes"], result["sha256"]) == (len(data.table), digest)
    assert result["receipt"] == {"bytes": len(data.table), "sha256": digest}
    counters = result["counters"]
    assert counters["sent"] == counters["answered"] > 0


async def test_an_archive_that_loses_a_byte_cannot_hide_it(data: Data, autojump_clock: MockClock) -> None:
    careless = iris.Service("archive")

    @careless.tunnel
    async def store(tunnel: iris.Tunnel) -> None:
        kept = b"".join([piece async for piece in tunnel])[1:]
        await tunnel.send({"bytes": len(kept), "sha256": hashlib.sha256(kept).hexdigest()})

    async with open_stage() as stage:
        await stage.member(careless)
        tower = await open_tower(stage, "archive")
        result = await tower.fill_archive()
    assert result["receipt"]["bytes"] == result["bytes"] - 1
    assert result["receipt"]["sha256"] != result["sha256"]


# -- weather ------------------------------------------------------------------------------------------------


async def test_weather_answers_with_the_observation_or_nothing(data: Data, autojump_clock: MockClock) -> None:
    (airport, hour), observation = next(iter(data.observations.items()))
    async with open_stage() as stage:
        _, shop = await stage.pair(weather)
        assert await shop.request("weather", {"airport": airport, "hour": hour}) == observation
        assert await shop.request("weather", {"airport": "QQQ", "hour": hour}) is None
        with pytest.raises(iris.RemoteError):
            await shop.request("weather", "what is it like?")
