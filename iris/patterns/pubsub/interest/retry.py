"""Retry of interest: changes of interest and ends of pauses that a full link did not accept are sent again.

Without the retry those nodes would not publish for a subscription, or would wait for ever, until their connection
breaks for another reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup

_PAUSE: Final = 0.1
"""Seconds between two looks for room; a link that is full to the last byte of its reserve takes longer to empty."""


@final
class InterestRetry:
    """Nodes to which the full interest, or the end of a pause, has to be sent again."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._nodes: set[NodeId] = set()
        self._news = Wakeup()

    def note(self, peer: Peer, reason: str) -> None:
        """Note a link without room for a message, counted under ``reason``."""
        self._mesh.refusals[reason] += 1
        self._nodes.add(peer.node)
        self._news.wake()

    async def run(self, send: Callable[[Peer], None]) -> None:
        """Send to those whose links have room again; run it in exactly one task.

        Args:
            send: sends a node everything; calls ``note`` if that is too much again.
        """
        while True:
            await self._news.wait()
            await trio.sleep(_PAUSE)
            nodes, self._nodes = self._nodes, set()
            for peer in filter(None, map(self._mesh.peer, nodes)):
                if peer.link.has_room():
                    send(peer)
                else:
                    self._nodes.add(peer.node)
            if self._nodes:
                self._news.wake()
