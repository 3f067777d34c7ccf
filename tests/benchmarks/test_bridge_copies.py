"""A slice of the turns in which primaries are killed and their copies promoted: real processes."""

from __future__ import annotations

from benchmarks.bridge.copies import run_turns


def test_nothing_is_lost_or_doubled_when_copies_take_over() -> None:
    outcome = run_turns(2, rate=200.0, pause=0.3, tier=True)
    assert outcome.good, outcome
    assert (outcome.turns, outcome.refused, outcome.rejoined) == (2, 2, 1)
    assert outcome.acknowledged > 100
