"""Clocks that are wrong: what is young does not go because of them."""

from __future__ import annotations

from random import Random

import pytest

from iris.spark_bridge.server.clock_check import ClockCheck, LogClock

HOUR = 3600.0


def test_nothing_is_old_for_an_hour_after_the_clock_has_jumped_ahead() -> None:
    check = ClockCheck(newest=1000.0)
    assert check.is_believed(1000.0, 5.0)
    assert check.is_believed(1031.0, 35.0), "a second of drift is no jump"
    assert not check.is_believed(1031.0 + 100 * HOUR, 36.0)
    assert not check.is_believed(1031.0 + 101 * HOUR - 1, 35.0 + HOUR)
    assert check.is_believed(1031.0 + 101 * HOUR, 36.0 + HOUR)


def test_a_clock_that_is_set_back_is_believed_at_once() -> None:
    check = ClockCheck(newest=None)
    assert check.is_believed(0.0, 0.0)
    assert not check.is_believed(10 * HOUR, 1.0)
    assert check.is_believed(2.0, 2.0)


def test_a_clock_that_jumped_ahead_and_is_set_back_a_little_is_not_believed() -> None:
    check = ClockCheck(newest=None)
    assert check.is_believed(0.0, 0.0)
    assert not check.is_believed(100 * HOUR, 1.0)
    assert not check.is_believed(100 * HOUR - 60.0, 2.0), "a jump is a minute"
    assert not check.is_believed(99 * HOUR, 3.0)
    assert check.is_believed(4.0, 4.0)


@pytest.mark.parametrize(("newest", "believed"), [(None, True), (100 * HOUR - 50, True), (100 * HOUR - 70, False)])
def test_a_bridge_that_starts_after_its_newest_event_waits_an_hour(newest: float | None, believed: bool) -> None:
    check = ClockCheck(newest)
    assert check.is_believed(100 * HOUR, 7.0) is believed
    assert check.is_believed(101 * HOUR, 7.0 + HOUR)


def test_a_log_goes_on_with_its_dates_whatever_is_done_to_the_wall_clock() -> None:
    """Dates never go back nor stand still, come back to the wall clock, and say when each of them was."""
    random = Random(1)
    for _ in range(50):
        wall_offset, monotonic = 1e6, 100.0
        clock = LogClock(None, wall_offset + monotonic, monotonic)
        dated: list[tuple[float, float]] = []
        before = 0.0
        for _ in range(60):
            passed = random.choice((0.001, 0.3, 5.0, 100.0))
            monotonic += passed
            if random.random() < 0.2:
                wall_offset += random.choice((-240.0, 240.0, -3600.0, 0.01, 30 * 24 * HOUR, -30 * 24 * HOUR))
            now = clock.read(wall_offset + monotonic, monotonic)
            assert now >= before + 0.49 * passed or now == wall_offset + monotonic
            before = now
            dated.append((now, monotonic))
            for date, moment in dated:
                assert clock.moment(date, now, monotonic) == pytest.approx(moment, abs=0.001)
            assert clock.moment(now + 60, now, monotonic) == pytest.approx(monotonic + 60)
        monotonic += 10_000 * 24 * HOUR
        clock.read(wall_offset + monotonic, monotonic)
        assert clock.read(wall_offset + monotonic + 1, monotonic + 1) == pytest.approx(
            wall_offset + monotonic + 1, abs=0.1
        )


def test_a_log_that_is_ahead_of_the_wall_clock_at_the_start_goes_on_from_its_newest_date() -> None:
    clock = LogClock(1000.0, 760.0, 50.0)
    assert clock.read(760.0, 50.0) == 1000.0
    assert clock.read(770.0, 60.0) == 1005.0
    assert clock.moment(990.0, 1005.0, 60.0) == 40.0, "10 s before the start, as far as can be known"
    assert clock.moment(1002.0, 1005.0, 60.0) == 54.0
    assert clock.read(1240.0, 530.0) == 1240.0
    assert clock.read(1250.0, 540.0) == 1250.0


@pytest.mark.parametrize("step", [-20 * HOUR, 0.0, 2 * HOUR])
def test_what_is_stored_in_the_moment_in_which_a_clock_is_found_to_be_set_was_stored_then(step: float) -> None:
    """Its date has whole microseconds, so it may be a part of one before what the clock said."""
    random = Random(1)
    for _ in range(200):
        wall, monotonic = 1.8e9 + random.random(), 1000 * random.random()
        clock = LogClock(None, wall, monotonic)
        clock.read(wall + step, monotonic + 5)
        date = int(clock.read(wall + step + 3 * HOUR, monotonic + 6) * 1_000_000) / 1_000_000
        now = clock.read(wall + step + 3 * HOUR + 1, monotonic + 7)
        assert clock.moment(date, now, monotonic + 7) == pytest.approx(monotonic + 6, abs=1e-5)
