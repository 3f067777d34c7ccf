"""The tower's way through the hours, and the boards' proof of what they received."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from iris.demo.boards import DepartureBoard
from iris.demo.checks import Counters, count_since
from iris.demo.data import GateChange, Hour
from iris.demo.tower import WeatherRequests, ask_through_a_loss, digest_of, first_third
from iris.patterns.books import PatternStatistics


def hours(number: int) -> list[Hour]:
    return [("JFK", str(turn)) for turn in range(number)]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 10, 100])
def test_every_hour_is_asked_for_and_requests_go_on_until_the_member_is_dead(number: int) -> None:
    killed = trio.Event()
    itinerary = ask_through_a_loss(hours(number), killed)
    asked = [next(itinerary) for _ in range(first_third(number))]
    asked += [next(itinerary) for _ in range(3 * number)]
    assert set(asked) <= set(hours(number))
    killed.set()
    rest = list(itinerary)
    assert len(rest) <= number
    assert set(asked) | set(rest) == set(hours(number))


def test_a_member_that_is_dead_already_holds_nothing_up() -> None:
    killed = trio.Event()
    killed.set()
    assert list(ask_through_a_loss(hours(9), killed)) == hours(9)


def test_replies_are_compared_with_the_table() -> None:
    asked = WeatherRequests()
    asked.check({"temp": 1.5, "wind_gust": None}, {"temp": 1.5, "wind_gust": None})
    asked.check(None, None)
    asked.check({"temp": 1.5}, None)
    asked.check(None, {"temp": 1.5})
    asked.check({"temp": 1.4}, {"temp": 1.5})
    assert (asked.right, asked.wrong) == (2, 3)


changes = st.builds(GateChange, number=st.integers(0, 9), flight=st.sampled_from("AB"), gate=st.sampled_from("12"))


@given(st.lists(changes, max_size=6), st.lists(changes, max_size=6))
def test_two_boards_agree_exactly_if_they_were_told_the_same_in_the_same_order(
    one: list[GateChange], other: list[GateChange]
) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)


def test_a_board_shows_the_last_gate() -> None:
    board = DepartureBoard()
    for gate in ("A1", "B2"):
        board.show({"number": 1, "flight": "UA 1 from JFK", "gate": gate})
    assert board.gates == {"UA 1 from JFK": "B2"}
    assert board.summary()["changes"] == 2


def statistics(sent: int, handed_over: int, **lost: int) -> PatternStatistics:
    waiting = sent - handed_over - sum(lost.values())
    return PatternStatistics(
        sent=sent,
        answered=0,
        handed_over=handed_over,
        expired=0,
        refused=0,
        refused_because=MappingProxyType({}),
        lost=MappingProxyType(lost),
        waiting=waiting,
    )


def test_the_counters_of_a_stage_are_the_difference_of_two_snapshots() -> None:
    stage = count_since(statistics(10, 8, a=1, b=1), statistics(110, 106, a=1, b=2))
    assert stage == Counters(sent=100, answered=0, handed_over=98, expired=0, refused=0, lost={"b": 1}, waiting=1)
    assert Counters.from_fields(stage.as_fields()) == stage
    assert not stage.add_up
    assert not stage.nothing_failed
