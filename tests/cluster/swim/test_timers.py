"""Timers: what is due at which time."""

from __future__ import annotations

import math
from functools import partial

from iris.cluster.swim.context import Timers


def test_what_is_due_comes_in_the_order_of_time_then_of_asking() -> None:
    timers = Timers()
    done: list[str] = []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        timers.at(when, partial(done.append, name))
    assert timers.deadline == 1.0
    while (action := timers.pop(2.0)) is not None:
        action()
    assert done == ["a", "b", "c"]
    assert timers.deadline == 3.0
    assert len(timers) == 1


def test_nothing_is_due_never() -> None:
    timers = Timers()
    assert timers.deadline == math.inf
    assert timers.pop(1e9) is None


def test_postponing_moves_everything() -> None:
    timers = Timers()
    timers.at(1.0, lambda: None)
    timers.at(2.0, lambda: None)
    timers.postpone(5.0)
    assert timers.deadline == 6.0
    assert timers.pop(5.9) is None


def test_what_is_cancelled_is_neither_due_nor_called() -> None:
    timers = Timers()
    done: list[str] = []
    first = timers.at(1.0, partial(done.append, "a"))
    timers.at(2.0, partial(done.append, "b"))
    first.cancel()
    assert timers.deadline == 2.0
    assert timers.pop(1.5) is None
    while (action := timers.pop(3.0)) is not None:
        action()
    assert done == ["b"]
    first.cancel()
    assert timers.deadline == math.inf
