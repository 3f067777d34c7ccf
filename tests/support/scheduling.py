"""Trio's scheduler, made repeatable: the one place that touches its private switch."""

from __future__ import annotations

import random
from typing import Final

import trio

_RUN: Final = trio._core._run


def seed_scheduler(seed: int) -> None:
    """Have trio draw the order of runnable tasks from ``seed``, in every run from now on."""
    assert hasattr(_RUN, "_ALLOW_DETERMINISTIC_SCHEDULING"), "trio has lost its switch for repeatable runs"
    assert isinstance(_RUN._r, random.Random)
    _RUN._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # pyright: ignore[reportConstantRedefinition]
    _RUN._r.seed(seed)
