"""Closing of doors: it comes to its end also where the program that leaves the block is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def to_the_end(closing: Coroutine[object, object, None]) -> None:
    """Run what closes a door.  Cancelled meanwhile, it is run to its end all the same, and cancelled then.

    Raises:
        CancelledError: it was cancelled meanwhile.
    """
    task = asyncio.ensure_future(closing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
