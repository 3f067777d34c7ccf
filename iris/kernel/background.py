"""Tasks that serve a block of code and end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose tasks are cancelled when the block ends, however it ends.

    What the block raises comes out as it is and not in a group, so that users of ``open_node`` can write a plain
    ``except``.  When a task fails, its error ends the block and comes out the same way; several at once come as a
    group.  A group that the block itself raises stays one.
    """
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        (only,) = group.exceptions
        context = only.__context__
        try:
            raise only
        finally:
            only.__context__ = context
            del only, group
