"""The time that counts as the gap after a kill."""

from __future__ import annotations

import math

import pytest

from benchmarks.failover import Failover, longest_gap


@pytest.mark.parametrize(
    ("answers", "gap"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0], 1.0),
        ([0.0, 1.75, 2.0, 2.75, 3.0, 4.0], 1.75),  # under way when it was killed
        ([0.0, 0.9, 1.0, 1.5, 3.5, 4.0], 2.0),  # the first answer after the window counts
        ([0.0, 0.1, 0.9, 1.1, 2.9, 3.1, 9.0], 1.8),  # what comes later does not
        ([0.0, 0.9, 1.0], math.inf),  # no answer ever
        ([0.0, 0.9, 1.5, 2.5], math.inf),  # nor to the last request
        ([], math.inf),
    ],
)
def test_the_gap_is_the_longest_between_two_answers_around_the_kill(answers: list[float], gap: float) -> None:
    assert longest_gap(answers, 1.0, 3.0) == pytest.approx(gap)


def test_a_share_of_the_gaps_is_below_a_percentile() -> None:
    shown = Failover(kills=1, asked=1, errors={}, usual=0.0, gaps=tuple(float(number) for number in range(1, 101)))
    assert (shown.percentile(0.5), shown.percentile(0.99), shown.percentile(1.0)) == (50.0, 99.0, 100.0)
    assert Failover(kills=1, asked=1, errors={}, usual=0.0, gaps=(7.0,)).percentile(0.99) == 7.0
