"""Link states: which nodes are linked, are to be, and are being linked for the first time.

The membership machine asks; linking and the mesh know.  The table is made before all three.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final, final

from iris.cluster.membership.partners import Partners
from iris.cluster.mesh import PeerTable
from iris.kernel.names import NodeId


@final
class LinkStates:
    """The links of one node; see ``LinkedNodes``.

    Args:
        own: the node.
        peers: the peers of its mesh.
        everybody: all members that the machine tells of are kept linked, as those are that a client has looked up.
    """

    def __init__(self, own: NodeId, peers: PeerTable, *, everybody: bool = False) -> None:
        self._own = own
        self._peers = peers
        self.new: Final[set[NodeId]] = set()
        """Nodes that are being linked for the first time, as linking notes them."""
        self.kept: Final = Partners(Random(own), everybody=everybody)  # it decides about nothing but links
        """Members that are kept linked whether they are used or not."""

    def __repr__(self) -> str:
        return f"<LinkStates: {len(self._peers)} nodes linked, {len(self.new)} new>"

    def is_linked(self, node: NodeId) -> bool:
        """See ``LinkedNodes.is_linked``."""
        return node in self._peers or node == self._own

    def is_new(self, node: NodeId) -> bool:
        """See ``LinkedNodes.is_new``."""
        return node in self.new

    def contacts(self) -> list[NodeId]:
        """See ``LinkedNodes.contacts``."""
        return [peer.node for peer in self._peers if peer.link.is_up]

    def partners(self) -> Collection[NodeId] | None:
        """See ``LinkedNodes.partners``: those that were drawn, here or there, and whoever else is linked."""
        if self.kept.missing > 0:
            return None
        return dict.fromkeys((*(peer.node for peer in self._peers), *self.kept)).keys()
