"""Trio's scheduler, made repeatable, and its virtual clock where threads are at work."""

from __future__ import annotations

import math
import random
from typing import Final

import trio
from trio.testing import MockClock

_RUN: Final = trio._core._run


def seed_scheduler(seed: int) -> None:
    """Have trio draw the order of runnable tasks from ``seed``, in every run from now on."""
    assert hasattr(_RUN, "_ALLOW_DETERMINISTIC_SCHEDULING"), "trio has lost its switch for repeatable runs"
    assert isinstance(_RUN._r, random.Random)
    _RUN._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # pyright: ignore[reportConstantRedefinition]
    _RUN._r.seed(seed)


def let_threads_run(clock: MockClock) -> None:
    """Have time pass as it does: a worker thread looks idle, and its time is not to be jumped over."""
    clock.autojump_threshold, clock.rate = math.inf, 1.0
