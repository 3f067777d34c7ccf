"""Verbs that run in asyncio: until SIGINT or SIGTERM, by uvloop where it is installed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final

_log: Final = logging.getLogger("iris")

Interrupted = Callable[[], Awaitable[None]]
"""Waits for the first SIGINT or SIGTERM.  Before it is called, the signal cancels the work, which is not up yet."""


def run_in_asyncio(work: Callable[[Interrupted], Awaitable[None]]) -> int:
    """Run ``work``, which serves others until it is interrupted, and return its exit status.

    The event loop is uvloop's if that is installed, else asyncio's own; the log says which (INFO).  A second signal
    ends the process at once.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop
    except ImportError:
        _log.info("event loop: asyncio's own; uvloop is not installed", extra={"cause": "event loop"})
    else:
        factory = uvloop.new_event_loop
        _log.info("event loop: uvloop", extra={"cause": "event loop"})
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(until_interrupted(work))


async def until_interrupted(work: Callable[[Interrupted], Awaitable[None]]) -> int:
    """Do work until SIGINT or SIGTERM, and return the exit status; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    come, waiting = asyncio.Event(), asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def interrupt(number: int) -> None:
        if come.is_set():
            os._exit(128 + number)
        come.set()
        if not waiting.is_set():
            task.cancel()

    async def interrupted() -> None:
        waiting.set()
        await come.wait()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, number)
    try:
        await work(interrupted)
    except asyncio.CancelledError:
        if not come.is_set():
            raise
    return 0
