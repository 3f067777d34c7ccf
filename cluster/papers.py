"""The proofs in membership records: what a node shows to be believed by those it has no session with.

A record is signed by the node it is about.  Its proof is the chain from the realm's root to the key of that
signature: cluster certificate and node delegation.  For each further cluster that the node serves it shows another
such chain, unless its own certificate names that cluster among those it may serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from iris.cluster.records import NodeRecord
from iris.kernel.errors import AuthenticationError, RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.kernel.wire import pack, unpack_untrusted
from iris.security.certificate import ClusterCertificate, NodeDelegation
from iris.security.identity import NodeIdentity, PeerIdentity, verify_peer_untrusted

_REMEMBERED: Final = 4096


def proof_of(certificate: ClusterCertificate, delegation: NodeDelegation) -> bytes:
    """Return the chain that a record carries."""
    return pack((certificate.signed, delegation.signed))


def serves_by_right(certificate: ClusterCertificate, cluster: str) -> bool:
    """Tell whether the holder of a certificate may serve ``cluster`` without a further proof."""
    rights = certificate.rights
    return cluster == certificate.name or (rights.serves is not None and rights.may_serve(cluster))


@final
class Papers:
    """Signs this node's statements and verifies those of others.

    Args:
        check_peer: raises AuthenticationError for a node that is revoked, though its papers are in order.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        wall_clock: Callable[[], float],
        check_peer: Callable[[PeerIdentity], None] = lambda _: None,
    ) -> None:
        self._identity = identity
        self._wall_clock = wall_clock
        self._check_peer = check_peer
        self._known: dict[tuple[NodeId, bytes], PeerIdentity] = {}

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement in this node's name."""
        return self._identity.sign(statement)

    def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
        """Tell whether the subject of ``record`` signed ``statement`` and may serve what the record says."""
        try:
            peer = self._chain_untrusted(record.node, record.proof)
            if peer.cluster != record.name:
                return False
            for entry in record.clusters:
                if entry.proof:
                    if self._chain_untrusted(record.node, entry.proof).cluster != entry.name:
                        return False
                elif not serves_by_right(peer.certificate, entry.name):
                    return False
            peer.verify_untrusted(statement, signature)
        except (AuthenticationError, RemoteProtocolError):
            return False
        return True

    def may_serve(self, peer: PeerIdentity, cluster: str, proof: bytes) -> bool:
        """Tell whether a peer that has finished a handshake may serve a cluster, by ``proof`` if that is needed."""
        if not proof:
            return serves_by_right(peer.certificate, cluster)
        try:
            return self._chain_untrusted(peer.node_id, proof).cluster == cluster
        except (AuthenticationError, RemoteProtocolError):
            return False

    def _chain_untrusted(self, node: NodeId, proof: bytes) -> PeerIdentity:
        """Verify a chain; what was verified once is only checked for its time, and for being revoked since.

        Raises:
            AuthenticationError, RemoteProtocolError: the chain does not hold.
        """
        known = self._known.get((node, proof))
        now = self._wall_clock()
        if known is not None and now < known.expires:
            self._check_peer(known)
            return known
        match unpack_untrusted(proof):
            case (bytes() as certificate, bytes() as delegation):
                peer = verify_peer_untrusted(
                    self._identity.realm, node_id=node, certificate=certificate, delegation=delegation, wall_now=now
                )
            case _:
                raise RemoteProtocolError("a proof is a certificate and a delegation")
        self._check_peer(peer)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[node, proof] = peer
        return peer
