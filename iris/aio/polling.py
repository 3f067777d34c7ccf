"""Polling: an event loop that waits for trio's input and output itself, where trio would start a thread for it.

Trio's guest mode leaves each wait to a thread of its own.  To wake that and to be woken by it takes a quarter of the
time of a small request.  Where trio waits by epoll, the event loop can do it: epoll's file descriptor can be read when
there is something to do, so that one more descriptor is all that the loop has to watch.

What the loop's own code reschedules in trio is done by a call of the loop as well.  Trio alone would wake itself by a
byte in a socket, which is found there by both.

A loop that is closed lets go of what it watched, and tells nobody.  So it is given something that it alone holds: when
that is gone, the loop is closed.

What this needs of trio's insides is looked up once, when a run begins.  Where something is missing, in a trio that is
made otherwise, on a system without epoll, or in an event loop that watches no descriptors, trio keeps its thread.
Source: ``trio._core._run.GuestState``; epoll(7), "Can I include the epoll file descriptor in another epoll's set?".
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, cast, final

import outcome
import sniffio
import trio

from iris.kernel.errors import ConfigError


class _Woken(tuple[Any, ...]):
    """No events, for trio that was woken before its wait was over: none at all would mean that it was over."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


class _Held:
    """Something that an event loop alone holds, for as long as it watches a descriptor."""

    __slots__ = ("__weakref__",)


@final
class Polling:
    """Does what ``GuestState.guest_tick`` does, without its thread.

    Args:
        tick: the call that trio wants first: the bound method ``guest_tick``.
        loop: the loop that waits.
        due: called with what is to be done now, in the thread of the loop: a step of trio.
        context: in which the loop calls.
        let_go: called when the loop watches trio's input and output no more: the run has ended, or the loop is closed,
            as far as it is one that lets go of what it watched.

    Raises:
        AttributeError, NotImplementedError: this trio, or this event loop, is made otherwise.
        OSError: no descriptor is left for one more to watch.
    """

    __slots__ = (
        "_context", "_descriptor", "_due", "_held", "_io", "_loop", "_next", "_rings_at", "_runner", "_state", "_timer",
        "_until", "_watched",
    )  # fmt: skip

    def __init__(
        self,
        tick: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
        due: Callable[[Callable[[], object]], None],
        context: Context,
        let_go: Callable[[], None],
    ) -> None:
        state: Any = tick.__self__  # type: ignore[attr-defined]
        self._state: Final = state
        self._runner: Final = state.runner
        self._io: Final = state.runner.io_manager
        self._next: Final = state.run_sync_soon_not_threadsafe
        for name in ("unrolled_run_gen", "unrolled_run_next_send", "done_callback"):
            getattr(state, name)
        for name in ("guest_tick_scheduled", "main_task_outcome"):
            getattr(state.runner, name)
        waits: Any = self._io._epoll
        self._loop: Final = loop
        self._due: Final = due
        self._context: Final = context
        self._until: float | None = None
        """Time until which it waits, on the clock of the loop; None when trio is at work, or soon will be."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer that rings at ``_until``, or before: most waits end early, and the timer serves the next one."""
        self._rings_at = 0.0
        """Time at which the timer rings.  Not every loop's timers report it: those of uvloop before 0.18 do not."""
        self._watched: Final[dict[int, Callable[[], None]]] = {}
        """Function to call when one of the other descriptors that the loop watches can be read."""
        held = _Held()
        self._held: Final = weakref.ref(held, lambda _: let_go())
        # A descriptor of its own: trio closes the other one without a word to the loop.
        self._descriptor: Final = os.dup(waits.fileno())
        try:
            context.run(loop.add_reader, self._descriptor, self._is_readable, held)
        except BaseException:
            os.close(self._descriptor)
            raise
        with suppress(TypeError):  # without it trio wakes itself, which is as good, and slower
            kind = cast("type[object]", type(self._io))
            self._io.__class__ = type("WokenByItsHost", (kind,), {"__slots__": (), "force_wakeup": self._woken})

    def tick(self) -> None:
        """Let trio run what can run, and wait for what comes next."""
        state = self._state
        library, sniffio.thread_local.name = sniffio.thread_local.name, "trio"
        try:
            timeout: float = state.unrolled_run_next_send.send(state.unrolled_run_gen)
        except StopIteration:
            self._end(self._runner.main_task_outcome)
            return
        except trio.TrioInternalError as error:
            self._end(outcome.Error(error))
            return
        finally:
            sniffio.thread_local.name = library
        if self._receive(always=timeout <= 0):
            self._next(self.tick)
            return
        self._runner.guest_tick_scheduled = False
        self._until = self._loop.time() + timeout
        if not self._loop.is_closed() and (self._timer is None or self._until < self._rings_at):
            self._set_timer(self._until)

    def wait_here(self) -> None:
        """Wait in this thread, for the loop is closed, for all that the loop has watched, and let trio go on."""
        if self._until is None:
            return
        waits = select.poll()
        for descriptor in (self._descriptor, *self._watched):
            waits.register(descriptor, select.POLLIN)
        for descriptor, _ in waits.poll(max(0, math.ceil(1000 * (self._until - self._loop.time())))):
            if descriptor in self._watched:
                Context().run(self._watched[descriptor])
        if self._until is not None and self._receive(always=self._loop.time() >= self._until):
            self._go_on()

    def watch(self, descriptor: int, readable: Callable[[], None]) -> Callable[[], None] | None:
        """See ``HostLoop.watch``."""
        try:
            Context().run(self._loop.add_reader, descriptor, readable)  # it keeps a copy of the one in force
        except (NotImplementedError, OSError, RuntimeError, ConfigError):  # it is closed, or its time is virtual
            return None
        self._watched[descriptor] = readable

        def end() -> None:
            self._watched.pop(descriptor, None)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(descriptor)

        return end

    def _woken(self, *_: object) -> None:
        """Something was rescheduled, or is due sooner, by code that is not trio's: it is to run."""
        self._until = None
        self._state.unrolled_run_next_send = outcome.Value(_Woken())
        self._next(self.tick)

    def _receive(self, *, always: bool) -> bool:
        """Take what has come for trio, and return whether trio is to run; it is, if ``always``, for nothing as well."""
        came: outcome.Value[Any] | outcome.Error = outcome.capture(self._io.get_events, 0)
        if not always and isinstance(came, outcome.Value) and not came.value:
            return False
        self._state.unrolled_run_next_send = came
        return True

    def _is_readable(self, _: object) -> None:
        if self._until is not None and self._receive(always=False):
            self._go_on()

    def _rings(self) -> None:
        self._timer = None
        if self._until is None:
            return
        if self._loop.time() < self._until:  # trio takes an empty wait for one that was waited to its end
            self._set_timer(self._until)
        else:
            self._receive(always=True)
            self._go_on()

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self._loop.call_at(when, self._rings, context=self._context)

    def _go_on(self) -> None:
        self._until = None
        self._runner.guest_tick_scheduled = True
        self._due(self.tick)

    def _end(self, came: outcome.Outcome[None]) -> None:
        self._until = None
        if self._timer is not None:
            self._timer.cancel()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._state.done_callback(came)
