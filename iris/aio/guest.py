"""Guest: trio in an asyncio event loop, while a node is open there.

Source: trio, "Using guest mode to run Trio on top of other event loops".  One run serves all nodes of the loop.  It
begins with the first one and ends with the last one.  A loop that ends with a node open ends the run as well, for it
closes its async generators, of which one looks after the run.  A loop that is only closed does the rest of its run
within ``close``: goodbyes are sent, and sockets are closed.  If that is called from another thread, or the loop watches
no descriptors, it is done before the next run begins, for a thread has one run of trio at a time.

What trio wants to be the process's or the thread's own, it has only while it is at work: hooks for async generators,
and Ctrl-C, which waits until a step of trio is done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import wraps
from math import inf
from queue import Empty, SimpleQueue
from threading import get_ident
from types import FrameType
from typing import Any, Final, TypeVar, cast, final

import outcome
import trio

from iris.aio.polling import Polling
from iris.kernel.errors import ConfigError
from iris.kernel.tasks import CallTasks, OutsideCall, check_not_patched, host_loop
from iris.kernel.transport import check_not_forked

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
T = TypeVar("T")

_here: Final = threading.local()
"""The guest of each thread, as ``_here.guest``."""

_STEPS: Final = 4
"""Steps of trio that a call may need to be over at once."""

_AT_ONCE: Final = 64
"""Calls that are done at once before the event loop has a turn."""

is_serving: Final[ContextVar[bool]] = ContextVar("is_serving", default=False)
"""True in the task of a handler, and in tasks that it has begun."""


def _owner(loop: asyncio.AbstractEventLoop) -> Any:
    """Return what has the guest of a loop: its thread, or itself if it is one of a simulation, which trio runs."""
    return loop if hasattr(loop, "start_trio") else _here


async def turn_after_error() -> None:
    """Let others run before an error is raised: no loop that tries again stops the event loop.

    Called from no task of asyncio's, it does nothing: there the error says what to do.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return
    if task is not None:
        await asyncio.sleep(0)


def turning(function: F) -> F:
    """Let others run when an async function raises; see ``iris.kernel.tasks.checkpointed``."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except Exception:
            await turn_after_error()
            raise

    return cast("F", call)


@final
class Waiter:
    """Lets tasks of the event loop wait for one notification by the trio run."""

    __slots__ = ("_futures", "_loop", "notified")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._futures: list[asyncio.Future[None]] = []
        self.notified = False

    def notify(self) -> None:
        """End all waits, and make those that follow return at once."""
        self.notified = True
        if self._futures and not self._loop.is_closed():
            for future in self._futures:
                if not future.done():
                    future.set_result(None)

    async def wait(self) -> None:
        """Wait for the notification."""
        if not self.notified:
            future = self._loop.create_future()
            self._futures.append(future)
            await future

    async def wait_surely(
        self, cancelled: Callable[[], None] = lambda: None, *, leaving: bool = False
    ) -> asyncio.CancelledError | None:
        """Wait as ``wait`` does, also when the task is cancelled: then call ``cancelled``, and return the error.

        With ``leaving``, a handler that was cancelled does not wait: what it leaves may be waiting for its end.
        """
        error: asyncio.CancelledError | None = None
        while not self.notified:
            task = asyncio.current_task()
            if leaving and is_serving.get() and task is not None and task.cancelling():
                break
            try:
                await self.wait()
            except asyncio.CancelledError as again:
                error = again
                cancelled()
        return error


@final
class Guest:
    """The trio run of one event loop.  Made by ``enter_guest``.

    Attributes:
        loop: the loop that it is the guest of.
        deadlines: deadlines of tasks that run handlers, on trio's clock.  Requests of such a task have no more time;
            tasks that it starts have their own.
        waiting: for each handler that trio waits for, the function that ends the wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin the run: on the clock of a loop that has one for trio (``trio_clock``), as in tests.

        Raises:
            RuntimeError: trio runs in this thread already.
            ConfigError: no descriptor is left for it.
        """
        start_trio: Callable[..., None] | None = getattr(loop, "start_trio", None)
        if trio.lowlevel.in_trio_run() and start_trio is None:
            raise RuntimeError("trio runs in this thread already: use iris.open_node in place of iris.aio.open_node")
        self.loop: Final = loop
        self.deadlines: Final[dict[asyncio.Task[Any] | None, float]] = {}
        self.waiting: Final[set[Callable[[], None]]] = set()
        self._thread: Final = get_ident()
        self._process: Final = os.getpid()
        self._due: Final[SimpleQueue[Callable[[], object]]] = SimpleQueue()
        """Calls that trio wants done in this thread: not left to the loop alone, which forgets them when closed."""
        self._is_due = False
        """True while the loop is about to do one of them."""
        self._is_at_work = False
        """True while trio runs."""
        self._at_once = 0
        """Calls that trio has done since the loop last came to it."""
        self._context: Final = Context()
        """Context in which the loop calls."""
        self._scope: Final = trio.CancelScope()
        self._calls: CallTasks | None = None
        """Tasks that run calls.  None before the run takes calls, and after it."""
        self._began: Final = Waiter(loop)
        self._ended: Final = Waiter(loop)
        self._users = 0
        self._hooks = sys.get_asyncgen_hooks()
        """Hooks of trio for asynchronous generators."""
        self._keeper: Final = self._keep()
        self._polling: Polling | None = None
        """Polling of input and output in this thread.  None where trio waits for them by a thread."""
        self._was_interrupted = False
        self._takes_interrupts: Final = (
            start_trio is None
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if start_trio is not None:
            start_trio(self._run, self._end)
            return
        context = self._context

        def soon(function: Callable[[], object]) -> None:
            self._due.put(function)
            if not self._is_due and not loop.is_closed():
                self._is_due = True
                loop.call_soon(self._turn, context=context)

        def soon_threadsafe(function: Callable[[], object]) -> None:
            self._due.put(function)
            try:
                loop.call_soon_threadsafe(self._next, context=context)
            except RuntimeError:  # it is closed
                return

        if self._takes_interrupts:  # and trio will not
            signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._step(
                lambda: trio.lowlevel.start_guest_run(
                    self._run,
                    run_sync_soon_threadsafe=soon_threadsafe,
                    run_sync_soon_not_threadsafe=soon,
                    done_callback=self._end,
                    host_uses_signal_set_wakeup_fd=True,  # asyncio does, and then trio must not
                    clock=getattr(loop, "trio_clock", None),
                )
            )
        except OSError as error:
            self._return_interrupts()
            reason = str(error.strerror or error).lower()
            raise ConfigError(f"a node cannot be opened: {reason}: raise the limit (ulimit -n)") from None
        tick = self._due.get()
        with suppress(AttributeError, NotImplementedError, OSError):
            self._polling = Polling(tick, loop, self._do_now, context, self._let_go)
            tick = self._polling.tick
        self._due.put(tick)

    def check(self) -> None:
        """Check that this is the loop, and that the run takes calls.

        Raises:
            trio.ClosedResourceError: it has ended.
            RuntimeError: this is another thread or event loop; the message says what to do.
        """
        if get_ident() != self._thread:
            raise RuntimeError(
                "this node belongs to an event loop in another thread: call it from here with "
                "asyncio.run_coroutine_threadsafe(node.request(CLUSTER, PAYLOAD), LOOP), or use iris.sync"
            )
        if self._calls is None:
            raise trio.ClosedResourceError("this node is closed: the block of its open_node has ended")
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this node belongs to another event loop: open a node with iris.aio.open_node in this")

    def runs_here(self) -> bool:
        """Return whether this is code of the loop, and the run takes calls; ``check`` says why not."""
        return self._calls is not None and asyncio.get_running_loop() is self.loop

    @property
    def deadline(self) -> float:
        """Time at which the current task's handler has no more time, on trio's clock; infinity without a limit."""
        return self.deadlines.get(asyncio.current_task(), inf)

    def begin(self, function: Callable[[], Awaitable[Any]], ended: Callable[[], None]) -> OutsideCall:
        """Begin a call.

        Raises:
            trio.ClosedResourceError, RuntimeError: see ``check``.
        """
        self.check()
        assert self._calls is not None
        call = OutsideCall(function, ended, self.deadline)
        self._calls.begin(call)
        return call

    @turning
    async def call(self, function: Callable[[], Awaitable[T]], *, here: bool = True) -> T:
        """Do something in the trio run, and return what comes of it.

        Cancelling it cancels that, and waits for its end.

        Args:
            function: what to do.
            here: let trio run here and now.  False: the event loop has a turn in any case.
        """
        waiter = Waiter(self.loop)
        call = self.begin(function, waiter.notify)
        if here:
            self.advance(waiter)
        try:
            await waiter.wait()
        except asyncio.CancelledError:
            call.cancel()
            await waiter.wait_surely(call.cancel)
            raise
        result: T = call.result()
        return result

    async def wait_woken(self, watch: Callable[[Callable[[], None]], Callable[[], None] | None]) -> bool:
        """Wait without a task of trio's until the function that ``watch`` is called with is called.

        Return False, and do not wait at all, if ``watch`` returns None in place of what ends the watch.
        """
        waiter = Waiter(self.loop)
        end = watch(waiter.notify)
        if end is None:
            return False
        try:
            await waiter.wait()
        finally:
            end()
        return True

    def advance(self, waiter: Waiter) -> None:
        """Let trio run here and now.  Most calls wait for nothing: they are over then, without a turn of the loop.

        Not if trio is at work, or has done much without a turn: others want one, too.
        """
        if self._polling is None or self._is_at_work or self._at_once >= _AT_ONCE:
            return
        self._at_once += 1
        for _ in range(_STEPS):
            if waiter.notified or self._due.empty():
                return
            self._context.run(self._next)

    # -- see HostLoop -----------------------------------------------------------------------------------------

    def watch(self, descriptor: int, readable: Callable[[], None]) -> Callable[[], None] | None:
        """See ``HostLoop.watch``."""

        def read() -> None:
            readable()
            if not self._due.empty():  # tasks of trio's were woken: they need no turn of the loop
                self._next()

        return None if self._polling is None else self._polling.watch(descriptor, read)

    def call_soon(self, function: Callable[[], None]) -> None:
        """See ``HostLoop.call_soon``."""
        if self.loop.is_closed():
            self._due.put(function)  # for ``finish``
        else:
            self.loop.call_soon(function, context=self._context)

    async def call_even_closed(self, function: Callable[[], Awaitable[T]]) -> T:
        """Call as ``call`` does; once the run is over, in another one, for what a closed node's handle still holds."""
        try:
            return await self.call(function)
        except trio.ClosedResourceError:
            if not self.is_closing and self._calls is not None:
                raise
        guest = await enter_guest()
        try:
            return await guest.call(function)
        finally:
            await guest.leave()

    # -- from the first node to the last --------------------------------------------------------------------

    async def enter(self) -> None:
        """Keep the run up until ``leave``."""
        self._users += 1
        try:
            if self._users == 1:
                await anext(self._keeper)  # from here on the loop knows it
            await self._began.wait()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Need the run no more.  The last one ends it, and waits for its end; also when cancelled."""
        self._users -= 1
        if not self._users:
            cancelled = await self.close()
            await self._keeper.aclose()
            if cancelled is not None:
                raise cancelled

    @property
    def is_closing(self) -> bool:
        """True once the run ends, and accepts no further calls."""
        return self._scope.cancel_called

    async def close(self) -> asyncio.CancelledError | None:
        """End the run, and wait for its end; also when cancelled, and return that then."""
        self._scope.cancel()
        return await self._ended.wait_surely(leaving=True)

    async def wait_closed(self) -> None:
        """Wait for the end of a run that somebody else ends."""
        await self._ended.wait()

    def finish(self) -> None:
        """Run to its end here what was left when the loop was closed with a node open."""
        self._scope.cancel()
        for release in list(self.waiting):  # handlers whose tasks nobody runs any more
            release()
        while not self._ended.notified:
            if self._polling is not None and self._due.empty():
                self._polling.wait_here()
            else:
                self._step(self._due.get())

    def _let_go(self) -> None:
        """The loop watches trio's input and output no more.  If it was closed, nobody else would end the run."""
        may = get_ident() == self._thread and os.getpid() == self._process and not sys.is_finalizing()
        if may and self.loop.is_closed() and not (self._ended.notified or self._is_at_work):
            self.finish()

    async def _run(self) -> None:
        host_loop.set(self)
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._calls = CallTasks(nursery)
                self._began.notify()
                try:
                    await trio.sleep_forever()
                finally:
                    self._calls = None  # before the last of the calls ends: then the nursery takes none any more

    def _do_now(self, step: Callable[[], object]) -> None:
        self._due.put(step)
        if not self.loop.is_closed():
            self._next()

    def _turn(self) -> None:
        self._is_due = False
        self._at_once = 0
        self._next()

    def _next(self) -> None:
        try:
            step = self._due.get_nowait()
        except Empty:
            return
        self._step(step)

    def _step(self, step: Callable[[], object]) -> None:
        """Let trio do something, with its own hooks for async generators."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*self._hooks)
        self._is_at_work = True
        try:
            step()
        finally:
            self._is_at_work = False
            self._hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(*hooks)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Take Ctrl-C where the event loop does not, because it is not run by ``asyncio.run``.

        The first one strikes between two callbacks of the loop: within one the loop or trio would lose what it has
        just taken out of a queue, and wait for it for ever.  A second one before that strikes at once.
        """
        if self._was_interrupted or not self.loop.is_running():
            self._was_interrupted = False
            signal.default_int_handler(number, frame)
        self._was_interrupted = True
        self.loop.call_soon_threadsafe(self._strike)

    def _strike(self) -> None:
        if self._was_interrupted:
            self._was_interrupted = False
            raise KeyboardInterrupt

    def _return_interrupts(self) -> None:
        if self._takes_interrupts and signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _end(self, came: outcome.Outcome[None]) -> None:
        self._calls = None
        _owner(self.loop).guest = None
        self._return_interrupts()
        self._began.notify()
        self._ended.notify()
        if isinstance(came, outcome.Error):
            error = came.error
            while isinstance(error, BaseExceptionGroup):  # the event loop knows what ends a program only by itself
                error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
            raise error if isinstance(error, KeyboardInterrupt | SystemExit) else came.error

    async def _keep(self) -> AsyncGenerator[None]:
        """Look after the run.  A loop that comes to its end closes this, when all of its tasks have ended."""
        try:
            yield
        finally:
            if not self._ended.notified:
                await self.close()


async def enter_guest() -> Guest:
    """Return the trio run of the running event loop, entered; it begins if need be.

    Raises:
        RuntimeError: this thread has another one, no event loop runs, or gevent has replaced what it needs.
        ConfigError: this process was forked from one with a node, or no descriptor is left.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "iris.aio.open_node is for a running asyncio event loop, and there is none: with trio use iris.open_node, "
            "without an event loop iris.sync.open_node"
        ) from None
    check_not_patched("iris.aio")
    check_not_forked()  # before the guest of the process that this one was forked from is taken for one of this one
    owner = _owner(loop)
    while True:
        guest: Guest | None = getattr(owner, "guest", None)
        if guest is None:
            guest = owner.guest = Guest(loop)
        elif guest.loop is not loop:
            if not guest.loop.is_closed():
                raise RuntimeError("another event loop of this thread has a node open: leave that block first")
            guest.finish()
            continue
        elif guest.is_closing:
            await guest.wait_closed()
            continue
        await guest.enter()
        return guest


def has_guest(loop: asyncio.AbstractEventLoop) -> bool:
    """Return True if a trio run is the guest of this loop, as it is while a node is open."""
    guest: Guest | None = getattr(_owner(loop), "guest", None)
    return guest is not None and guest.loop is loop
