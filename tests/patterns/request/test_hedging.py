"""Hedged requests: the first reply counts, second ones are few, and whatever fails is the first one's failure."""

from __future__ import annotations

from typing import Any, Final

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.kernel.errors import MemberLost, NotAllowed, NotSent, RemoteError
from iris.patterns.request.hedging import Hedging

ERRORS: Final = [NotSent("a"), MemberLost("b"), RemoteError("c", "d"), NotAllowed("e")]


def always() -> bool:
    return True


class Members:
    """Members that answer after so many seconds each, or fail with an error."""

    def __init__(self, *plans: tuple[float, Any]) -> None:
        self.plans = plans
        self.asked = 0
        self.cancelled = 0

    async def ask(self) -> Any:
        index = self.asked
        self.asked += 1
        seconds, outcome = self.plans[index]
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def test_where_nobody_else_can_be_asked_nothing_is_counted_or_spent(autojump_clock: MockClock) -> None:
    hedging = Hedging()
    asked: list[int] = []

    def nobody() -> bool:
        asked.append(members.asked)
        return False

    for _ in range(50):
        members = Members((1.0, "first"))
        assert await hedging.ask(members.ask, 0.1, nobody) == "first"
        assert members.asked == 1
    assert asked == [1] * 50
    assert (hedging.requests, hedging.second, hedging.won) == (50, 0, 0)
    assert await hedging.ask(Members((1.0, "first"), (0.1, "second")).ask, 0.1, always) == "second", "one was saved up"
    assert hedging.second == 1


async def test_cancelling_it_cancels_both_with_one_exception(autojump_clock: MockClock) -> None:
    members = Members((1.0, "first"), (1.0, "second"))
    with trio.CancelScope() as scope:
        scope.deadline = trio.current_time() + 0.5
        with pytest.raises(trio.Cancelled):
            await Hedging().ask(members.ask, 0.1, always)
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert members.cancelled == 2


def expected(plans: tuple[tuple[float, Any], tuple[float, Any]], delay: float) -> tuple[float, Any, int]:
    """Return when a hedged request ends, how, and how many members it has asked."""
    (first, one), (second, other) = plans
    if first <= delay:
        return first, one, 1
    ends = sorted([(first, 0, one), (delay + second, 1, other)])
    for moment, _, outcome in ends:
        if not isinstance(outcome, Exception):
            return moment, outcome, 2
    return ends[-1][0], one, 2


@settings(max_examples=60)
@given(
    st.tuples(
        st.tuples(st.sampled_from([0.05, 0.3, 0.72]), st.sampled_from(["first", *ERRORS])),
        st.tuples(st.sampled_from([0.01, 0.22, 0.91]), st.sampled_from(["second", *ERRORS])),
    )
)
def test_of_two_members_the_first_reply_counts_and_otherwise_the_first_ones_error(
    plans: tuple[tuple[float, Any], tuple[float, Any]],
) -> None:
    async def main() -> None:
        members, hedging = Members(*plans), Hedging()
        moment, outcome, asked = expected(plans, 0.1)
        began = trio.current_time()
        try:
            result = await hedging.ask(members.ask, 0.1, always)
        except Exception as error:  # noqa: BLE001 -- compared with what is expected
            result = error
        assert result is outcome
        assert trio.current_time() - began == pytest.approx(moment)
        assert members.asked == asked == 1 + hedging.second
        assert hedging.won == (outcome == "second")
        ended = sum(end <= moment + 1e-9 for end in (plans[0][0], 0.1 + plans[1][0])[:asked])
        assert members.cancelled == asked - ended

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_second_requests_never_exceed_their_share_however_late_replies_are(autojump_clock: MockClock) -> None:
    hedging = Hedging()

    async def late() -> str:
        await trio.sleep(1)
        return "late"

    for number in range(1, 200):
        assert await hedging.ask(late, 0.01, always) == "late"
        assert hedging.second <= 1 + 0.05 * number
        assert hedging.requests == number
    assert hedging.second >= 9, "and they are used"


async def test_a_bug_in_what_is_called_is_not_taken_for_a_members_failure(autojump_clock: MockClock) -> None:
    async def broken() -> str:
        await trio.sleep(0.001)
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await Hedging().ask(broken, 1, always)
    assert caught.group_contains(ZeroDivisionError)
