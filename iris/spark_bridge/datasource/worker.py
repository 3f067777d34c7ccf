"""Worker set-up: what each Python process that Spark starts for the data source does at its beginning and its end."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from iris.kernel.errors import IrisError

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


@contextmanager
def errors_alone() -> Iterator[None]:
    """Have Spark show an error of Iris by itself, without the traceback of this process; also a decorator.

    Its message says what is wrong and what to do, and where in here it arose helps nobody.  Spark asks the environment
    when it writes an error down, and ends the process then, so the tracebacks of other errors stay as they are.
    """
    try:
        yield
    except IrisError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
