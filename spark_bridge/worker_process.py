"""What is done once in each Python process in which Spark runs tasks."""

from __future__ import annotations

import functools
import gc
import os


def settle_in() -> None:
    """Keep all that has been imported out of garbage collections; the first call in a process does it.

    Spark lets its Python workers collect all garbage after each task.  With the modules of Spark, Arrow and Iris, which
    stay anyway, that took 20 to 30 ms of processor time, five times as long as reading a micro-batch of one event.
    """
    _settle(os.getpid())


@functools.cache
def _settle(process: int) -> None:  # noqa: ARG001 -- once for each
    gc.collect()
    gc.freeze()
