"""Deadline queue: the deadlines of many concurrent waits, kept by one task.

A cancel scope for each wait costs 5.3 us, most of what a caller spends on a request; an entry here costs 0.4 us.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container
from typing import Final, final

import trio

from iris.kernel.tasks import Wakeup

_TIDY_FROM: Final = 1024
"""Entries from which those of waits that have ended are thrown out, whenever they are half of all."""


@final
class Deadlines:
    """Calls ``expire`` with the number of each wait whose deadline passes while it is among ``waiting``."""

    def __init__(self, waiting: Container[int], expire: Callable[[int], None]) -> None:
        self._waiting = waiting
        self._expire = expire
        self._entries: list[tuple[float, int]] = []  # a heap; of waits that have ended, too
        self._tidy_at = _TIDY_FROM
        self._next = math.inf
        self._news = Wakeup()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, deadline: float, number: int) -> None:
        """Watch over a wait that has begun, in trio's time; infinity means that it has no deadline.

        It is forgotten when it is no more among ``waiting``: one that begins again has to be added again.
        """
        if deadline == math.inf:
            return
        entries = self._entries
        if len(entries) >= self._tidy_at:
            entries[:] = [entry for entry in entries if entry[1] in self._waiting]
            heapq.heapify(entries)
            self._tidy_at = max(_TIDY_FROM, 2 * len(entries))
        heapq.heappush(entries, (deadline, number))
        if deadline < self._next:
            self._news.wake()

    async def run(self) -> None:
        """Run until cancelled.  Waits that have ended wake this task rarely: once where their deadlines are alike."""
        entries = self._entries
        while True:
            now = trio.current_time()
            deadline = -math.inf
            while entries and (entries[0][0] <= now or entries[0][1] not in self._waiting):
                deadline, number = heapq.heappop(entries)
                if deadline <= now and number in self._waiting:
                    self._expire(number)
            # Where all have ended, what comes next ends soon as well, and is not to wake this task: it looks again when
            # the last of them would have been due.
            self._next = entries[0][0] if entries else deadline if deadline > now else math.inf
            with trio.move_on_at(self._next):
                await self._news.wait()
