"""Handlers of a service that are written for asyncio: each runs in a task of the event loop.

A plain ``def`` is called in the loop's thread, as with trio in the node's; one of ``thread=True`` in a worker thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import trio

from iris.aio.guest import Guest
from iris.aio.handles import Tunnel
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel as TrioTunnel

T = TypeVar("T")


def served_by_asyncio(service: Service, guest: Guest) -> Service:
    """Return a service with the same handlers, for trio: those that are awaited run in ``guest``'s event loop."""
    if not isinstance(service, Service):  # pyright: ignore[reportUnnecessaryIsInstance]
        return service  # joining says what is wrong with it
    return service._adapted(
        request=lambda handler: partial(_handle, guest, handler),
        broadcast=lambda handler: partial(_handle, guest, handler),
        tunnel=lambda handler: partial(_handle_tunnel, guest, handler),
    )


async def _handle(guest: Guest, handler: Callable[[T], Any], given: T) -> Any:
    result = handler(given)
    return await _in_loop(guest, result) if isawaitable(result) else result


async def _handle_tunnel(guest: Guest, handler: Callable[[Tunnel], Awaitable[None] | None], inner: TrioTunnel) -> None:
    await _handle(guest, handler, Tunnel(inner, guest))


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _in_loop(guest: Guest, awaitable: Awaitable[T]) -> T:
    """Await it in a task of the event loop.  Cancelling it cancels that task, and waits for its end."""
    task: asyncio.Task[T] = guest.loop.create_task(_awaited(awaitable))
    waiting: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def done(_: object) -> None:
        if waiting is not None:
            trio.lowlevel.reschedule(waiting)

    def abort(_: object) -> trio.lowlevel.Abort:
        nonlocal waiting
        if guest.loop.is_closed():  # and never comes to it again
            waiting = None
            return trio.lowlevel.Abort.SUCCEEDED
        task.cancel()
        return trio.lowlevel.Abort.FAILED

    task.add_done_callback(done)
    guest.deadlines[task] = trio.current_effective_deadline()
    try:
        await trio.lowlevel.wait_task_rescheduled(abort)
    finally:
        del guest.deadlines[task]
    if task.cancelled():
        await trio.lowlevel.checkpoint_if_cancelled()
        raise RuntimeError("the handler's task was cancelled, and not by Iris")
    return task.result()
