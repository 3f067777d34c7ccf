"""How long a piece of work holds an event loop up: in processor time, without what the collector of garbage takes.

The collector looks at all that a process of tests has, of which a program has nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Final

MOST_HELD: Final = 150.0
"""ms that a step may take in a test.  The longest takes 25 on a quiet machine, and twice that beside other work; what
does all at once takes seconds."""


def lasted(call: Callable[[], object]) -> float:
    """Return how long a call takes of the processor, in ms."""
    return longest(call() for _ in range(1))


def longest(steps: Iterator[object]) -> float:
    """Return how long the longest of some steps takes of the processor, in ms."""
    most = 0.0
    collects = gc.isenabled()
    gc.disable()
    try:
        while True:
            began = time.thread_time()
            ended = next(steps, steps)
            most = max(most, (time.thread_time() - began) * 1e3)
            if ended is steps:
                return most
    finally:
        if collects:
            gc.enable()
