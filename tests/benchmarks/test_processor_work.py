"""The program that measures small requests beside calls that take the processor."""

from __future__ import annotations

import math

from benchmarks.processor_work import MODES, Measured, loops_for, rounds


def test_each_round_has_every_mode_and_begins_with_another_one() -> None:
    turns = list(rounds(MODES, 3))
    count = len(MODES)
    assert [turns[number] for number in range(0, len(turns), count)] == list(MODES[:3])
    assert all(set(turns[number : number + count]) == set(MODES) for number in range(0, len(turns), count))


def test_requests_that_failed_are_the_slowest() -> None:
    run = Measured([0.3, math.inf, 0.1, 0.2], 1.0, 0.1)
    assert (run.percentile(0.5), run.percentile(0.75), run.percentile(1.0)) == (0.2, 0.3, math.inf)


def test_more_time_is_more_loops() -> None:
    assert loops_for(0.02) > loops_for(0.001) > 0
