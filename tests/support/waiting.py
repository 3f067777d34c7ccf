"""Waiting for what has no event: a condition that other tasks, threads or processes bring about."""

from __future__ import annotations

from collections.abc import Callable

import trio


async def wait_until(condition: Callable[[], object], *, within: float = 60, pause: float = 0.005) -> None:
    """Wait until ``condition`` is true, looking at it every ``pause`` seconds.

    Raises:
        TooSlowError: it was not within so many seconds.
    """
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110 -- there is no event
            await trio.sleep(pause)
