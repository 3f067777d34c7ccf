"""What is due when: a heap of callbacks that can be moved as a whole."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import final

Action = Callable[[], None]


@final
class Timer:
    """A callback that waits for its time; ``cancel`` lets it wait for ever."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Do not call it."""
        self.action = None


@final
class Timers:
    """Callbacks by time."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def deadline(self) -> float:
        """When the next callback is due; infinite if none."""
        heap = self._heap
        while heap:
            first = heap[0]
            if first[2].action is not None:
                return first[0]
            heapq.heappop(heap)
        return math.inf

    def at(self, when: float, action: Action) -> Timer:
        """Call ``action`` at ``when``; of equal times the earlier request first."""
        self._count += 1
        timer = Timer(action)
        heapq.heappush(self._heap, (when, self._count, timer))
        return timer

    def postpone(self, seconds: float) -> None:
        """Move everything by ``seconds``: time in which this process could not act does not count."""
        self._heap = [(when + seconds, count, timer) for when, count, timer in self._heap]

    def pop(self, now: float) -> Action | None:
        """Return a callback that is due, or None."""
        if self.deadline > now:
            return None
        return heapq.heappop(self._heap)[2].action if self._heap else None
