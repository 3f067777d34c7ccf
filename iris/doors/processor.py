"""Time of a door's thread: no client takes what the others need, whatever it sends and however it is split.

What is done for a client is measured.  One that has used more than its share waits, all that it has open one behind
the other, until it has a share again; one that uses less never waits.

What counts is how long the others have waited for the thread, and not only what it had of a processor: where a machine
is busy with other things, half of a second of a processor may be all that a door gets in one.  But a step in which the
process was stopped costs its client no more than ``STOPPED``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from time import perf_counter, thread_time
from types import coroutine
from typing import Final, TypeVar, cast, final

T = TypeVar("T")

SHARE: Final = 0.5
"""Share of the thread's time for one client."""

BURST: Final = 0.01
"""Seconds of it that a client may be ahead of its share."""


STOPPED: Final = 0.005
"""Seconds for which the thread had no processor that count of one step."""


@final
class Stopwatch:
    """Tells what a step has taken, from when it is made."""

    __slots__ = ("_began", "_used")

    def __init__(self) -> None:
        self._began = perf_counter()
        self._used = thread_time()

    def seconds(self) -> float:
        """Return what counts of the step."""
        return min(perf_counter() - self._began, thread_time() - self._used + STOPPED)


@final
class Processor:
    """The share of one client."""

    def __init__(self) -> None:
        self._until = 0.0
        """Time at which its share reaches what was used so far, on the loop's clock."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def spend(self, seconds: float) -> None:
        """Count time that was used for the client."""
        now = asyncio.get_running_loop().time()
        self._until = max(self._until, now) + seconds / SHARE

    @contextmanager
    def working(self) -> Generator[None]:
        """Count the time of a block that does not wait for anything."""
        watch = Stopwatch()
        try:
            yield
        finally:
            self.spend(watch.seconds())

    async def wait(self) -> None:
        """Wait for a turn if the client has used more than its share."""
        if self.is_ahead():
            await self.rest()

    async def rest(self) -> None:
        """Let others have a turn: one at least, and as many as they are behind this client."""
        turn = self.turn()
        try:
            await turn
        finally:
            turn.cancel()

    def turn(self) -> asyncio.Future[None]:
        """Return what is done when it is this one's turn again.  Cancel it if it is not wanted any more."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._timer is None:
            self._arm()
        return turn

    def is_ahead(self) -> bool:
        """Return whether the client has to wait now."""
        return bool(self._waiting) or self._left() > 0

    def metered(self, work: Coroutine[object, object, T]) -> Coroutine[object, object, T]:
        """Return what does some work and counts all its time, but not that of tasks which it begins."""
        return metered(lambda: self, work)

    def _left(self) -> float:
        return self._until - asyncio.get_running_loop().time() - BURST / SHARE

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._left()), self._pass_on)

    def _pass_on(self) -> None:
        """Give the turn to the next one; what it uses is counted before the one behind it has its own."""
        self._timer = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            self._arm()


async def metered(of: Callable[[], Processor], work: Coroutine[object, object, T]) -> T:
    """Do some work, and count the time of each step for the one that ``of`` then names."""
    return await _steps(of, work)


@coroutine
def _steps(of: Callable[[], Processor], work: Coroutine[object, object, T]) -> Generator[object, object, T]:
    error: BaseException | None = None
    answer: object = None
    while True:
        watch = Stopwatch()
        try:
            waits_for = work.send(answer) if error is None else work.throw(error)
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            of().spend(watch.seconds())
        error = None
        try:
            answer = yield waits_for
        except BaseException as raised:  # noqa: BLE001 -- the work decides what it means
            error = raised
