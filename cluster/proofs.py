"""Which of its clusters each member may serve now, and when that changes because a proof ends.

A record is kept for as long as its subject lives; a proof in it, by which the subject serves a further cluster, may end
before that, or be revoked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

import trio

from iris.cluster.papers import Papers
from iris.cluster.records import NodeRecord
from iris.kernel.ids import NodeId
from iris.kernel.wakeup import Wakeup

_BRIEFLY: Final = 0.01
"""Seconds at least between looks at proofs that end, however the clocks are rounded."""


@final
class Proofs:
    """The proofs of the members that one node knows.

    Args:
        look_again: called when a proof may have ended; it asks again about every record, by ``permitted``.
    """

    def __init__(self, papers: Papers, look_again: Callable[[], None]) -> None:
        self._papers = papers
        self._look_again = look_again
        self._end = math.inf
        self._earlier = Wakeup()
        self._listeners: list[Callable[[NodeId, str], None]] = []

    def on_lost(self, listener: Callable[[NodeId, str], None]) -> None:
        """Call ``listener`` with each node that may serve a cluster no more, although it would, and the cluster."""
        self._listeners.append(listener)

    def compare(self, held: NodeRecord, permitted: NodeRecord) -> None:
        """Tell of what was in a record and is not any more, because its proof has ended."""
        for cluster in sorted({entry.name for entry in held.clusters} - {entry.name for entry in permitted.clusters}):
            for listener in self._listeners:
                listener(held.node, cluster)

    def permitted(self, record: NodeRecord) -> NodeRecord:
        """Return a record that was believed with those clusters only that its subject may serve now."""
        permitted, seconds = self._papers.permitted(record)
        end = trio.current_time() + max(seconds, _BRIEFLY)
        if end < self._end:
            self._end = end
            self._earlier.wake()
        return permitted

    async def run(self) -> None:
        """See that nobody is taken for a member for longer than its proof holds; run it in one task."""
        while True:
            with trio.move_on_at(self._end) as waiting:
                await self._earlier.wait()
            if waiting.cancelled_caught:
                self._end = math.inf
                self._look_again()
