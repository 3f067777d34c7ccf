"""Posted events: what threads have given to the run of a node, and what it has not published yet, by size."""

from __future__ import annotations

from collections import deque
from typing import Final, final


@final
class PostedEvents:
    """Sizes of the events that wait, in bytes of payload and in about the order in which they were posted.

    Threads add and the run removes, without a lock: each is one operation of a deque.
    """

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: Final[deque[int]] = deque()

    def __repr__(self) -> str:
        return f"<PostedEvents: {len(self)} events, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """Size of their payloads, in bytes."""
        return sum(tuple(self._sizes))

    def add(self, size: int) -> None:
        """Count an event that is about to be posted."""
        self._sizes.append(size)

    def remove(self) -> None:
        """Count one that was published, or was lost."""
        self._sizes.popleft()
