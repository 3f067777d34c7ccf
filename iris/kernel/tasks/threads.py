"""Threads: what blocks runs in one of trio's; where the machine has none left, it waits until there is one.

A program may be at a limit for a while (``pids.max`` of a container, ``ulimit -u``), and what a node does in threads is
worth waiting for: a file that it looks at, a name that it looks up, a handler of its user.  None of it is worth the
node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Final, Protocol, TypeVar

import trio

T = TypeVar("T")

thread_deadline: Final[ContextVar[float]] = ContextVar("thread_deadline", default=inf)
"""Deadline of the handler that a thread runs, on the clock of ``time.monotonic``: each trio run has its own."""

_log: Final = logging.getLogger("iris")

_SHORTEST: Final = 0.01
_LONGEST: Final = 1.0
"""Seconds between attempts to have a thread: the first pause, and the longest of the doubled ones."""

_wanting: Final[trio.lowlevel.RunVar[bool]] = trio.lowlevel.RunVar("iris wants threads", default=False)


@contextmanager
def deadline_for_threads() -> Iterator[None]:
    """Show threads that begin in the block the deadline of this task, as ``thread_deadline``."""
    token = thread_deadline.set(time.monotonic() + (trio.current_effective_deadline() - trio.current_time()))
    try:
        yield
    finally:
        thread_deadline.reset(token)


class ThreadRunner(Protocol):
    """Runs something that blocks outside of the thread of trio, and returns what it returns."""

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Run it; not called before there is a thread for it."""
        ...


async def run_in_thread(
    call: Callable[..., T],
    *args: object,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
    else_here: bool = False,
) -> T:
    """Run a call as ``trio.to_thread.run_sync`` does; wait if no thread can be started, which is logged once.

    It can be cancelled for as long as ``call`` has not begun.

    Args:
        call: the function to run.
        args: the arguments of ``call``.
        abandon_on_cancel: see trio.
        limiter: see trio.
        else_here: run it in this thread if no other one can be started: for a call that ends within milliseconds,
            and must not be waited for.
    """
    began = False

    def begin() -> T:
        nonlocal began
        began = True
        return call(*args)

    pause = _SHORTEST
    while True:
        try:
            result = await trio.to_thread.run_sync(begin, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        except RuntimeError as error:
            if began:  # the call's own error
                raise
            if else_here:
                return call(*args)
            if not _wanting.get():
                _wanting.set(True)
                _log.warning(
                    "no thread can be started (%s): what needs one waits, and is tried again; raise the limit of "
                    "processes (ulimit -u, pids.max, TasksMax of systemd)",
                    error,
                    extra={"cause": "threads"},
                )
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        else:
            _wanting.set(False)
            return result
