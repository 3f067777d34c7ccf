"""Outcomes of idempotent requests: kept until their deadlines, within limits, and none holds another one back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.service.reply_cache import ReplyCache

SHOP = NodeId("5" * 32)


def reply(number: int) -> kinds.Reply:
    return kinds.Reply(number, b"done")


def test_an_outcome_is_found_by_who_asked_and_the_number() -> None:
    remembered = ReplyCache()
    remembered.add((SHOP, 1), reply(1), 4, until=5.0, now=0.0)
    assert remembered.find((SHOP, 1)) == (reply(1), 4)
    assert remembered.find((SHOP, 2)) is None
    assert remembered.find((NodeId("6" * 32), 1)) is None


@pytest.mark.parametrize("long", [3600.0, math.inf])
def test_one_with_a_long_deadline_keeps_none_of_those_behind_it(long: float) -> None:
    remembered = ReplyCache()
    remembered.add((SHOP, 0), reply(0), 100, until=long, now=0.0)
    for number in range(1, 10_000):
        now = number / 100  # 100 a second, each for a second: 100 are of use at any time
        remembered.add((SHOP, number), reply(number), 100, until=now + 1, now=now)
        assert len(remembered) <= 2 * 101 + 2
        assert remembered.bytes == 100 * len(remembered)
    assert remembered.find((SHOP, 0)) is not None


def test_beyond_the_limits_the_oldest_go_first_whatever_their_deadline() -> None:
    remembered = ReplyCache(count=3, size=1000)
    for number in range(5):
        remembered.add((SHOP, number), reply(number), 10, until=math.inf, now=0.0)
    assert [number for number in range(5) if remembered.find((SHOP, number))] == [2, 3, 4]
    remembered.add((SHOP, 5), reply(5), 985, until=1.0, now=0.0)
    assert [number for number in range(6) if remembered.find((SHOP, number))] == [4, 5]
    assert remembered.bytes == 995


@pytest.mark.parametrize(("size", "count"), [(0, 10_000), (100, 10_000), (900, 50), (1001, 5)])
def test_what_one_caller_has_done_takes_nothing_from_the_others(size: int, count: int) -> None:
    remembered = ReplyCache(count=30, size=1000)
    others = [NodeId(str(digit) * 32) for digit in range(3)]
    for node in others:
        for number in range(5):
            remembered.add((node, number), reply(number), 20, until=math.inf, now=0.0)
    for number in range(count):
        remembered.add((SHOP, number), reply(number), size, until=math.inf, now=0.0)
        assert len(remembered) <= 30
        assert remembered.bytes <= 1000
    assert all(remembered.find((node, number)) for node in others for number in range(5))


def test_a_caller_that_comes_later_gets_its_share_from_who_has_more() -> None:
    remembered = ReplyCache(count=30, size=1000)
    for number in range(30):
        remembered.add((SHOP, number), reply(number), 10, until=math.inf, now=0.0)
    late = NodeId("6" * 32)
    for number in range(15):
        remembered.add((late, number), reply(number), 10, until=math.inf, now=0.0)
    assert [number for number in range(30) if remembered.find((SHOP, number))] == list(range(15, 30))
    assert all(remembered.find((late, number)) for number in range(15))


def test_one_that_is_larger_than_everything_is_not_kept() -> None:
    remembered = ReplyCache(count=3, size=1000)
    remembered.add((SHOP, 1), reply(1), 1001, until=1.0, now=0.0)
    assert (len(remembered), remembered.bytes) == (0, 0)


def test_a_number_that_is_used_twice_is_counted_once() -> None:
    remembered = ReplyCache(count=3, size=1000)
    for size in (600, 700, 500):
        remembered.add((SHOP, 1), reply(size), size, until=1.0, now=0.0)
        assert remembered.bytes == size
    assert remembered.find((SHOP, 1)) == (reply(500), 500)


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 20), st.floats(0, 3)), min_size=1, max_size=200))
def test_what_is_of_use_is_there_unless_the_limits_are_reached(added: list[tuple[int, float, float]]) -> None:
    remembered, now = ReplyCache(count=20, size=500), 0.0
    model: dict[int, tuple[int, float]] = {}
    for number, (size, lasts, pause) in enumerate(added):
        now += pause
        remembered.add((SHOP, number), reply(number), size, until=now + lasts, now=now)
        model[number] = (size, now + lasts)
        kept = {known for known in model if remembered.find((SHOP, known)) is not None}
        assert len(kept) == len(remembered) <= 20
        assert remembered.bytes == sum(model[known][0] for known in kept) <= 500
        newest = list(model)[-20:]
        while sum(model[known][0] for known in newest) > 500:
            del newest[0]
        assert all(model[known][1] < now for known in set(newest) - kept)
