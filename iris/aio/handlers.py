"""Handlers of a service that are written for asyncio: each runs in a task of the event loop.

A request is served by such a task from its beginning to its reply, unless the service has handlers that run in threads
or processes, or keeps outcomes: then a worker of trio's waits for the task, as it does for broadcasts and tunnels.

A plain ``def`` is called in the loop's thread, as with trio in the node's; one of ``thread=True`` in a worker thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import Context
from functools import partial
from inspect import isawaitable, iscoroutine
from itertools import count
from math import inf
from types import coroutine
from typing import Any, Final, TypeVar, final

import trio
from msgspec import structs

from iris.aio.guest import Guest, is_serving
from iris.aio.handles import Tunnel
from iris.kernel.tasks import Wakeup
from iris.patterns.messages import OwnNode, Request
from iris.patterns.request import Deadlines
from iris.patterns.service import CutOff, OutsideWork, RequestHandler, Service
from iris.patterns.tunnel import Tunnel as TrioTunnel

T = TypeVar("T")


def served_by_asyncio(service: Service, guest: Guest, node: OwnNode) -> Service:
    """Return a service with the same handlers, for trio: those that are awaited run in ``guest``'s event loop.

    Their requests show ``node``.
    """
    return service._adapted(
        request=lambda handler: _RequestHandler(guest, node, handler),
        broadcast=lambda handler: partial(_handle, guest, handler),
        tunnel=lambda handler: partial(_handle_tunnel, guest, handler),
        outside=LoopTasks(guest),
    )


@final
class _RequestHandler:
    """A handler of requests that show ``node``."""

    __slots__ = ("_guest", "_handler", "_node")

    def __init__(self, guest: Guest, node: OwnNode, handler: RequestHandler) -> None:
        self._guest = guest
        self._node = node
        self._handler = handler

    def __call__(self, request: Request) -> Awaitable[Any]:
        structs.force_setattr(request, "_node", self._node)  # it was made for this call
        return _handle(self._guest, self._handler, request)

    def outside(self, request: Request) -> Any:
        """See ``OutsideHandler``."""
        structs.force_setattr(request, "_node", self._node)
        return self._handler(request)


@final
class LoopTask:
    """A task of the event loop that serves a request; see ``OutsideTask``.

    Attributes:
        task: the task.  None before it is made.
    """

    __slots__ = ("_deadline", "_ends", "_is_cancelled", "_number", "_tasks", "_was_stopped", "task")

    def __init__(self, tasks: LoopTasks, number: int) -> None:
        self._tasks = tasks
        self._number = number
        self._deadline = inf
        self._ends: BaseException | None = None
        """Exception that is to end the event loop."""
        self._is_cancelled = False
        self._was_stopped = False
        """True if it was cancelled before it had begun."""
        self.task: asyncio.Task[None] | None = None

    @property
    def deadline(self) -> float:
        """See ``HandlerScope``."""
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._deadline = self._tasks.guest.deadlines[self.task] = deadline
        self._tasks.deadlines.add(deadline, self._number)

    def cancel(self) -> None:
        """See ``HandlerScope``."""
        if not self._is_cancelled and self.task is not None and not self._tasks.guest.loop.is_closed():
            self._is_cancelled = True
            self.task.cancel()

    async def call(self, handler: RequestHandler, request: Request) -> Any:
        """See ``OutsideTask``."""
        try:
            if self._was_stopped:
                raise asyncio.CancelledError
            result = handler(request)
            value = await result if isawaitable(result) else result
            if self._is_cancelled and self.task is not None and self.task.cancelling():
                raise asyncio.CancelledError  # see ``_in_loop``
            return value
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise CutOff from None
            raise RuntimeError("the handler's task was cancelled, and not by Iris") from None
        except GeneratorExit:
            if self._tasks.guest.loop.is_closed():  # what is left of the task is thrown away
                raise CutOff from None
            raise
        except (SystemExit, KeyboardInterrupt) as error:  # with which the event loop ends by itself
            self._ends = error
            raise RuntimeError(f"the handler raised {type(error).__name__}") from None

    async def run(self, work: OutsideWork) -> None:
        """Be the task, from its second step on: the first may run within trio, where a task factory begins at once."""
        guest = self._tasks.guest
        try:
            try:
                await _suspended()
            except asyncio.CancelledError:
                self._was_stopped = True
            is_serving.set(True)
            await work(self)
        finally:
            guest.deadlines.pop(self.task, None)
            del self._tasks.live[self._number]
        if self._ends is not None:
            raise self._ends


@coroutine
def _suspended() -> Generator[None, None, None]:
    yield


@final
class LoopTasks:
    """The tasks of the event loop that serve the requests to one service; see ``OutsideTasks``.

    Attributes:
        live: those that have not ended, by number.
        deadlines: deadlines of the live ones.
    """

    def __init__(self, guest: Guest) -> None:
        self.guest: Final = guest
        self.live: Final[dict[int, LoopTask]] = {}
        self.deadlines: Final = Deadlines(self.live, self._expire)
        self._numbers: Final = count()
        self._error: BaseException | None = None
        self._news: Final = Wakeup()

    def begin(self, work: OutsideWork, context: Context) -> None:
        """See ``OutsideTasks``."""
        if not self.guest.loop.is_closed():
            number = next(self._numbers)
            begun = self.live[number] = LoopTask(self, number)
            running = begun.run(work)
            # A task that is cancelled before it begins leaves no trace.  So it is begun before the task is made; but
            # not with a task factory, which may await it in a coroutine of its own: nobody can await what has begun.
            has_factory = self.guest.loop.get_task_factory() is not None
            if not has_factory:
                running.send(None)
            begun.task = context.run(self.guest.loop.create_task, running)
            if has_factory:

                def ended(_: object) -> None:
                    running.close()
                    if number in self.live:  # it was cancelled before it began
                        again = begun.run(work)
                        again.send(None)
                        with suppress(StopIteration):
                            again.throw(asyncio.CancelledError())

                begun.task.add_done_callback(ended, context=context.copy())

    def _expire(self, number: int) -> None:
        task = self.live[number]
        if task.deadline <= trio.current_time():  # else it has got more time
            task.cancel()

    async def run(self) -> None:
        """See ``OutsideTasks``."""
        await self.deadlines.run()

    def fail(self, error: BaseException) -> None:
        """See ``OutsideTasks``."""
        self._error = error
        self._news.wake()

    async def wait_failed(self) -> None:
        """See ``OutsideTasks``."""
        while self._error is None:
            await self._news.wait()
        raise self._error

    async def end(self) -> None:
        """See ``OutsideTasks``."""

        def ended(_: object = None) -> None:
            self._news.wake()

        guest, live = self.guest, list(self.live.values())
        guest.waiting.add(ended)
        try:
            for begun in live:
                begun.cancel()
                if begun.task is not None:
                    begun.task.add_done_callback(ended)
            while not guest.loop.is_closed() and any(one.task is not None and not one.task.done() for one in live):
                await self._news.wait()
        finally:
            guest.waiting.discard(ended)


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
    if task.cancelling():  # and a library took that for the end of what it waited for: what it made is half done
        await trio.lowlevel.checkpoint_if_cancelled()
    return task.result()


def _drop(awaitable: Awaitable[object]) -> None:
    if iscoroutine(awaitable):
        awaitable.close()
