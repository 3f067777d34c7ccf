"""How many handshakes a node begins at a time, and how long each of them may take.

Where many nodes meet at once, on processors that they share, all the handshakes together may take longer than each of
them waits for an answer.  Then all are given up and begun anew, and none ever ends: 60 nodes that started together on
two cores never came to rest.  With few of them under way at each node, each is done in time, and the rest wait.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, final

import trio

AT_A_TIME: Final = 4
"""Handshakes of one node that are under way, if it is run when it should be."""

_FEWER: Final = ((0.02, 2), (0.1, 1))
"""From which lateness on there are fewer.  With 100 nodes on two cores, and 20 ms for all that a new link brings with
it, four of each node would take 4 s each, which is what a handshake may take; one of each takes a second."""

PATIENCE: Final = 1.0
"""Seconds after which one that is not even connected no longer keeps others waiting: the other end may be cut off, or
its process stopped.  Whoever answers a connection is alive, and at most slow."""

_LATER: Final = 10.0
"""That one has so many times the lateness of this node in addition."""

_LONGER: Final = 100.0
"""A handshake may take so many times the lateness of this node longer: some twenty threads have to be run for it one
after the other, at both ends."""

_LONGEST: Final = 25.0
"""And no more seconds than that."""


@final
class Turns:
    """Lets few of those in at a time that came together; who does not even connect soon counts no more.

    Args:
        timeout: seconds that a handshake may take, if this node is run when it should be.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.lateness: Callable[[], float] = lambda: 0.0
        """Returns by how many seconds this node does too late what is due: it, or its machine, has too much to do."""
        self._until: dict[object, float] = {}
        self._waiting = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._until)

    def patience(self) -> float:
        """Seconds that a handshake may take now: what is given up for want of processor time is done again."""
        return self._timeout + min(_LONGEST, _LONGER * self.lateness())

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn, and have it for the length of the block.  Cancelling the wait gives it to the next one.

        Yields:
            what to call when there is a connection.
        """
        turn = object()

        def connected() -> None:
            self._until[turn] = math.inf

        try:
            await self._wait()
            self._until[turn] = trio.current_time() + PATIENCE + _LATER * self.lateness()
            yield connected
        finally:
            self._until.pop(turn, None)
            self._waiting.unpark()

    async def _wait(self) -> None:
        first = True
        while (free := self._next_free(first=first)) > trio.current_time():
            with trio.move_on_at(free):
                await self._waiting.park()
            first = False

    def _next_free(self, *, first: bool) -> float:
        """Return when there is a place, as far as is known now; who comes first waits behind those that wait."""
        now = trio.current_time()
        held = sorted(until for until in self._until.values() if until > now)
        if len(held) < self._at_a_time() and not (first and self._waiting):
            return now
        return held[0] if held else now + PATIENCE

    def _at_a_time(self) -> int:
        late = self.lateness()
        return min([AT_A_TIME, *(count for least, count in _FEWER if late >= least)])
