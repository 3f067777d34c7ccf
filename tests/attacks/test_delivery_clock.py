"""The clock of a log under steps of the wall clock: dates grow, and each is known for when it was read."""

from __future__ import annotations

import random

import pytest

from iris.spark_bridge.server.clock_check import LogClock

START = 1_800_000_000.0


@pytest.mark.parametrize("seed", range(30))
def test_dates_grow_and_delays_end_when_they_are_over_whatever_is_set(seed: int) -> None:
    rng = random.Random(seed)
    wall, monotonic = START, 50.0
    newest = rng.choice([None, START - 1000, START + 300, START - 0.001])
    clock = LogClock(newest, wall, monotonic)
    read: list[tuple[float, float]] = []
    for _ in range(400):
        step = rng.choice([0.0, 0.0, 0.0, 0.0, rng.uniform(-5000, 5000), rng.uniform(-0.5, 0.5), 1e-4])
        passed = rng.choice([1e-4, 0.01, 1.0, 30.0, rng.uniform(0, 2000)])
        wall, monotonic = wall + passed + (step if rng.random() < 0.1 else 0.0), monotonic + passed
        date = clock.read(wall, monotonic)
        if read:
            assert date > read[-1][0], "dates neither go back nor stand still"
        read.append((date, monotonic))
        for stored, at in read[-20:]:
            moment = clock.moment(stored, date, monotonic)
            assert moment == pytest.approx(at, abs=1e-3)
            assert moment <= monotonic + 1e-6, "nothing was stored in the time to come"
        delay = rng.uniform(0.1, 100)
        due = clock.moment(date + delay, date, monotonic)
        assert due == pytest.approx(monotonic + delay, abs=1e-3)


@pytest.mark.parametrize("behind", [0.5, 5.0, 4000.0])
def test_after_a_start_with_a_clock_that_is_behind_the_log_what_was_stored_before_is_in_the_past(behind: float) -> None:
    clock = LogClock(START, START - behind, 10.0)
    first = clock.read(START - behind, 10.0)
    assert first >= START
    for passed in (1.0, 100.0, 5000.0):
        date = clock.read(START - behind + passed, 10.0 + passed)
        assert clock.moment(START - 60, date, 10.0 + passed) <= 10.0
        assert clock.moment(START, date, 10.0 + passed) <= 10.0 + 1e-6
    assert clock.read(START + 10_000, 10.0 + behind + 10_000) == pytest.approx(START + 10_000, abs=1.0)
