"""Worker set-up: what runs once in each Python process in which Spark runs tasks."""

from __future__ import annotations

import gc
import os
from typing import Final

_TIMES: Final = 2
"""A first task imports more after its start, as Arrow does pandas: that took 12 ms in each task that followed."""

_settled: dict[int, int] = {}


def settle_in() -> None:
    """Keep all that has been imported out of garbage collections; the first two calls in a process do it.

    Spark lets its Python workers collect all garbage after each task.  With the modules of Spark, Arrow and Iris, which
    stay anyway, that took 20 to 30 ms of processor time, five times as long as reading a micro-batch of one event.
    """
    process = os.getpid()  # a child of one that has settled in does so, too
    times = _settled.get(process, 0)
    if times < _TIMES:
        _settled[process] = times + 1
        gc.collect()
        gc.freeze()
