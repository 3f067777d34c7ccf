"""Event loop: asyncio as a task of trio, so that its programs have the simulation's clock and order of tasks.

One program has one loop, as in a process of its own.  There are no sockets, subprocesses or signals: a program reaches
others by Iris.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar, final

import outcome
import trio

from iris.kernel.tasks import Wakeup

T = TypeVar("T")

_LAST: Final = 2.0
"""Seconds that the tasks of a program may take to end when it is killed."""


@final
class _NoSelector:
    """The selector of a loop without sockets."""

    def select(self, _: float | None) -> tuple[()]:
        """Return what is ready: nothing."""
        return ()


@final
class SimulatedLoop(asyncio.BaseEventLoop):
    """An asyncio event loop that a task of trio runs.

    Args:
        nursery: for what is started in trio; it outlives the loop.
    """

    # Of the base class, which does not publish them.
    _ready: Any
    _scheduled: Any
    _run_once: Any
    _asyncgen_firstiter_hook: Any
    _asyncgen_finalizer_hook: Any
    _thread_id: Any
    _selector: Any

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._nursery = nursery
        self._news = Wakeup()

    def time(self) -> float:
        """Return trio's time."""
        return trio.current_time()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """See asyncio."""
        self._news.wake()
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """See asyncio."""
        self._news.wake()
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:  # type: ignore[override]  # noqa: ARG002
        """See asyncio: in one step, after the time that a thread takes."""
        future: asyncio.Future[T] = self.create_future()

        async def run() -> None:
            came = await outcome.acapture(trio.to_thread.run_sync, func, *args)
            if not future.done():
                match came:
                    case outcome.Value(value):
                        future.set_result(value)
                    case outcome.Error(error):
                        future.set_exception(error)

        self._nursery.start_soon(run)
        return future

    def start_trio(
        self, function: Callable[[], Awaitable[None]], ended: Callable[[outcome.Outcome[None]], None]
    ) -> None:
        """Run an async function of trio's, for ``iris.aio``: what would be a run of trio in a loop of asyncio's."""

        async def run() -> None:
            ended(await outcome.acapture(function))

        self._nursery.start_soon(run)

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no events."""

    def _write_to_self(self) -> None:
        self._news.wake()

    async def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a program to its end; cancelled, it cancels all of its tasks, as a program that is interrupted does."""
        task = self.create_task(main)
        try:
            await self._run_until(task.done)
            return task.result()
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(_LAST):
                for left in asyncio.all_tasks(self):
                    left.cancel()
                await self._run_until(lambda: not asyncio.all_tasks(self))
            self._step(self._ready.clear)
            self.close()

    async def _run_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if self._ready:
                await trio.lowlevel.checkpoint()
            else:
                with trio.CancelScope(deadline=self._scheduled[0]._when if self._scheduled else math.inf):
                    await self._news.wait()
            self._step(self._run_once)

    def _step(self, step: Callable[[], object]) -> None:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook)
        self._thread_id = threading.get_ident()
        asyncio._set_running_loop(self)
        try:
            step()
        finally:
            asyncio._set_running_loop(None)
            self._thread_id = None
            sys.set_asyncgen_hooks(*hooks)


async def run_asyncio(program: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
    """Run an async function of asyncio's in a loop of its own, as ``asyncio.run`` does, within trio."""
    async with trio.open_nursery() as nursery:
        loop = SimulatedLoop(nursery)
        came = await loop.run(program(*args))
        nursery.cancel_scope.cancel()
        return came
    raise AssertionError("the nursery ends with what it returns")
