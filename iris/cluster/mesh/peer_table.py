"""Peer table: the linked nodes of one mesh by id, for all parts that look a peer up.

It is made before the mesh, so that what chooses routes and what sees members alive can be there before the first frame
is read.  The mesh alone adds and removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, final

from iris.cluster.mesh.peer import Peer
from iris.kernel.link import Link
from iris.kernel.names import NodeId
from iris.kernel.transport import OutgoingConnection


@final
class PeerTable:
    """The other nodes that are linked, connected or being reconnected."""

    __slots__ = ("_peers", "view")

    def __init__(self) -> None:
        self._peers: dict[NodeId, Peer] = {}
        self.view: Final[Mapping[NodeId, Peer]] = MappingProxyType(self._peers)
        """The same as a mapping that nobody can change."""

    def __repr__(self) -> str:
        return f"<PeerTable of {len(self._peers)} peers>"

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, node: object) -> bool:
        return node in self._peers

    def __iter__(self) -> Iterator[Peer]:
        """Iterate over the peers as they are now: they may come and go meanwhile."""
        return iter([*self._peers.values()])

    def get(self, node: NodeId) -> Peer | None:
        """Return a peer; None if it is not linked."""
        return self._peers.get(node)

    def add(self, peer: Peer) -> None:
        """Add a peer that is linked now."""
        self._peers[peer.node] = peer

    def remove(self, node: NodeId) -> Peer | None:
        """Remove a peer that is given up, and return it; None if it is not here."""
        return self._peers.pop(node, None)

    def outgoing_to(self, node: NodeId) -> OutgoingConnection | None:
        """Return the connection in use to a peer; None if there is none."""
        peer = self._peers.get(node)
        return None if peer is None else peer.link.outgoing

    def link_to(self, node: NodeId) -> Link | None:
        """Return the link to a peer; None if it is not linked."""
        peer = self._peers.get(node)
        return None if peer is None else peer.link
