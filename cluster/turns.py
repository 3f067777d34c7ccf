"""How many handshakes a node begins at a time.

Where many nodes meet at once, on processors that they share, all the handshakes together may take longer than each of
them waits for an answer.  Then all are given up and begun anew, and none ever ends: 60 nodes that started together on
two cores never came to rest.  With few of them under way at each node, each is done in time, and the rest wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, final

import trio

AT_A_TIME: Final = 8
"""Handshakes that a node has begun lately and not finished.  With 100 nodes on two cores these take 1.2 s."""

PATIENCE: Final = 1.0
"""Seconds after which one that is not finished no longer keeps others waiting: the other end may be cut off."""


@final
class Turns:
    """Lets few of those in at a time that came together, in order; who takes long no longer counts."""

    def __init__(self) -> None:
        self._begun: dict[object, float] = {}
        self._waiting = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._begun)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the length of the block.  Cancelling the wait gives it to the next one."""
        turn = object()
        try:
            await self._wait()
            self._begun[turn] = trio.current_time()
            yield
        finally:
            self._begun.pop(turn, None)
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
        self._begun = {turn: at for turn, at in self._begun.items() if at + PATIENCE > now}
        if len(self._begun) < AT_A_TIME and not (first and self._waiting):
            return now
        return min(self._begun.values(), default=now) + PATIENCE
