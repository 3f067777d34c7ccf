"""Adaptive concurrency: it finds the point from which on more at the same time gains nothing."""

from __future__ import annotations

import pytest

from iris.patterns.service.concurrency_limit import AdaptiveConcurrency


def drive(
    adaptive: AdaptiveConcurrency, windows: int, capacity: int, *, demand: int = 10_000, base: float = 0.01
) -> None:
    """Handlers share ``capacity``: beyond it each takes longer in proportion."""
    for _ in range(windows * 300):
        running = min(adaptive.limit, demand)
        adaptive.ended(base * max(1.0, running / capacity), running)


@pytest.mark.parametrize("capacity", [1, 4, 30, 120])
def test_the_limit_settles_where_more_gains_nothing(capacity: int) -> None:
    adaptive = AdaptiveConcurrency(1000)
    drive(adaptive, 200, capacity)
    assert capacity <= adaptive.limit <= 2.5 * capacity + 1


def test_places_that_are_not_needed_bring_no_more_of_them() -> None:
    adaptive = AdaptiveConcurrency(1000)
    drive(adaptive, 100, 1000, demand=5)
    assert adaptive.limit == 20


def test_a_service_that_became_slower_for_good_gets_its_places_back() -> None:
    adaptive = AdaptiveConcurrency(40)
    drive(adaptive, 20, 10_000)
    low = min(adaptive.ended(0.05, adaptive.limit) for _ in range(1000))
    drive(adaptive, 100, 10_000, base=0.05)
    assert low < 40, "it takes it for too much at first"
    assert adaptive.limit == 40


def test_handlers_that_take_no_time_at_all_are_no_trouble() -> None:
    adaptive = AdaptiveConcurrency(40)
    for _ in range(10_000):
        adaptive.ended(0.0, adaptive.limit)
    assert adaptive.limit >= 20
