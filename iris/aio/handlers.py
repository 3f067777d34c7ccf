"""Handlers of a service that are written for asyncio: each runs in a task of the event loop.

A plain ``def`` is called in the loop's thread, as with trio in the node's; one of ``thread=True`` in a worker thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, TypeVar

import trio
from msgspec import structs

from iris.aio.guest import Guest, is_serving
from iris.aio.handles import Tunnel
from iris.patterns.messages import OwnNode, Request
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel as TrioTunnel

T = TypeVar("T")


def served_by_asyncio(service: Service, guest: Guest, node: OwnNode) -> Service:
    """Return a service with the same handlers, for trio: those that are awaited run in ``guest``'s event loop.

    Their requests show ``node``.
    """
    return service._adapted(
        request=lambda handler: partial(_handle_request, guest, node, handler),
        broadcast=lambda handler: partial(_handle, guest, handler),
        tunnel=lambda handler: partial(_handle_tunnel, guest, handler),
    )


async def _handle_request(guest: Guest, node: OwnNode, handler: Callable[[Request], Any], request: Request) -> Any:
    structs.force_setattr(request, "_node", node)  # it was made for this call
    return await _handle(guest, handler, request)


async def _handle(guest: Guest, handler: Callable[[T], Any], given: T) -> Any:
    result = handler(given)
    return await _in_loop(guest, result, given) if isawaitable(result) else result


async def _handle_tunnel(guest: Guest, handler: Callable[[Tunnel], Awaitable[None] | None], inner: TrioTunnel) -> None:
    await _handle(guest, handler, Tunnel(inner, guest))


async def _in_loop(guest: Guest, awaitable: Awaitable[T], given: object) -> T:
    """Await it in a task of the event loop.  Cancelling it cancels that task, and waits for its end.

    Args:
        guest: the run of trio in the event loop.
        awaitable: what a handler has returned.
        given: what the handler was given, for the code that looks at the stack of the task: ``iris.node.blocked``.

    Raises:
        RuntimeError: it was cancelled by others, or raised what ends the event loop.
        trio.ClosedResourceError: the event loop was closed before its end.
    """
    deadline = trio.current_effective_deadline()

    eager = guest.loop.get_task_factory() is not None

    async def awaited(_given: object) -> T:
        if eager:  # the first step may run here at once, within trio: what looks for its library would find trio
            await asyncio.sleep(0)
        own = asyncio.current_task()
        guest.deadlines[own] = deadline
        is_serving.set(True)
        try:
            return await awaitable
        finally:
            del guest.deadlines[own]

    def done(_: object = None) -> None:
        if done in guest.waiting:
            guest.waiting.remove(done)
            trio.lowlevel.reschedule(waiting)

    def abort(_: object) -> trio.lowlevel.Abort:
        if not guest.loop.is_closed():
            task.cancel()
        return trio.lowlevel.Abort.FAILED

    waiting = trio.lowlevel.current_task()
    if guest.loop.is_closed():
        _drop(awaitable)
        raise trio.ClosedResourceError("the event loop was closed")
    task = guest.loop.create_task(awaited(given))
    # One turn of the event loop ends most handlers.  Trio must not go to sleep meanwhile: to wake it takes two threads.
    await trio.lowlevel.cancel_shielded_checkpoint()
    if not task.done():
        guest.waiting.add(done)
        task.add_done_callback(done)
        await trio.lowlevel.wait_task_rescheduled(abort)
        if not task.done():
            raise trio.ClosedResourceError("the event loop was closed while a handler ran")
    _drop(awaitable)  # a task that is cancelled at once never comes to it
    if task.cancelled():
        await trio.lowlevel.checkpoint_if_cancelled()
        raise RuntimeError("the handler's task was cancelled, and not by Iris")
    error = task.exception()
    if isinstance(error, SystemExit | KeyboardInterrupt):  # with which the event loop ends by itself
        raise RuntimeError(f"the handler raised {type(error).__name__}")
    return task.result()


def _drop(awaitable: Awaitable[object]) -> None:
    if iscoroutine(awaitable):
        awaitable.close()
