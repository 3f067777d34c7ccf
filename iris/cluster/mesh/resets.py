"""Reset limit: how often a peer may have this node send its state again.

Each RESET, and each gap in a peer's frames, is work for all patterns.
"""

from __future__ import annotations

from typing import Final, Protocol, final

import trio

from iris.cluster.mesh.peer import Peer, PeerTable
from iris.kernel.token_bucket import TokenBucket

AT_ONCE: Final = 64
RATE: Final = 50.0
"""Resets of one peer that are dealt with at once, and each second in the long run.  A link that loses 1 in 20 of 1,000
frames a second needs as many; where a node has much to say again, one is a millisecond."""

_LATER: Final = 0.1
"""Seconds after which further ones are dealt with, all of them together."""


class ResetHost(Protocol):
    """The part of a mesh that resets need."""

    def notice_loss(self, peer: Peer) -> None:
        """Have both ends say everything again; called for peers that had to wait.  Must not block."""
        ...


@final
class Resets:
    """Limits the resets of one node's peers.

    Args:
        host: the mesh.
        peers: the linked nodes.
        nursery: the nursery of the mesh.
    """

    def __init__(self, host: ResetHost, peers: PeerTable, nursery: trio.Nursery) -> None:
        self._host = host
        self._peers = peers
        self._nursery = nursery
        self._frames: dict[Peer, int] = {}
        """The frame that the last RESET of each came in."""
        self._tokens: dict[Peer, TokenBucket] = {}
        self._late: dict[Peer, None] = {}
        self._waits = False

    def __repr__(self) -> str:
        return f"<Resets: {len(self._late)} late>"

    def may(self, peer: Peer, frame: int | None = None) -> bool:
        """Return True if a reset is to be handled now.  If not, it will be, unless it stands in a frame with another.

        Args:
            peer: whose frames may be lost.
            frame: the one that says so.  A second RESET in it says nothing: what this node sends from the first one on
                is not lost with what was missing when the frame was made.
        """
        if frame is not None:
            if self._frames.get(peer) == frame:
                return False
            self._frames[peer] = frame
        now = trio.current_time()
        tokens = self._tokens.get(peer)
        if tokens is None:
            tokens = self._tokens[peer] = TokenBucket(AT_ONCE, RATE, now)
        if tokens.spend(now):
            return True
        self._late[peer] = None
        if not self._waits:
            self._waits = True
            self._nursery.start_soon(self._repeat_late)
        return False

    def forget(self, peer: Peer) -> None:
        """A peer is given up."""
        self._frames.pop(peer, None)
        self._tokens.pop(peer, None)
        self._late.pop(peer, None)

    async def _repeat_late(self) -> None:
        while self._late:
            await trio.sleep(_LATER)
            late, self._late = self._late, {}
            for peer in late:
                if self._peers.get(peer.node) is peer:
                    self._host.notice_loss(peer)
        self._waits = False
