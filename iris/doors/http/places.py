"""Places: the connections of a door, and their clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Final, final

from iris.doors.accepting import GRACE, MIN_SHARE
from iris.doors.clients import Client
from iris.doors.http.limits import HttpStatistics
from iris.doors.problems import Problem
from iris.doors.processor import Processor


@final
class Places:
    """The places of a door.

    Args:
        most: connections at a time.
        counted: counters, of connections that had to make room among others.

    Attributes:
        parting: connections beyond these, whose clients are being told that the door is full.
        processor: processor of all strangers together, for what they send beyond their first request and 4 KiB: the one
            of connections that are coming is not theirs.
    """

    def __init__(self, most: int, counted: HttpStatistics) -> None:
        self.parting: Final = set[object]()
        self.processor: Final = Processor()
        self._most = most
        self._counted = counted
        self._coming = 0
        self._of_one = max(MIN_SHARE, most // 4)
        self._unauthenticated: dict[object, tuple[float, Callable[[], None]]] = {}
        """Time since when each connection has its place, and the function that ends it; the oldest first."""
        self._of: dict[object, Client] = {}
        self._counts = Counter[Client]()
        self._changed = asyncio.Event()

    def are_taken(self, connections: Collection[object]) -> bool:
        """Return whether there is none left."""
        return len(connections) - len(self.parting) >= self._most

    def _are_kept(self, connections: Collection[object]) -> bool:
        return len(connections) - len(self.parting) + self._coming >= self._most

    @asynccontextmanager
    async def coming(self, connections: Collection[object]) -> AsyncGenerator[None]:
        """Keep a place for one that comes within the block; wait for it until a stranger's time is over, if need be."""
        while self._are_kept(connections) and (self._unauthenticated or self._coming):
            left = None
            if self._unauthenticated:
                since, _ = next(iter(self._unauthenticated.values()))
                left = since + GRACE - asyncio.get_running_loop().time()
                if left <= 0:
                    self.make_room()
                    break
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self._changed.set()

    def make_room(self) -> bool:
        """End the oldest stranger's connection; return whether there was one."""
        if not self._unauthenticated:
            return False
        self._counted.turned_away += 1
        connection = next(iter(self._unauthenticated))
        _, end = self._unauthenticated.pop(connection)
        end()
        return True

    def begin(self, connection: object, end: Callable[[], None]) -> None:
        """Give a place to a stranger; ``end`` takes it away again."""
        self._unauthenticated[connection] = asyncio.get_running_loop().time(), end
        self._changed.set()  # who waits for one that comes now waits for a stranger's time

    def admit(self, connection: object, client: Client) -> None:
        """Note whose a connection is; raise Problem if its client has as many as it may."""
        if self._of.get(connection) is client:
            return
        if self._counts[client] >= self._of_one:
            detail = f"{self._of_one} connections at a time are the limit of a client at this door: close some"
            raise Problem(429, "too_many_connections", detail, retry_after=1)
        self.leave(connection)
        self._of[connection] = client
        self._counts[client] += 1

    def processor_of(self, connection: object, unauthenticated: Processor | None = None) -> Processor:
        """Return the processor whose time it uses: ``unauthenticated``, if given, until it has shown a token."""
        client = self._of.get(connection)
        return client.processor if client is not None else unauthenticated or self.processor

    def leave(self, connection: object) -> None:
        """Give a place back."""
        self._unauthenticated.pop(connection, None)
        self.parting.discard(connection)
        client = self._of.pop(connection, None)
        if client is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]
        self._changed.set()
