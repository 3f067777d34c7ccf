"""How many handshakes a node begins at a time, and how long each of them may take.

Where many nodes meet at once, on processors that they share, all the handshakes together may take longer than each of
them waits for an answer.  Then all are given up and begun anew, and none ever ends: 60 nodes that started together on
two cores never came to rest.  With few of them under way at each node, each is done in time, and the rest wait.

Those wait by who told of them: for each source in turn one is let in.  Whoever has a credential can make up thousands
of nodes that nobody finds at their addresses, and each takes a second; nodes of other clusters, seeds and peers whose
connection broke wait for one of those at the most, not for all.
"""

from __future__ import annotations

import math
from collections import deque
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
class _Turn:
    """One that wants in.  ``woken``: it is in, or is to look who counts no more."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken = trio.Event()


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
        self._until: dict[_Turn, float] = {}
        """Those that are in, and until when each of them counts."""
        self._waiting: dict[str, deque[_Turn]] = {}
        """Those that wait, by source; the source whose turn is next comes first."""
        self._watcher: _Turn | None = None
        """The one of those that wait which looks when somebody counts no more.  If all did, thousands would wake up."""

    def __len__(self) -> int:
        return len(self._until)

    def patience(self) -> float:
        """Seconds that a handshake may take now: what is given up for want of processor time is done again."""
        return self._timeout + min(_LONGEST, _LONGER * self.lateness())

    @asynccontextmanager
    async def take(self, source: str = "") -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn, and have it for the length of the block.  Cancelling the wait gives it to the next one.

        Args:
            source: who told of the node that is to be reached.  Those of one source come in their order.

        Yields:
            what to call when there is a connection.
        """
        turn = _Turn()

        def connected() -> None:
            self._until[turn] = math.inf

        try:
            await self._wait(turn, source)
            yield connected
        finally:
            self._until.pop(turn, None)
            self._let_in()

    async def _wait(self, turn: _Turn, source: str) -> None:
        self._waiting.setdefault(source, deque()).append(turn)
        self._let_in()
        try:
            while turn not in self._until:
                self._watcher = self._watcher or turn
                with trio.move_on_at(self._next_look() if self._watcher is turn else math.inf):
                    await turn.woken.wait()
                    turn.woken = trio.Event()
                self._let_in()
        finally:
            if turn not in self._until:
                self._waiting[source].remove(turn)
                if not self._waiting[source]:
                    del self._waiting[source]
            if self._watcher is turn:
                self._watcher = None
            if self._watcher is None:  # also when this one was to be it, and is cancelled
                for queue in self._waiting.values():
                    queue[0].woken.set()  # which makes it the next one
                    break

    def _let_in(self) -> None:
        """Let in as many as there are places, of each source one in turn."""
        now = trio.current_time()
        while self._waiting and sum(until > now for until in self._until.values()) < self._at_a_time():
            source, queue = next(iter(self._waiting.items()))
            turn = queue.popleft()
            del self._waiting[source]
            if queue:
                self._waiting[source] = queue
            self._until[turn] = now + PATIENCE + _LATER * self.lateness()
            turn.woken.set()

    def _next_look(self) -> float:
        """Return when there may be a place although nobody has said so."""
        now = trio.current_time()
        return min((until for until in self._until.values() if now < until < math.inf), default=now + PATIENCE)

    def _at_a_time(self) -> int:
        late = self.lateness()
        return min([AT_A_TIME, *(count for least, count in _FEWER if late >= least)])
