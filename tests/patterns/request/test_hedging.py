"""Hedged requests: the first reply counts, second ones are few, and whatever fails is the first one's failure."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.errors import MemberLost, NoSuchCluster, RequestTimeout
from iris.patterns.request.hedging import Hedging


def always() -> bool:
    return True


class Members:
    """Members that answer after so many seconds each, or fail with an error."""

    def __init__(self, *plans: tuple[float, object]) -> None:
        self.plans = plans
        self.asked = 0
        self.cancelled = 0

    async def ask(self) -> object:
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


async def test_a_reply_in_time_needs_no_second_request(autojump_clock: MockClock) -> None:
    members = Members((0.05, "first"))
    assert await Hedging().ask(members.ask, 0.1, always) == "first"
    assert members.asked == 1


@pytest.mark.parametrize(("second", "reply", "won"), [(0.05, "second", 1), (5.0, "first", 0)])
async def test_of_two_the_first_reply_counts_and_the_other_is_cancelled(
    autojump_clock: MockClock, second: float, reply: str, won: int
) -> None:
    members = Members((1.0, "first"), (second, "second"))
    hedging = Hedging()
    assert await hedging.ask(members.ask, 0.1, always) == reply
    assert trio.current_time() == pytest.approx(0.15 if won else 1.0)
    assert (members.asked, members.cancelled) == (2, 1)
    assert (hedging.second, hedging.won) == (1, won)


@pytest.mark.parametrize(
    ("plans", "error"),
    [
        (((0.05, MemberLost("one")),), MemberLost),
        (((0.5, MemberLost("one")), (0.1, NoSuchCluster("none"))), MemberLost),
        (((0.5, RequestTimeout("late")), (9.0, MemberLost("two"))), RequestTimeout),
    ],
)
async def test_if_all_fail_it_is_with_the_first_ones_error(
    autojump_clock: MockClock, plans: tuple[tuple[float, object], ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await Hedging().ask(Members(*plans).ask, 0.1, always)


async def test_one_that_fails_leaves_the_other_its_chance(autojump_clock: MockClock) -> None:
    assert await Hedging().ask(Members((0.5, MemberLost("one")), (1.0, "second")).ask, 0.1, always) == "second"
    assert await Hedging().ask(Members((1.0, "first"), (0.1, MemberLost("two"))).ask, 0.1, always) == "first"


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


async def test_second_requests_are_five_per_cent_at_most(autojump_clock: MockClock) -> None:
    hedging = Hedging()
    for _ in range(2000):
        await hedging.ask(Members((1.0, "slow"), (2.0, "slow")).ask, 0.1, always)
    assert 95 <= hedging.second <= 101


async def test_cancelling_it_cancels_both_with_one_exception(autojump_clock: MockClock) -> None:
    members = Members((1.0, "first"), (1.0, "second"))
    with trio.CancelScope() as scope:
        scope.deadline = trio.current_time() + 0.5
        with pytest.raises(trio.Cancelled):
            await Hedging().ask(members.ask, 0.1, always)
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert members.cancelled == 2
