"""Line: the events of threads, which are published without a wait for each, in the order in which they were.

To wait for the run's thread takes longer than all that it does for an event.  So a thread *posts* what nothing can
refuse any more, and goes on; the run takes all that was posted at one waking.  What then has to wait there, for room on
a link, stands in line.  Who publishes meanwhile waits for the end of the line, and so does whatever else a thread wants
that has events in it, but to read what is known here: slow subscribers slow threads as well, and no request overtakes
an event.

Leaving a node waits for the line.  A node that is left by what ends a program, as ``sys.exit`` and Ctrl-C do, gives the
line as long as its goodbye takes.  What is not published then is counted as lost, and logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Final, Literal, Protocol, TypeAlias, final

import trio

from iris.kernel.numerals import as_float
from iris.kernel.tasks import behind_events
from iris.node.open import GOODBYE
from iris.patterns.pubsub import PostedEvents

Behind: TypeAlias = Literal["own", "all", "none"]
"""Events that a call does not overtake: those of its thread, those of all threads, or none, as it sends nothing."""

_log: Final = logging.getLogger("iris")


class PostedEvent(Protocol):
    """An event that its thread does not wait for.  All is called in the trio run, but for ``lose`` once that has ended.

    Attributes:
        thread: number of the thread that has posted it.
        size: size of its payload, in bytes.
        posted: where it counts, from when it is posted until it is published or lost.
    """

    thread: int
    size: int
    posted: PostedEvents

    def at_once(self) -> bool:
        """Publish it if nothing has to be waited for; return whether it is published."""
        ...

    async def publish(self) -> None:
        """Publish it; if this raises anything, it is not published."""
        ...

    async def wait_room(self) -> None:
        """Wait, after it was published, until there is room for the next one."""
        ...

    def lose(self) -> None:
        """Count it as lost: it is not published."""
        ...


@final
class Line:
    """The line of one node's events.  For use in its trio run, but for ``is_empty`` and ``count``.

    Args:
        start: starts a task in the run.
    """

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._start: Final = start
        self._behind: Final[deque[PostedEvent]] = deque()
        """Events that could not be published at once, in order, behind the one that is being published."""
        self._is_moving = False
        """True while a task publishes what stands in line."""
        self._threads: Final[set[int]] = set()
        """Numbers of the threads that have posted it."""
        self._then: Final[list[Callable[[], None]]] = []
        """Functions to call at its end."""
        self._ends = inf
        """Time at which what stands in line is given up, on trio's clock."""
        self._scope = trio.CancelScope()
        """Scope of the task: it ends by that time alone."""
        self._emptied = trio.Event()

    @property
    def is_empty(self) -> bool:
        """True if nothing that was posted waits for more than the run."""
        return not self._is_moving

    @property
    def count(self) -> int:
        """Number of events that stand in line."""
        return len(self._behind) + self._is_moving

    def holds(self, behind: Behind, thread: int) -> bool:
        """Return whether events stand in line that a call of a thread must not overtake, or stood before others."""
        return self._is_moving and (behind == "all" or (behind == "own" and thread in self._threads))

    def accept(self, event: PostedEvent) -> None:
        """Publish an event that was posted, in a task if it has to wait."""
        if not self._is_moving:
            try:
                if event.at_once():
                    event.posted.remove()
                    return
            except Exception as error:  # noqa: BLE001 -- nobody waits for it
                lose([event], error)
                return
        self._behind.append(event)
        self._threads.add(event.thread)
        if not self._is_moving:
            self._is_moving = True
            self._scope = trio.CancelScope(deadline=self._ends, shield=True)
            self._start(self._move)

    def call_emptied(self, function: Callable[[], None]) -> None:
        """Call a function once all is published, or lost, that stands in line."""
        self._then.append(function)

    async def wait_emptied(self) -> None:
        """Wait until all is published that was posted before."""
        if self._is_moving:
            await self._emptied.wait()

    async def wait_turn(self, thread: int, within: object) -> None:
        """Wait until nothing of a thread stands in line.

        Raises:
            RequestTimeout: it does after ``within`` seconds; no limit, if that is no number of seconds.
        """
        if self.holds("own", thread):
            seconds = as_float(within)
            with trio.move_on_after(seconds if seconds > 0 else inf):
                await self.wait_emptied()
                return
            raise behind_events(seconds)

    @asynccontextmanager
    async def published(self) -> AsyncIterator[None]:
        """Wait at the end of the block until all is published that was posted in it; cancelled, for ``GOODBYE`` s."""
        try:
            yield
        finally:
            try:
                await self.wait_emptied()
            except trio.Cancelled:
                self._end_at(trio.current_time() + GOODBYE)
                with trio.CancelScope(shield=True):
                    await self.wait_emptied()
                raise
            finally:
                self._end_at(-inf)

    def _end_at(self, time: float) -> None:
        self._ends = self._scope.deadline = time

    async def _move(self) -> None:
        behind, lost, errors = self._behind, list[PostedEvent](), list[Exception]()
        unsent: PostedEvent | None = None
        try:
            with self._scope:
                while behind:
                    event = unsent = behind.popleft()
                    try:
                        await event.publish()
                        unsent = None
                        event.posted.remove()
                        await event.wait_room()
                    except Exception as error:  # noqa: BLE001 -- nobody waits for it
                        if unsent is not None:
                            errors.append(error)
                            lost.append(unsent)
                            unsent = None
        finally:
            lost += () if unsent is None else (unsent,)
            lost += behind
            behind.clear()
            self._threads.clear()
            self._is_moving = False
            self._emptied.set()
            self._emptied = trio.Event()
            then = self._then[:]
            self._then.clear()
            if lost:
                lose(lost, errors[0] if errors else TimeoutError("their node was left by then"))
            for function in then:
                function()


def lose(events: Sequence[PostedEvent], error: Exception) -> None:
    """Count and log events that are not published, with the reason."""
    for event in events:
        event.posted.remove()
        event.lose()
    _log.error(
        "%d events of threads were not published: %s", len(events), error, extra={"reason": type(error).__name__}
    )
