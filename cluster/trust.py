"""Peers of other realms, when what this node trusts changes: it got another credential."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from iris.cluster.peer import Peer
from iris.kernel.errors import AuthenticationError
from iris.kernel.ids import NodeId
from iris.security.identity import NodeIdentity, PeerIdentity


def check_identity(peer: PeerIdentity, known: Peer | None, own: NodeIdentity) -> None:
    """Check that a node which has proved who it is, is the one that is linked already, and of a realm that is trusted.

    Raises:
        AuthenticationError: it is not; or what is trusted has changed since its handshake began.
    """
    if known is not None and not known.identity.is_same_node(peer):
        raise AuthenticationError(f"node {peer.node_id} of cluster {peer.cluster!r} has the id of a linked node")
    if peer.foreign is not None and own.foreign(peer.realm_id) != peer.foreign:
        raise AuthenticationError(f"realm {peer.foreign.alias!r} is not trusted as it was when the handshake began")


def follow_trust(peers: Mapping[NodeId, Peer], own: NodeIdentity, drop: Callable[[NodeId, str], None]) -> None:
    """Give up the peers whose realm is not trusted any more, or not in the same way; tell the others of a longer time.

    Who is given up and still trusted comes back, and is then taken by the new lists.
    """
    for peer in list(peers.values()):
        former = peer.identity.foreign
        if former is None:
            continue
        trusted = own.foreign(former.id)
        if trusted is None:
            drop(peer.node, f"realm {former.alias!r} is not trusted any more")
        elif not trusted.means_the_same(former):
            drop(peer.node, f"what realm {former.alias!r} may do has changed")
        else:
            peer.identity = dataclasses.replace(peer.identity, foreign=trusted)
