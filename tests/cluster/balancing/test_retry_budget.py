"""Extra requests: a share of all, some per second, some at once, and never more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.balancing.retry_budget import RetryBudget


def test_what_was_kept_is_there_at_once_and_no_more() -> None:
    allowance = RetryBudget(share=0.1, rate=0, reserve=5)
    assert [allowance.spend(0, 0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert (allowance.taken, allowance.refused) == (5, 2)


def test_requests_bring_their_share_and_time_its_rate() -> None:
    allowance = RetryBudget(share=0.1, rate=2, reserve=5)
    for _ in range(5):
        assert allowance.spend(0, 0.0)
    assert not allowance.spend(9, 0.0)
    assert allowance.spend(10, 0.0)
    assert not allowance.spend(10, 0.4)
    assert allowance.spend(10, 0.6)


def test_what_is_forced_is_paid_by_those_that_come_later() -> None:
    allowance = RetryBudget(share=0.1, rate=0, reserve=2)
    assert all(allowance.spend(0, 0.0, forced=True) for _ in range(100))
    assert allowance.tokens == -2
    assert not allowance.spend(29, 0.0)
    assert allowance.spend(30, 0.0)


def test_a_clock_that_stands_or_goes_back_brings_nothing() -> None:
    allowance = RetryBudget(share=0, rate=10, reserve=1)
    assert allowance.spend(0, 5.0)
    assert not allowance.spend(0, 5.0)
    assert not allowance.spend(0, 4.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 2), st.booleans()), max_size=200))
def test_in_the_long_run_extra_requests_are_the_share_plus_the_rate(steps: list[tuple[int, float, bool]]) -> None:
    allowance = RetryBudget(share=0.1, rate=3, reserve=20)
    requests, now, forced = 0, 0.0, 0
    for more, pause, force in steps:
        requests += more
        now += pause
        forced += force
        allowance.spend(requests, now, forced=force)
        assert -20 <= allowance.tokens <= 20
    assert allowance.taken - forced <= 20 + 0.1 * requests + 3 * now + 1e-6
