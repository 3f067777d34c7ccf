"""Clocks that are wrong: what is young does not go because of them."""

from __future__ import annotations

import pytest

from iris.spark_bridge.server.clock_check import ClockCheck

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
