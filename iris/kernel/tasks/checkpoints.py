"""Checkpoints: an operation lets other tasks run also when it raises, so no loop that tries again stops the node.

What raises before it has waited for anything, as a request to nobody, would otherwise come back at once for ever: in
one task's loop no other task runs, the node answers no ping, and a cancel scope around it never ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar, cast

import trio

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


async def checkpoint_after_error() -> None:
    """Let others run before an error is raised; in a scope that is cancelled that ends the caller, and not the error.

    Called from no task of trio's, it does nothing: there the error says what to do.
    """
    if trio.lowlevel.in_trio_task():
        await trio.lowlevel.checkpoint()


def checkpointed(function: F) -> F:
    """Make an async function a checkpoint when it raises.  What is called for each message has that written out."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except Exception:
            await checkpoint_after_error()
            raise

    return cast("F", call)
