"""Deadlines of many waits, kept by one task."""

from __future__ import annotations

import math
import random

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.patterns.request.deadlines import Deadlines


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_every_wait_that_still_lasts_expires_once_at_its_deadline_and_no_other_does(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        waiting: dict[int, float] = {}
        expired: dict[int, float] = {}
        ended: set[int] = set()

        def expire(number: int) -> None:
            assert number not in ended | set(expired)
            expired[number] = trio.current_time() - waiting.pop(number)

        deadlines = Deadlines(waiting, expire)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadlines.run)
            for number in range(60):
                deadline = trio.current_time() + rng.choice([0.0, rng.random(), 10 * rng.random(), math.inf])
                waiting[number] = deadline
                deadlines.add(deadline, number)
                if rng.random() < 0.3 and waiting:
                    gone = rng.choice(list(waiting))
                    del waiting[gone]
                    ended.add(gone)
                if rng.random() < 0.5:
                    await trio.sleep(rng.random())
                    for late in (number for number, deadline in waiting.items() if deadline < trio.current_time()):
                        raise AssertionError(f"{late} should have expired")
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        assert all(abs(lateness) < 1e-6 for lateness in expired.values())
        assert all(deadline == math.inf for deadline in waiting.values())
        assert len(expired) + len(ended) + len(waiting) == 60
        assert len(deadlines) <= len(ended), "what has expired is forgotten"

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_wait_without_a_deadline_costs_nothing(autojump_clock: MockClock) -> None:
    deadlines = Deadlines({1}, lambda _: None)
    deadlines.add(math.inf, 1)
    assert len(deadlines) == 0


async def test_a_deadline_that_has_passed_when_it_is_told_expires_at_once(autojump_clock: MockClock) -> None:
    waiting = {1}
    expired = trio.Event()

    def expire(number: int) -> None:
        waiting.discard(number)
        expired.set()

    deadlines = Deadlines(waiting, expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        await trio.sleep(5)
        deadlines.add(trio.current_time() - 1, 1)
        with trio.fail_after(0.001):
            await expired.wait()
        nursery.cancel_scope.cancel()


async def test_a_wait_begun_by_one_that_expires_is_kept_as_well(autojump_clock: MockClock) -> None:
    """What ``expire`` does may begin the next wait, as a repeat does."""
    waiting = {0}
    moments: list[float] = []
    began = trio.current_time()

    def expire(number: int) -> None:
        moments.append(round(trio.current_time() - began, 6))
        waiting.discard(number)
        if number < 4:
            waiting.add(number + 1)
            deadlines.add(trio.current_time() + 1, number + 1)

    deadlines = Deadlines(waiting, expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        deadlines.add(began + 1, 0)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert moments == [1, 2, 3, 4, 5]


async def test_ten_thousand_waits_that_ended_early_are_thrown_out_on_the_way(autojump_clock: MockClock) -> None:
    waiting: set[int] = set()
    deadlines = Deadlines(waiting, waiting.discard)
    for number in range(10_000):
        waiting.add(number)
        deadlines.add(1e6 + number, number)
        if number >= 10:
            waiting.discard(number - 10)
        assert len(deadlines) <= 1100
