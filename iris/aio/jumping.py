"""Jumping: virtual time in an asyncio event loop and in the trio run that is its guest.

Where the loop would sleep until a timer is due, its time jumps there at once.  While code runs no time passes, as with
trio's ``MockClock(autojump_threshold=0)``.  Trio's deadlines are timers of the loop (``iris.aio.polling``), so that
time jumps only when both have nothing to do.

What comes from outside comes in real time.  For threads that are known here (``asyncio.to_thread``,
``run_in_executor``, trio's, and those of anyio's limiter, in which Starlette and FastAPI run plain functions) time
passes as it really does until they are done.  Sockets, pipes and subprocesses are refused: a timer would be over before
any of them could answer.
"""

from __future__ import annotations

import asyncio
import select
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from selectors import BaseSelector, SelectorKey
from typing import Final, NoReturn, Protocol, TypeVar, TypeVarTuple, Unpack, final

import trio
from trio.testing import active_thread_count

from iris.aio.guest import has_guest
from iris.aio.polling import Polling
from iris.kernel.errors import ConfigError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_REFUSED: Final = (
    "add_writer", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "create_connection",
    "create_datagram_endpoint", "create_server", "create_unix_connection", "create_unix_server", "sendfile",
    "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall",
    "sock_sendfile", "sock_sendto", "start_tls", "subprocess_exec", "subprocess_shell",
)  # fmt: skip
"""Methods of event loops for what comes from outside; ``add_reader`` is trio's as well."""


class _Limiter(Protocol):
    """Limiter of anyio's threads."""

    @property
    def borrowed_tokens(self) -> int:
        """Number of threads that are at work."""
        ...


class _ShiftedLoop(asyncio.SelectorEventLoop):
    """An event loop in which time has jumped, and does so no more: time never goes back."""

    _selector: BaseSelector
    _ahead: float
    """Seconds that were jumped over."""

    def time(self) -> float:
        """See asyncio."""
        return super().time() + self._ahead


@final
class _JumpingLoop(_ShiftedLoop):
    """An event loop in which time jumps."""

    now: float
    """The time, in seconds."""
    threads: int
    """Number of threads of executors that are at work."""
    trio_clock: _LoopClock
    """Clock of the loop's guest."""

    def time(self) -> float:
        """See asyncio."""
        return self.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """See asyncio."""
        future = super().run_in_executor(executor, func, *args)
        self.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self.threads -= 1

    def add_reader(self, fd: object, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """See asyncio: for trio's own descriptor only."""
        if not isinstance(getattr(callback, "__self__", None), Polling):
            _refuse("add_reader")
        super().add_reader(fd, callback, *args)  # type: ignore[arg-type]


def _refuse(name: str) -> NoReturn:
    raise ConfigError(
        f"{name}: in autojump_clock time is virtual, and sockets, pipes and subprocesses answer in real time: leave "
        "autojump_clock out of this test"
    )


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        _refuse(name)

    return refused


for _name in _REFUSED:
    setattr(_JumpingLoop, _name, _refusing(_name))


@final
class _LoopClock(trio.abc.Clock):
    """Trio's clock: that of an event loop.

    Attributes:
        threads: number of trio's threads that were at work when trio last had nothing to do.
    """

    autojump_threshold: Final = 0.0
    """See ``trio.testing.MockClock``: seconds without anything to do after which time jumps."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.threads = 0

    def start_clock(self) -> None:
        """See ``trio.abc.Clock``."""

    def current_time(self) -> float:
        """See ``trio.abc.Clock``."""
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See ``trio.abc.Clock``.  Trio asks when no task can run, so also each time after a thread begins or ends."""
        self.threads = active_thread_count()
        return deadline - self._loop.time()


@final
class _JumpingSelector(BaseSelector):
    """The selector of a loop in which time jumps, around its real one."""

    def __init__(self, loop: _JumpingLoop, real: BaseSelector, limiter: _Limiter | None) -> None:
        self._loop = loop
        self.real: Final = real
        self._limiter = limiter

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Return what is ready; have the time pass that the loop has nothing to do for."""
        ready = self.real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            return self.real.select(None)
        if self._loop.threads or self._loop.trio_clock.threads or (self._limiter and self._limiter.borrowed_tokens):
            began = time.monotonic()
            ready = self.real.select(timeout)
            self._loop.now += min(time.monotonic() - began, timeout)
            return ready
        self._loop.now += timeout
        return []

    def register(self, fileobj: object, events: int, data: object = None) -> SelectorKey:
        """See ``selectors``."""
        return self.real.register(fileobj, events, data)  # type: ignore[arg-type]

    def unregister(self, fileobj: object) -> SelectorKey:
        """See ``selectors``."""
        return self.real.unregister(fileobj)  # type: ignore[arg-type]

    def modify(self, fileobj: object, events: int, data: object = None) -> SelectorKey:
        """See ``selectors``."""
        return self.real.modify(fileobj, events, data)  # type: ignore[arg-type]

    def close(self) -> None:
        """See ``selectors``."""
        self.real.close()

    def get_map(self) -> Mapping[object, SelectorKey]:  # type: ignore[override]
        """See ``selectors``."""
        return self.real.get_map()  # type: ignore[return-value]


@asynccontextmanager
async def autojump_clock() -> AsyncIterator[None]:
    """Let time jump in the running event loop: nobody waits for what is due later.

    ::

        async with iris.aio.testing.autojump_clock(), iris.aio.testing.open_network() as network:
            ...

    It is for asyncio's own event loop, as pytest-asyncio and anyio have it, and goes around everything that opens a
    node.  In the block ``loop.time()`` is virtual, and with it ``asyncio.sleep``, ``asyncio.timeout`` and all that Iris
    waits for; ``time.monotonic``, ``time.time`` and ``datetime`` are not.  A thread that nobody waits for by asyncio,
    trio or anyio is not seen.  After the block time goes on from there.

    Raises:
        ConfigError: this loop's time cannot jump (uvloop; not on Linux), or a socket, pipe or subprocess of it is open;
            within the block also what opens one.
        RuntimeError: a node or network was opened before, or no event loop runs.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "iris.aio.testing.autojump_clock is for a running asyncio event loop, and there is none: with trio take "
            "the fixture autojump_clock of pytest-trio"
        ) from None
    if isinstance(loop, _JumpingLoop) or hasattr(loop, "start_trio"):  # time jumps already; in a simulation always
        yield
        return
    if type(loop) not in (asyncio.SelectorEventLoop, _ShiftedLoop) or not hasattr(select, "epoll"):
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        raise ConfigError(
            f"time can be virtual only in asyncio's own event loop on Linux, and this is {kind}: use asyncio's, or "
            "leave autojump_clock out of this test"
        )
    if has_guest(loop):
        raise RuntimeError("a node or network is open in this event loop already: enter autojump_clock before it")
    jumping = _begin(loop)
    try:
        yield
    finally:
        _end(jumping)


def _begin(loop: asyncio.AbstractEventLoop) -> _JumpingLoop:
    now = loop.time()
    loop.__class__ = _JumpingLoop
    assert isinstance(loop, _JumpingLoop)
    if len(loop._selector.get_map()) > 1:  # one is the loop's own
        loop.now = now
        _shift(loop)
        raise ConfigError(
            "this event loop has a socket, pipe or subprocess open, which answers in real time: leave autojump_clock "
            "out of this test"
        )
    anyio = sys.modules.get("anyio.to_thread")
    limiter: _Limiter | None = None if anyio is None else anyio.current_default_thread_limiter()
    loop.now, loop.threads, loop.trio_clock = now, 0, _LoopClock(loop)
    loop._selector = _JumpingSelector(loop, loop._selector, limiter)
    return loop


def _end(loop: _JumpingLoop) -> None:
    assert isinstance(loop._selector, _JumpingSelector)
    loop._selector = loop._selector.real
    _shift(loop)


def _shift(loop: _JumpingLoop) -> None:
    loop._ahead = loop.now - asyncio.SelectorEventLoop.time(loop)
    loop.__class__ = _ShiftedLoop  # type: ignore[assignment]
