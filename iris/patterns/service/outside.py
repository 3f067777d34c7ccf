"""Outside: requests that are served by tasks of the event loop that trio is the guest of, and by none of trio's.

The steps are those of a worker of trio's (``WorkerPool``).  A handler that is written for that event loop begins a turn
of the loop after its request has come, and its reply leaves within the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol, final

from iris.patterns.messages import Request

RequestHandler = Callable[[Request], Any]
"""Function that is called with a request; it returns the reply, or an awaitable of it."""


class HandlerScope(Protocol):
    """Scope that a handler runs in: a ``trio.CancelScope``, or a task of another event loop."""

    @property
    def deadline(self) -> float:
        """Time at which it is cancelled, on trio's clock."""
        ...

    @deadline.setter
    def deadline(self, deadline: float, /) -> None: ...

    def cancel(self) -> None:
        """Cancel it.  It has not ended when this returns."""
        ...


@final
class CutOff(BaseException):
    """A handler outside of trio was cancelled by its scope, and has ended."""


class OutsideHandler(Protocol):
    """A handler of requests that a task of the event loop can call."""

    def outside(self, request: Request, /) -> Any:
        """Call it in such a task; return the reply, or an awaitable of it."""
        ...


class OutsideTask(HandlerScope, Protocol):
    """A task of the event loop that serves requests."""

    async def call(self, handler: RequestHandler, request: Request) -> Any:
        """Call a handler in this task.

        Raises:
            CutOff: it was cancelled by ``cancel`` or at the deadline, or the loop was closed.
            Exception: it failed, was cancelled by others, or raised what ends a program.
        """
        ...


OutsideWork = Callable[[OutsideTask], Coroutine[object, None, None]]
"""Function that a task of the event loop runs."""


class OutsideTasks(Protocol):
    """The tasks of the event loop that serve the requests to one service."""

    def begin(self, work: OutsideWork, context: Context) -> None:
        """Begin a task in a copy of a context.  ``work`` is called in it, after this has returned."""
        ...

    async def run(self) -> None:
        """Cancel each task at its deadline; to be run for as long as there are tasks."""
        ...

    def fail(self, error: BaseException) -> None:
        """Have ``wait_failed`` raise an error."""
        ...

    async def wait_failed(self) -> None:
        """Wait for ``fail``, and raise the error."""
        ...

    async def end(self) -> None:
        """Cancel all tasks, and wait for their ends; not of those that a loop that was closed runs no more."""
        ...
