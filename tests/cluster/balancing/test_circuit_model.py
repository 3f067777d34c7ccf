"""Circuits and allowances beside plain models of them: any sequence of events, any time in between."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iris.cluster.balancing.circuit_breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, CircuitBreaker
from iris.cluster.balancing.retry_budget import RetryBudget

EVENTS: Final = st.lists(
    st.tuples(st.sampled_from(["failed", "failed", "failed", "answered", "undecided", "trial"]), st.floats(0, 40)),
    max_size=80,
)


class PlainCircuit:
    """The same in the words of the page: a count, a number of trials that failed, a time."""

    def __init__(self) -> None:
        self.state = "closed"
        self.in_a_row = 0
        self.failed_trials = 0
        self.until = 0.0

    def handle(self, event: str, now: float) -> bool:
        before = self.state
        opened_anew = False
        if event == "answered":
            self.state, self.in_a_row, self.failed_trials = "closed", 0, 0
        elif event == "undecided" and self.state == "half open":
            self.state, self.until = "open", now
        elif event == "failed":
            self.in_a_row += 1
            if self.state == "half open":
                self.failed_trials += 1
                opened_anew = True
            elif self.state == "closed" and self.in_a_row >= FAILURES:
                opened_anew = True
            if opened_anew:
                self.state = "open"
                self.until = now + min(FIRST_PAUSE * 2**self.failed_trials, LONGEST_PAUSE)
        return self.state != before or opened_anew


@given(EVENTS)
def test_a_circuit_does_what_its_page_says_whatever_happens(events: list[tuple[str, float]]) -> None:
    circuit, plain = CircuitBreaker(), PlainCircuit()
    now = 0.0
    for event, pause in events:
        now += pause
        if event == "trial":
            if plain.state == "open" and now >= plain.until:
                circuit.begin_trial()
                plain.state = "half open"
        else:
            match event:
                case "failed":
                    changed = circuit.failed(now)
                case "answered":
                    changed = circuit.answered()
                case _:
                    changed = circuit.undecided(now)
            assert changed == plain.handle(event, now), (event, plain.state)
        assert circuit.state.value == plain.state
        if plain.state == "open":
            assert circuit.until == plain.until
            assert circuit.until - now <= LONGEST_PAUSE


@pytest.mark.parametrize("state", ["closed", "open", "half open"])
def test_its_repr_says_how_the_member_is_treated(state: str) -> None:
    circuit = CircuitBreaker()
    if state != "closed":
        for _ in range(FAILURES):
            circuit.failed(0.0)
    if state == "half open":
        circuit.begin_trial()
    assert f"<CircuitBreaker {state}," in repr(circuit)


# -- allowance -----------------------------------------------------------------------------------------------


class PlainAllowance:
    """The same with exact numbers, one small step at a time."""

    def __init__(self, share: Fraction, rate: Fraction, reserve: Fraction) -> None:
        self.share, self.rate, self.reserve = share, rate, reserve
        self.tokens = reserve
        self.requests = 0
        self.now: Fraction | None = None

    def take(self, requests: int, now: Fraction, *, forced: bool) -> bool:
        elapsed = Fraction(0) if self.now is None else max(Fraction(0), now - self.now)
        self.tokens = min(self.reserve, self.tokens + self.share * (requests - self.requests) + self.rate * elapsed)
        self.requests, self.now = requests, now
        if self.tokens < 1 and not forced:
            return False
        self.tokens = max(-self.reserve, self.tokens - 1)
        return True


QUARTERS: Final = st.integers(-20, 200).map(lambda number: Fraction(number, 4))
"""Pauses in seconds; a clock may go back."""


@given(
    st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1)]),
    st.sampled_from([Fraction(0), Fraction(1), Fraction(4)]),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 9), QUARTERS, st.booleans()), max_size=60),
)
def test_an_allowance_counts_as_exact_numbers_do(
    share: Fraction, rate: Fraction, reserve: int, steps: list[tuple[int, Fraction, bool]]
) -> None:
    allowance = RetryBudget(share=float(share), rate=float(rate), reserve=reserve)
    plain = PlainAllowance(share, rate, Fraction(reserve))
    requests, now, granted, refused = 0, Fraction(0), 0, 0
    for more, pause, forced in steps:
        requests += more
        now += pause
        expected = plain.take(requests, now, forced=forced)
        assert allowance.spend(requests, float(now), forced=forced) is expected
        assert allowance.tokens == float(plain.tokens), "quarters are exact"
        granted += expected
        refused += not expected
        assert (allowance.taken, allowance.refused) == (granted, refused)
        assert f"{granted} taken, {refused} refused" in repr(allowance)


@given(st.integers(2, 50), st.integers(1, 1000))
def test_when_everything_fails_repeats_stay_the_share_they_are_allowed(one_in: int, requests: int) -> None:
    """Every request fails and asks for a repeat, and every repeat fails too: the load is what it may be at most."""
    share = 1 / one_in
    allowance = RetryBudget(share=share, rate=0.0, reserve=5)
    sent = 0
    for _ in range(requests):
        sent += 1
        while allowance.spend(sent, 0.0):
            sent += 1
    assert sent <= (requests + 5) / (1 - share) + 1
    assume(requests > 100)
    assert sent >= requests / (1 - share) - 2
