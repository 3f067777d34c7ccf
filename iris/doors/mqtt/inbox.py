"""Inbox: packets that a client has sent and the door has not done yet, in their order, bounded; and their end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, final

from iris.doors.mqtt.packets import Publish, Subscribe, Unsubscribe

Waiting = Publish | Subscribe | Unsubscribe

_PACKETS: Final = 32
_BYTES: Final = 1 << 20
"""Limits of what may wait, and as much be done at a time; the packet that goes beyond the bytes is still accepted."""

RECEIVE_MAXIMUM: Final = 2 * _PACKETS
"""Messages of QoS 1 that a client may send before it has an answer; beyond it nothing more is read."""


@final
class Inbox:
    """Takes from one task and gives to another one.

    Args:
        release: called with the bytes of packets that are done.
    """

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._taken = 0
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._end: Exception | None = None
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    async def put(self, packet: Waiting, size: int) -> None:
        """Add a packet, when there is room."""
        while len(self._waiting) >= _PACKETS or self._bytes >= _BYTES:
            self._emptied.clear()
            await self._emptied.wait()
        self._waiting.append(packet)
        self._bytes += size
        self._filled.set()

    def end(self, error: Exception) -> None:
        """Say that nothing comes any more, and why."""
        self._end = error
        self._filled.set()

    async def pop_all(self) -> list[Waiting]:
        """Return all that waits; when there is nothing any more, raise what ``end`` was given.

        What was returned before is done.
        """
        self._release(self._taken)
        self._taken = 0
        while not self._waiting:
            if self._end is not None:
                raise self._end
            self._filled.clear()
            await self._filled.wait()
        taken = list(self._waiting)
        self._waiting.clear()
        self._taken, self._bytes = self._bytes, 0
        self._emptied.set()
        return taken
