"""Calls from outside: what asyncio or a thread wants done in a trio run, in tasks that are kept for the next call.

A call is begun from outside, runs in a task of its own, and says when it has ended.  What has to wait for nothing, or
for one reply, is done at once and needs no task: a task costs two turns of trio's loop.  A block is a call that enters
a context manager and stays in it until ``leave`` is called: trio wants both ends of a block in one task.

A call keeps its caller's context, so what a handler asks of others has the priority of what it serves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from math import inf
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, final

import outcome
import trio

from iris.kernel.errors import RequestTimeout
from iris.kernel.shapes import is_group

_T = TypeVar("_T")

_KEPT: Final = 128
"""Tasks that wait for a call.  To begin and end one for each call costs more than a small request does in all."""


class Begun(Protocol):
    """A call that was begun at once and waits for its outcome."""

    def reply(self) -> tuple[Any] | None:
        """Return the outcome, or raise it; None if ``go_on`` says what becomes of it.  Called when it is known."""
        ...

    async def go_on(self) -> Any:
        """Do in a task what is left to do."""
        ...

    def abandon(self) -> None:
        """Give up waiting."""
        ...


AtOnce: TypeAlias = Callable[[Callable[[], None], float], tuple[Any] | Begun | None]
"""Does without a task what it can, given the function to call when what it begins has its outcome, and the deadline.

It returns the result in a tuple, or what waits; None if it has done nothing, and a task is needed.
"""


def behind_events(within: float) -> RequestTimeout:
    """Return the error of a call that events of its thread have kept waiting for longer than it had."""
    return RequestTimeout(f"{within:g} s are over: it came after what its thread had published before")


@final
class OutsideCall:
    """One call from outside.

    Args:
        function: the function to call.
        ended: called in the trio run at the end, once.
        deadline: time of its cancellation on ``trio.current_time()``'s clock: that of the handler that makes it.
        at_once: tried before ``function``.  None if the call always takes a task.

    Attributes:
        deadline: the same, until it begins.
        begun: True once it has begun, or never will.
        outcome: its result or error; None before the end, and if it was cancelled.
    """

    __slots__ = (
        "_at_once", "_context", "_ended", "_function", "_is_late", "_scope", "_waits_in", "begun", "deadline",
        "is_cancelled", "outcome",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[[], Awaitable[Any]],
        ended: Callable[[], None],
        deadline: float,
        at_once: AtOnce | None = None,
    ) -> None:
        self._function = function
        self._ended = ended
        self._at_once = at_once
        self._waits_in: CallTasks | None = None
        """Tasks in which it waits for the outcome of what was begun at once.  None before, after, and in a task."""
        self.deadline = deadline
        self._context: Final = copy_context()
        self._scope: trio.CancelScope | None = None
        """The scope that the function runs in.  None before it begins."""
        self._is_late = False
        self.begun = False
        self.is_cancelled = False
        self.outcome: outcome.Value[Any] | outcome.Error | None = None

    def cancel(self) -> None:
        """Cancel it; also before it begins.  In the thread of the run only."""
        self.is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()
        elif self._waits_in is not None:
            self._waits_in.abandon(self)

    def wait_first(self, wait: Callable[[], Awaitable[object]], within: float) -> None:
        """Have it wait for something else before it does anything, in a task; before it begins.

        Args:
            wait: waits for that.
            within: seconds that both may take in all; then it raises ``RequestTimeout``.
        """
        function = self._function

        async def after() -> Any:
            with trio.move_on_after(within):
                await wait()
                return await function()
            raise behind_events(within)

        self._function, self._at_once = after, None

    def drop(self) -> None:
        """End it before it has begun, as the run has ended."""
        self.begun = True
        self._ended()

    def result(self) -> Any:
        """Return or raise what came of a call that has ended, and that its caller has not cancelled.

        Raises:
            RequestTimeout: the time of the handler that made it was over.
            trio.ClosedResourceError: the run has ended before.
        """
        if self.outcome is not None:
            return self.outcome.unwrap()
        if self._is_late:
            raise RequestTimeout("the time of the request that is served here is over")
        raise trio.ClosedResourceError("this node is closed: the block of its open_node has ended")

    async def _run(self, scope: trio.CancelScope) -> None:
        """Run it in a scope of which it may be the last."""
        scope.deadline = self.deadline
        if self.is_cancelled:
            scope.cancel()
        self._scope = scope
        try:
            self.outcome = outcome.Value(await self._function())
        except trio.Cancelled:
            self._is_late = scope.cancel_called and not self.is_cancelled
            raise
        except BaseException as error:
            if is_group(error) and error.split(trio.Cancelled)[1] is None:  # as a nursery raises it
                self._is_late = scope.cancel_called and not self.is_cancelled
                raise
            self.outcome = outcome.Error(error)
        finally:
            self._scope = None
            scope.deadline = inf
            self._ended()


@final
class CallTasks:
    """Tasks that run calls, in a nursery; cancelled with it, each ends its call.  ``close`` ends those without one."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery: Final = nursery
        self._idle: Final[list[trio.lowlevel.Task]] = []
        self._waiting: Final[dict[OutsideCall, Begun]] = {}
        """Calls that were begun at once, with what waits for their outcome."""

    def begin(self, call: OutsideCall) -> None:
        """Begin a call.  In the thread of the run only, but from anywhere in it."""
        call.begun = True
        if (
            call._at_once is None
            or call.is_cancelled
            or call.deadline <= trio.current_time()
            or not call._context.run(self._try_at_once, call, call._at_once)
        ):
            self._begin_task(call)

    def close(self) -> None:
        """End the calls that wait without a task; no others come."""
        for call in list(self._waiting):
            self.abandon(call)

    def abandon(self, call: OutsideCall) -> None:
        """End a call that waits without a task."""
        self._pop_waiting(call).abandon()
        call._ended()

    def _pop_waiting(self, call: OutsideCall) -> Begun:
        call._waits_in = None
        return self._waiting.pop(call)

    def _try_at_once(self, call: OutsideCall, at_once: AtOnce) -> bool:
        """Do a call without a task; return False, and do nothing, if it needs one."""
        came = outcome.capture(at_once, partial(self._go_on, call), call.deadline)
        if isinstance(came, outcome.Value):
            if came.value is None:
                return False
            if not isinstance(came.value, tuple):
                call._waits_in, self._waiting[call] = self, came.value
                return True
        self._end(call, came)
        return True

    def _go_on(self, call: OutsideCall) -> None:
        """End a call that was begun at once, as its outcome is known; or go on in a task."""
        waits = self._pop_waiting(call)
        came = outcome.capture(waits.reply)
        if isinstance(came, outcome.Value) and came.value is None:
            call._function = waits.go_on
            self._begin_task(call)
        else:
            self._end(call, came)

    @staticmethod
    def _end(call: OutsideCall, came: outcome.Value[Any] | outcome.Error) -> None:
        """End a call without a task: with an error, or what is in a tuple."""
        call.outcome = came if isinstance(came, outcome.Error) else outcome.Value(came.value[0])
        call._ended()

    def _begin_task(self, call: OutsideCall) -> None:
        if self._idle:
            task = self._idle.pop()
            task.context = call._context
            trio.lowlevel.reschedule(task, outcome.Value(call))
        else:
            call._context.run(self._nursery.start_soon, self._serve, call)

    async def _serve(self, call: OutsideCall) -> None:
        task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        with trio.CancelScope() as scope:  # one for all calls: it takes as long as half of what else there is
            while True:
                await call._run(scope)
                if scope.cancel_called or len(self._idle) >= _KEPT:
                    return
                del call  # with it goes what it has returned
                self._idle.append(task)
                call = await trio.lowlevel.wait_task_rescheduled(abort)


@final
class HeldBlock(Generic[_T]):
    """A block that is entered and left from outside: ``hold`` is the function of its call.

    Args:
        block: the block to enter.
        entered: called in the trio run once it is.
    """

    __slots__ = ("_block", "_entered", "_error", "_left", "_task", "value")

    def __init__(self, block: AbstractAsyncContextManager[_T], entered: Callable[[], None]) -> None:
        self._block = block
        self._entered = entered
        self._error: Exception | None = None
        self._left = False
        self._task: trio.lowlevel.Task | None = None
        self.value: _T | None = None
        """The value of the block; None before it is entered."""

    async def hold(self) -> None:
        """Enter the block, wait for ``leave``, and leave it."""
        async with self._block as self.value:
            self._entered()
            if not self._left:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)
            if self._error is not None:
                raise self._error

    def leave(self, error: Exception | None = None) -> None:
        """Let ``hold`` go on, with an error that the body has raised.  In the thread of the run only, and once.

        A body that was cancelled is left by cancelling the call.
        """
        self._left, self._error = True, error
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
