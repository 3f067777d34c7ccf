"""What is due when: a heap of callbacks that notices when this process was not run for a while."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import final

Action = Callable[[], None]


@final
class Timers:
    """Callbacks by time.  There is no cancelling: a callback that is no longer needed returns at once."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def deadline(self) -> float:
        """When the next callback is due; infinite if none."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, when: float, action: Action) -> None:
        """Call ``action`` at ``when``; of equal times the earlier request first."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action))

    def postpone(self, seconds: float) -> None:
        """Move everything by ``seconds``: time in which this process could not act does not count."""
        self._heap = [(when + seconds, count, action) for when, count, action in self._heap]

    def pop(self, now: float) -> Action | None:
        """Return a callback that is due, or None."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
