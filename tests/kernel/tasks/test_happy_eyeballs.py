"""Several ways to one end: the preferred one first, and nobody waits long for one that does not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.kernel.tasks.happy_eyeballs import AT_ONCE, LONGEST, STAGGER, first_of

Attempt = Callable[[], Awaitable[int]]


class Ways:
    """Attempts that end after so many seconds, well or not, and what became of their results."""

    def __init__(self) -> None:
        self.began: list[tuple[float, int]] = []
        self.discarded: list[int] = []
        self.failures: list[Exception] = []
        self.start = trio.current_time()

    def way(self, number: int, seconds: float, error: Exception | None = None) -> Attempt:
        async def attempt() -> int:
            self.began.append((round(trio.current_time() - self.start, 6), number))
            await trio.sleep(seconds)
            if error is not None:
                raise error
            return number

        return attempt

    async def first(self, *attempts: Attempt) -> int | None:
        return await first_of(attempts, self.failures, expected=(OSError,), discard=self.discarded.append)

    def elapsed(self) -> float:
        return round(trio.current_time() - self.start, 6)


async def test_one_that_answers_soon_is_the_only_one_that_is_tried(autojump_clock: MockClock) -> None:
    ways = Ways()
    assert await ways.first(ways.way(0, STAGGER / 2), ways.way(1, 0.0)) == 0
    assert ways.began == [(0.0, 0)]


async def test_after_a_failure_the_next_one_begins_at_once(autojump_clock: MockClock) -> None:
    ways = Ways()
    assert await ways.first(ways.way(0, 0.01, OSError("no")), ways.way(1, 0.02, OSError("nor")), ways.way(2, 0.03)) == 2
    assert ways.began == [(0.0, 0), (0.01, 1), (0.03, 2)]
    assert [str(error) for error in ways.failures] == ["no", "nor"]


async def test_those_that_do_not_answer_hold_the_next_one_up_for_a_moment_each(autojump_clock: MockClock) -> None:
    ways = Ways()
    assert await ways.first(*(ways.way(number, 3600) for number in range(3)), ways.way(3, 0.1)) == 3
    assert ways.began == [(number * STAGGER, number) for number in range(4)]
    assert ways.elapsed() == 3 * STAGGER + 0.1


async def test_one_that_answers_late_counts_if_those_after_it_do_not_at_all(autojump_clock: MockClock) -> None:
    ways = Ways()
    assert await ways.first(ways.way(0, 2.0), ways.way(1, 3600), ways.way(2, 0.1, OSError("no"))) == 0
    assert ways.elapsed() == 2.0


@pytest.mark.parametrize("at_once", [1, 2, AT_ONCE])
async def test_no_more_are_under_way_than_there_are_places_and_each_has_its_turn(
    autojump_clock: MockClock, at_once: int
) -> None:
    ways = Ways()
    under_way = most = 0

    async def silent() -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await trio.sleep_forever()
        finally:
            under_way -= 1
        return 0

    attempts = [*[silent] * 15, ways.way(15, 0.1)]
    assert await first_of(attempts, ways.failures, expected=(OSError,), discard=print, at_once=at_once) == 15
    assert most == at_once
    rounds, place = divmod(15, at_once)
    assert ways.elapsed() == pytest.approx(rounds * LONGEST + place * STAGGER + 0.1)
    assert len(ways.failures) == 16 - at_once
    assert all("nothing came back for 1 s" in str(error) for error in ways.failures)


async def test_who_is_slow_has_all_the_time_if_nobody_waits_for_its_place(autojump_clock: MockClock) -> None:
    ways = Ways()
    silent = [ways.way(number, 3600) for number in range(AT_ONCE - 1)]
    assert await ways.first(*silent, ways.way(9, 60.0)) == 9


async def test_one_that_succeeds_while_another_waits_for_a_place_ends_it_all(autojump_clock: MockClock) -> None:
    ways = Ways()
    silent = [ways.way(number, 3600) for number in range(AT_ONCE - 1)]
    assert await ways.first(ways.way(8, LONGEST - 0.1), *silent, ways.way(9, 0.0)) == 8
    assert 9 not in [number for _, number in ways.began]
    assert ways.elapsed() == LONGEST - 0.1


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_if_all_fail_there_is_no_result_and_the_errors_are_in_order(
    autojump_clock: MockClock, count: int
) -> None:
    ways = Ways()
    attempts = [ways.way(number, 1.0 - number / 10, OSError(str(number))) for number in range(count)]
    assert await ways.first(*attempts) is None
    assert [str(error) for error in ways.failures] == [str(number) for number in range(count)]


async def test_without_any_there_is_no_result(autojump_clock: MockClock) -> None:
    assert await Ways().first() is None


@pytest.mark.parametrize("count", [1, 2])
async def test_an_error_of_ours_comes_out_as_it_is(autojump_clock: MockClock, count: int) -> None:
    ways = Ways()
    with pytest.raises(ZeroDivisionError):
        await ways.first(*[ways.way(0, 0.1, ZeroDivisionError())] * count)


async def test_of_two_that_answer_in_one_moment_the_other_one_is_discarded(autojump_clock: MockClock) -> None:
    ways = Ways()
    assert await ways.first(ways.way(0, STAGGER + 0.1), ways.way(1, 0.1)) in (0, 1)
    assert len(ways.discarded) <= 1


@pytest.mark.parametrize("after", [0.1, STAGGER, STAGGER + 0.1])
async def test_cancelling_leaves_nothing_behind(autojump_clock: MockClock, after: float) -> None:
    ways = Ways()
    results: list[int | None] = []
    with trio.move_on_after(after):
        results.append(await ways.first(ways.way(0, STAGGER + 0.1), ways.way(1, 0.1)))
    assert len(results) + len(ways.discarded) <= 2
    began = list(ways.began)
    await trio.sleep(10)
    assert ways.began == began


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.booleans()), max_size=6),
    st.floats(0.01, 10.0),
)
def test_every_result_is_returned_or_discarded_and_every_attempt_ends(
    plan: list[tuple[float, bool]], patience: float
) -> None:
    made: list[int] = []
    ended: list[int] = []

    async def attempt(number: int, seconds: float, well: bool) -> int:
        try:
            await trio.sleep(seconds)
            if not well:
                raise OSError(number)
            made.append(number)
            return number
        finally:
            ended.append(number)

    async def run() -> None:
        discarded: list[int] = []
        result: int | None = None
        with trio.move_on_after(patience) as scope:
            result = await first_of(
                [partial(attempt, number, *step) for number, step in enumerate(plan)],
                [],
                expected=(OSError,),
                discard=discarded.append,
            )
        kept = [] if result is None else [result]
        assert sorted(made) == sorted([*kept, *discarded])
        if not scope.cancelled_caught and result is None:
            assert len(ended) == len(plan)

    trio.run(run, clock=MockClock(autojump_threshold=0.0))
