"""Background nursery: tasks that serve a block of code and end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn

import trio

import iris.kernel.tasks.fork_warning  # noqa: F401 -- it registers itself  # pyright: ignore[reportUnusedImport]
from iris.kernel.tasks.interrupts import protect_package
from iris.kernel.unexpected import note_unexpected


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose tasks are cancelled when the block ends, however it ends, and not before.

    Cancelling around the block reaches the block and not its tasks: they still serve what the block does on its way
    out, a goodbye for example, which must be shielded and bounded.

    What the block raises comes out as it is and not in a group, so that users of ``open_node`` can write a plain
    ``except``.  When a task fails, its error ends the block and comes out the same way; several at once come as a
    group.  A group that the block itself raises stays one.  What a task raises and Iris did not expect says what to
    report.
    """
    protect_package()  # also what was loaded since: what tasks begin with has nothing around it
    with _alone():
        async with trio.open_nursery() as around:
            nursery: trio.Nursery = await around.start(_host)
            # Cancelled while the host started, its nursery takes no tasks any more: the block must not begin.
            await trio.lowlevel.checkpoint_if_cancelled()
            nursery.cancel_scope.shield = True  # not in the host: cancelled before it starts, it could not be reached
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()


async def _host(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    try:
        with _alone():
            async with trio.open_nursery() as nursery:
                task_status.started(nursery)
                await trio.sleep_forever()
    except BaseException as error:  # of a task: those of the block are its own affair
        note_unexpected(error)
        raise


@contextmanager
def _alone() -> Iterator[None]:
    """Take a single error out of the group that a nursery has put it in."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        _raise(group.exceptions[0])


def _raise(only: BaseException) -> NoReturn:
    context = only.__context__
    try:
        raise only
    finally:
        only.__context__ = context
        del only
