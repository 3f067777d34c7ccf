"""Processor time of some tasks among others of the same process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import final

import trio

_MARKED: ContextVar[bool] = ContextVar("marked", default=False)


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Mark this task and all that are begun within the block, and by those in turn."""
    token = _MARKED.set(True)
    try:
        yield
    finally:
        _MARKED.reset(token)


def unmark() -> None:
    """Take the mark from this task, and from those that it will begin."""
    _MARKED.set(False)


@final
class TaskTime(trio.abc.Instrument):
    """Adds up the processor time of the steps of marked tasks.

    It is the time of the thread: what other processes and other tasks take does not count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task begins to run."""
        self._began = time.thread_time() if task.context.get(_MARKED, False) else None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 -- always the one that began
        """It stops."""
        if self._began is not None:
            self.seconds += time.thread_time() - self._began
            self._began = None
