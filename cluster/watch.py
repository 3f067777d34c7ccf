"""Users who follow a cluster: each has its own queue of changes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final, final

import trio

from iris.cluster.roster import Change
from iris.kernel.wakeup import Wakeup

_MAX_WAITING: Final = 65_536


@final
class Watch:
    """Changes of one cluster, as an async iterator for one task.  Made by ``node.watch``.

    Of the members at the node's own site only: what gateways tell of others is who can be asked now, which
    ``node.members`` returns, and not what happens to each.  Changes come in the order in which this node saw them;
    other nodes may see another one.

    It ends when the node is closed.

    Cancelling a wait loses no change.  A reader that leaves 65,536 changes waiting loses the oldest, counted in
    ``missed``; ``node.members`` always has the present state.
    """

    def __init__(self, cluster: str, present: Iterable[Change]) -> None:
        self.cluster: Final = cluster
        self.missed = 0
        self._changes: deque[Change] = deque(maxlen=_MAX_WAITING)
        self._news = Wakeup()
        self._ended = False
        for change in present:
            self._add(change)

    def __repr__(self) -> str:
        return f"<Watch of {self.cluster}: {len(self._changes)} changes waiting>"

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        if self._changes:
            await trio.lowlevel.checkpoint()  # changes are rare: each may let others run, and be cancelled
        while not self._changes:
            if self._ended:
                raise StopAsyncIteration
            await self._news.wait()
        return self._changes.popleft()

    def _add(self, change: Change) -> None:
        """Queue a change."""
        self.missed += len(self._changes) == _MAX_WAITING
        self._changes.append(change)
        self._news.wake()

    def _end(self) -> None:
        """Let the reader take what waits, and end its iteration then."""
        self._ended = True
        self._news.wake()
