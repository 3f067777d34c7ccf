"""Portal: calls into a trio run from other threads: into one with a thread of its own, or the one of a node."""

from __future__ import annotations

import atexit
import os
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import inf
from threading import get_ident
from typing import Any, Final, TypeVar, final

import trio

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float
from iris.kernel.tasks import AtOnce, CallTasks, OutsideCall, check_not_patched, open_background, thread_deadline
from iris.sync.line import Behind, Line, PostedEvent, lose

T = TypeVar("T")

_POSTED: Final = 256 * 1024
_OVERHEAD: Final = 256
"""Size of what may be posted before the run takes it, and what each event counts besides its own, in bytes."""


@final
class Waiter:
    """Lets one thread wait for one notification by the trio run.  Ctrl-C ends a wait."""

    __slots__ = ("_lock", "notified")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self.notified = False

    def notify(self) -> None:
        """End the wait, or make the next one return at once."""
        self.notified = True
        if self._lock.locked():
            self._lock.release()

    def wait(self) -> None:
        """Wait for the notification."""
        while not self.notified:
            self._lock.acquire()


class Portal:
    """Calls into a trio run from all other threads.

    Attributes:
        calls: the tasks that run there for other threads; None before it takes calls, and after it.
        events: the events that they publish without a wait for each.
    """

    def __init__(self) -> None:
        self._process: Final = os.getpid()
        self._token: trio.lowlevel.TrioToken | None = None
        self._runs_in: int | None = None
        """Number of the thread in which the run is.  None before it begins."""
        self.calls: CallTasks | None = None
        self.events: Final = Line(self._start)
        self._due: Final[deque[tuple[OutsideCall, Behind, int, object] | PostedEvent]] = deque()
        """Calls that are to begin, and what was posted.  The thread of the run takes all of it at one waking."""
        self._is_woken = False
        """True if the run takes what is due without being woken again.  False in doubt."""

    @property
    def is_forked(self) -> bool:
        """True if this is a process that was forked from the run's."""
        return os.getpid() != self._process

    @property
    def is_over(self) -> bool:
        """True once the run takes no calls any more, in this process."""
        return self._token is not None and self.calls is None and not self.is_forked

    def check(self) -> None:
        """Check that calls can be made from here.

        Raises:
            trio.ClosedResourceError: the run has ended.
            RuntimeError: this is another process, or the run's own thread; the message says what to do.
        """
        if self.is_forked:
            raise RuntimeError(
                "this node belongs to the process that this one was forked from: open the first node after the fork"
            )
        if self.calls is None:
            raise trio.ClosedResourceError("this node is closed: the block of its open_node has ended")
        if get_ident() == self._runs_in:
            raise RuntimeError("this is the thread of the node itself, where nothing may wait: call it from another")

    @staticmethod
    def new_call(
        function: Callable[[], Awaitable[Any]], ended: Callable[[], None], at_once: AtOnce | None = None
    ) -> OutsideCall:
        """Return a call that is to begin; one of a handler has no more time than is left to that."""
        return OutsideCall(function, ended, thread_deadline.get(), at_once)

    def begin(self, call: OutsideCall, behind: Behind = "own", within: object = None) -> None:
        """Begin a call, after ``check``, behind events; it may be over at once, because the run has ended.

        Args:
            call: the call.
            behind: the events.
            within: seconds that it may take, if it has to wait for them; no limit, if what it is given to refuses that.
        """
        self._add((call, behind, get_ident(), within))

    def post(self, event: PostedEvent) -> None:
        """Have an event published, in turn with the calls of its thread."""
        self.check()
        event.posted.add(event.size)
        self._add(event)

    def has_room(self, size: int) -> bool:
        """Return whether an event of ``size`` bytes may be posted; if not, its thread has to wait for it."""
        return self.events.is_empty and len(self._due) * (size + _OVERHEAD) < _POSTED

    def _start(self, function: Callable[[], Awaitable[None]]) -> None:
        assert self.calls is not None  # it is for what comes from ``_begin_due``
        self.calls.begin(OutsideCall(function, lambda: None, inf))

    def _add(self, due: tuple[OutsideCall, Behind, int, object] | PostedEvent) -> None:
        self._due.append(due)
        if not self._is_woken:
            self._is_woken = True  # before the run is: what comes in between must not wake it as well
            try:
                if not self.do(self._begin_due):
                    self._drop_due()
            except BaseException:
                self._is_woken = False
                self.do(self._begin_due)  # on which others rely
                raise

    def _begin_due(self) -> None:
        if self.calls is None:
            self._drop_due()
            return
        ahead = trio.current_time() - time.monotonic()
        for due in self._pop_due():
            if isinstance(due, tuple):
                call, behind, thread, within = due
                call.deadline += ahead
                if self.events.holds(behind, thread):
                    seconds = as_float(within)
                    call.wait_first(self.events.wait_emptied, seconds if seconds > 0 else inf)
                self.calls.begin(call)
            else:
                self.events.accept(due)

    def _drop_due(self) -> None:
        lost: list[PostedEvent] = []
        for due in self._pop_due():
            if isinstance(due, tuple):
                due[0].drop()
            else:
                lost.append(due)
        if lost:
            lose(lost, trio.ClosedResourceError("their node was closed"))

    def _pop_due(self) -> list[tuple[OutsideCall, Behind, int, object] | PostedEvent]:
        self._is_woken = False  # and then look: what comes after that look wakes the run
        due: list[tuple[OutsideCall, Behind, int, object] | PostedEvent] = []
        with suppress(IndexError):
            while True:
                due.append(self._due.popleft())
        return due

    @property
    def posted(self) -> int:
        """Number of events that are not published yet."""
        return self.events.count + sum(not isinstance(due, tuple) for due in list(self._due))

    def _end_calls(self) -> None:
        """Take no calls any more: before the last of them ends, for then their nursery takes none."""
        calls, self.calls = self.calls, None
        if calls is not None:
            calls.close()
        self._drop_due()

    def cancel(self, call: OutsideCall, ended: Waiter) -> None:
        """Cancel a call and wait for its end, also if ``begin`` was not reached.  Ctrl-C ends the wait."""
        if self.do(self._cancel, call, ended):
            ended.wait()

    def _cancel(self, call: OutsideCall, ended: Waiter) -> None:
        call.cancel()
        self._begin_due()  # which may be what was interrupted
        if not call.begun:
            ended.notify()

    def do(self, function: Callable[..., object], *arguments: object) -> bool:
        """Have a plain function called in the run's thread, soon; return whether the run is still there."""
        if self._token is None:
            return False
        try:
            self._token.run_sync_soon(function, *arguments)
        except trio.RunFinishedError:
            return False
        return True

    def call(
        self,
        function: Callable[[], Awaitable[T]],
        at_once: AtOnce | None = None,
        behind: Behind = "own",
        within: object = None,
    ) -> T:
        """Do something in the trio run, without a task if ``at_once`` can, and return what comes of it; see ``begin``.

        Ctrl-C cancels that and waits for its end; a second one does not wait.
        """
        self.check()
        ended = Waiter()
        call = self.new_call(function, ended.notify, at_once)
        try:
            self.begin(call, behind, within)
            ended.wait()
        except BaseException:
            self.cancel(call, ended)
            raise
        result: T = call.result()
        return result

    def call_plain(self, function: Callable[[], T], behind: Behind = "own") -> T:
        """Call a plain function in the trio run, behind events, and return or raise what it does."""

        async def call_it() -> T:
            return function()

        return self.call(call_it, lambda _woken, _deadline: (function(),), behind)

    def call_even_closed(
        self, function: Callable[[], Awaitable[T]], at_once: AtOnce | None = None, behind: Behind = "own"
    ) -> T:
        """Call as ``call`` does, for what a handle still holds."""
        return self.call(function, at_once, behind)


@final
class OwnRun(Portal):
    """A trio run in a thread of its own, from ``open`` to ``close``."""

    def __init__(self) -> None:
        super().__init__()
        self._scope: Final = trio.CancelScope()
        self._began: Final = Waiter()
        self._thread: Final = threading.Thread(target=self._main, name="iris", daemon=True)
        self._is_closing = False
        self._failure: OSError | None = None
        """Error for which the run could not begin.  None if it has not failed."""

    def open(self) -> None:
        """Begin the run, once.

        Raises:
            RuntimeError: gevent has replaced what it needs.
            ConfigError: no thread or descriptor is left for it.
        """
        check_not_patched("iris.sync")
        atexit.register(self.close)  # a daemon's thread is not waited for at the end of the program
        try:
            try:
                self._thread.start()
            except RuntimeError as error:
                raise ConfigError(f"a node cannot be opened: {error}: raise the limit of processes") from None
            self._began.wait()
            if self._failure is not None:
                reason = str(self._failure.strerror or self._failure).lower()
                raise ConfigError(f"a node cannot be opened: {reason}: raise the limit (ulimit -n)")
        except BaseException:
            self.close()
            raise

    def close(self, *, wait: bool = True) -> None:
        """End the run, and wait for its end.  Ctrl-C ends the wait."""
        atexit.unregister(self.close)
        self._is_closing = True  # also for a run that has not begun yet
        if not self.is_forked and self.was_opened:
            self.do(self._scope.cancel)
            if wait:
                self._thread.join()

    @property
    def was_opened(self) -> bool:
        """True once the run has begun; it may have ended."""
        return self._thread.ident is not None

    @property
    def is_over(self) -> bool:
        """True once the run has ended, in this process."""
        return self._is_closing and self.calls is None and not self._thread.is_alive() and not self.is_forked

    def call_even_closed(
        self, function: Callable[[], Awaitable[T]], at_once: AtOnce | None = None, behind: Behind = "own"
    ) -> T:
        """Call as ``call`` does; once the run is over, in another one, for what a closed node's handle still holds."""
        try:
            return self.call(function, at_once, behind)
        except trio.ClosedResourceError:
            if not self._is_closing and self.calls is not None:
                raise
        self._thread.join()
        portal = OwnRun()
        portal.open()
        try:
            return portal.call(function)
        finally:
            portal.close()

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except OSError as error:
            if self._token is not None:
                raise
            self._failure = error
        finally:
            self._began.notify()

    async def _run(self) -> None:
        self._token, self._runs_in = trio.lowlevel.current_trio_token(), get_ident()
        if self._is_closing:
            return
        with self._scope:
            async with trio.open_nursery() as nursery:
                self.calls = CallTasks(nursery)
                self._began.notify()
                try:
                    await trio.sleep_forever()
                finally:
                    self._end_calls()


@final
class SharedRun(Portal):
    """The trio run that this is made in, for the worker threads of a handler."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Take calls for the length of the block.  Those that are not done at its end are cancelled."""
        async with open_background() as nursery:
            self._token, self._runs_in = trio.lowlevel.current_trio_token(), get_ident()
            self.calls = CallTasks(nursery)
            try:
                async with self.events.published():
                    try:
                        yield
                    finally:
                        self._begin_due()  # events among them
            finally:
                self._end_calls()
