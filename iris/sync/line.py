"""Line: the events of threads, which are published without a wait for each, in the order in which they were.

To wait for the run's thread takes longer than all that it does for an event.  So a thread *posts* what nothing can
refuse any more, and goes on; the run takes all that was posted at one waking.  What then has to wait there, for room on
a link, stands in line, and who comes meanwhile waits for the end of the line: slow subscribers slow threads as well.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar, final

import trio

from iris.patterns.pubsub import PostedEvents

T = TypeVar("T")

_log: Final = logging.getLogger("iris")


@final
class Line:
    """The line of one node's events.  For use in its trio run, but for ``is_empty``.

    Args:
        start: starts a task in the run.
    """

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._start: Final = start
        self._behind: Final[deque[tuple[Callable[[], Awaitable[None]], PostedEvents]]] = deque()
        """What was posted and could not be published at once, in order, and where it counts.  The first one is being
        published."""
        self._emptied = trio.Event()

    @property
    def is_empty(self) -> bool:
        """True if nothing that was posted waits for more than the run."""
        return not self._behind

    def goes_ahead(self, at_once: Callable[[], bool]) -> bool:
        """Publish an event by ``at_once`` unless others stand in line; return whether it is published."""
        return not self._behind and at_once()

    def take(self, at_once: Callable[[], bool], publish: Callable[[], Awaitable[None]], posted: PostedEvents) -> None:
        """Publish an event that was posted, by ``publish`` in a task if it has to wait; it is ``posted`` till then."""
        try:
            if self.goes_ahead(at_once):
                posted.remove()
                return
        except Exception as error:  # noqa: BLE001 -- nobody waits for it
            posted.remove()
            _lost([error])
            return
        self._behind.append((publish, posted))
        if len(self._behind) == 1:
            self._start(self._work_off)

    async def after(self, function: Callable[[], Awaitable[T]]) -> T:
        """Do something once all is published that was posted before."""
        if self._behind:
            await self._emptied.wait()
        return await function()

    @asynccontextmanager
    async def published(self) -> AsyncIterator[None]:
        """Wait at the end of the block until all is published that was posted in it; not if it is cancelled."""
        try:
            yield
        finally:
            if self._behind:
                await self._emptied.wait()

    async def _work_off(self) -> None:
        behind, errors = self._behind, list[Exception]()
        try:
            while behind:
                publish, posted = behind[0]
                try:
                    await publish()
                except Exception as error:  # noqa: BLE001 -- nobody waits for it
                    errors.append(error)
                behind.popleft()
                posted.remove()
        finally:
            while behind:
                behind.popleft()[1].remove()
            self._emptied.set()
            self._emptied = trio.Event()
            if errors:
                _lost(errors)


def _lost(errors: list[Exception]) -> None:
    error = errors[0]
    _log.error(
        "%d events of threads were not published: %s", len(errors), error, extra={"reason": type(error).__name__}
    )
