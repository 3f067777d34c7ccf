"""Places: how many connections a door has, and whose they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, final

from iris.doors.accepting import GRACE
from iris.doors.clients import Client
from iris.doors.problems import Problem
from iris.doors.processor import Processor

_MIN_SHARE: Final = 4


@final
class Places:
    """The places of a door.

    Args:
        most: connections at a time.

    Attributes:
        parting: connections beyond these, whose clients are being told that the door is full.
        processor: of all strangers together: of whom the door knows no token yet.
    """

    def __init__(self, most: int) -> None:
        self.parting: Final = set[object]()
        self.processor: Final = Processor()
        self._most = most
        self._of_one = max(_MIN_SHARE, most // 4)
        self._strangers: dict[object, tuple[float, Callable[[], None]]] = {}
        """Since when each has its place, and what ends it; the oldest first."""
        self._of: dict[object, Client] = {}
        self._counts = Counter[Client]()
        self._changed = asyncio.Event()

    def are_taken(self, connections: Collection[object]) -> bool:
        """Whether there is none left."""
        return len(connections) - len(self.parting) >= self._most

    async def wait_room(self, connections: Collection[object]) -> None:
        """Wait while there is no place, but one that a stranger will have had for long enough."""
        while self.are_taken(connections) and self._strangers:
            since, _ = next(iter(self._strangers.values()))
            left = since + GRACE - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def make_room(self) -> bool:
        """End the oldest stranger's connection; return whether there was one."""
        if not self._strangers:
            return False
        connection = next(iter(self._strangers))
        _, end = self._strangers.pop(connection)
        end()
        return True

    def begin(self, connection: object, end: Callable[[], None]) -> None:
        """Give a place to a stranger; ``end`` takes it away again."""
        self._strangers[connection] = asyncio.get_running_loop().time(), end

    def admit(self, connection: object, client: Client) -> None:
        """Know whose a connection is.

        Raises:
            Problem: its client has as many as it may.
        """
        if self._of.get(connection) is client:
            return
        if self._counts[client] >= self._of_one:
            told = f"{self._of_one} connections at a time are the limit of a client at this door: close some"
            raise Problem(429, "too_many_connections", told, retry_after=1)
        self.leave(connection)
        self._of[connection] = client
        self._counts[client] += 1

    def processor_of(self, connection: object) -> Processor:
        """Return whose time is used for it."""
        client = self._of.get(connection)
        return self.processor if client is None else client.processor

    def leave(self, connection: object) -> None:
        """Give a place back."""
        self._strangers.pop(connection, None)
        self.parting.discard(connection)
        client = self._of.pop(connection, None)
        if client is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]
        self._changed.set()
