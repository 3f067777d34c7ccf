"""A slice of ``make simulate``: every pattern, two sites and a bridge, under faults."""

from __future__ import annotations

import time

import pytest

from benchmarks.simulation.workload import mixed
from iris.testing.faults import CHAOS, Schedule
from iris.testing.running import run_once


def check_seeds(seeds: range, hours: float) -> None:
    for seed in seeds:
        run = run_once(mixed, Schedule(seed=seed, seconds=hours * 3600), CHAOS)
        assert run.error is None, (
            f"python -m benchmarks.simulation --first {seed} --seeds 1 --hours {hours}: {run.error!r}"
        )
        assert run.trace.frames > 1000 * hours


def test_three_minutes_with_faults_break_nothing() -> None:
    check_seeds(range(2), 0.05)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_twenty_hours_with_faults_break_nothing() -> None:
    began = time.process_time()
    check_seeds(range(20), 1.0)
    assert time.process_time() - began < 1200, "six minutes on a quiet machine"
