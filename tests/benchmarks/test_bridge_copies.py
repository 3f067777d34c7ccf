"""A slice of the turns in which primaries are killed and their copies promoted: real processes."""

from __future__ import annotations

import pytest

from benchmarks.bridge.copies import run_turns


@pytest.mark.parametrize("turns", [1, pytest.param(2, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_when_copies_take_over(turns: int) -> None:
    outcome = run_turns(turns, rate=200.0, pause=0.3, tier=turns > 1)
    assert outcome.good, outcome
    assert (outcome.turns, outcome.refused, outcome.rejoined) == (turns, turns, turns - 1)
    assert outcome.acknowledged > 100
