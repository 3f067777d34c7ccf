"""Deadlines of many waits, kept by one task."""

from __future__ import annotations

import math

import trio
from trio.testing import MockClock

from iris.patterns.request.deadlines import Deadlines


async def test_waits_end_at_their_deadlines_whatever_the_order_they_began_in(autojump_clock: MockClock) -> None:
    waiting = {1, 2, 3, 4}
    ended: list[tuple[int, float]] = []
    began = trio.current_time()

    def expire(number: int) -> None:
        waiting.discard(number)
        ended.append((number, trio.current_time() - began))

    deadlines = Deadlines(waiting, expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        deadlines.add(began + 3, 1)
        deadlines.add(math.inf, 4)
        await trio.sleep(1)
        deadlines.add(began + 2, 2)
        deadlines.add(began + 2, 3)
        await trio.sleep(0.5)
        waiting.discard(3)  # it has its answer
        await trio.sleep(10)
        assert ended == [(2, 2.0), (1, 3.0)]
        assert len(deadlines) == 0
        nursery.cancel_scope.cancel()


async def test_waits_that_have_ended_take_no_room(autojump_clock: MockClock) -> None:
    waiting: set[int] = set()
    deadlines = Deadlines(waiting, waiting.discard)
    for number in range(100_000):
        waiting.add(number)
        deadlines.add(1000 + number, number)
        if number >= 10:
            waiting.discard(number - 10)
    assert len(deadlines) <= 1024


async def test_a_wait_that_begins_after_its_deadline_was_added_ends_at_it(autojump_clock: MockClock) -> None:
    """As requests do: a number is among those that wait when the first member is asked."""
    waiting: set[int] = set()
    ended: list[int] = []
    deadlines = Deadlines(waiting, ended.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        until = trio.current_time() + 1
        for number in range(3000):
            deadlines.add(until, number)
            waiting.add(number)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert ended == list(range(3000))
