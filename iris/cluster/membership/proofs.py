"""Membership proofs: verification of what a record shows, and the time at which each proof ends.

A node shows its proof to those it has no session with.  A record is signed by the node it is about.  Its proof is the
chain from the realm's root to the key of that signature: cluster certificate and node delegation.  For each further
cluster that the node serves it shows another such chain, unless its own certificate names that cluster among those it
may serve.

Two failures differ.  A chain that was never right spoils the record that carries it.  One that was right and has ended,
or has been revoked, spoils the record only if it is the node's own; if it is that of a further cluster, the node is no
member of that cluster, and nothing else follows.

A record is kept for as long as its subject lives, and may outlive a proof in it.  So there is a timer for the clusters
that each member may serve, until the next of its proofs ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol, final

import trio
from msgspec import structs

from iris.cluster.swim import ClusterEntry, NodeRecord
from iris.kernel.errors import AuthenticationError, RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import pack, unpack_untrusted
from iris.security.identity import (
    ClusterCertificate,
    NodeDelegation,
    NodeIdentity,
    OtherRealm,
    PeerIdentity,
    read_certificate_untrusted,
    read_peer_untrusted,
)

_REMEMBERED: Final = 8192
"""Chains that were verified, 3 KiB each; verifying one anew takes 0.2 ms."""

_LATER: Final = 60.0
"""Seconds after which a chain is looked at again that is not valid yet."""


def proof_of(certificate: ClusterCertificate, delegation: NodeDelegation) -> bytes:
    """Return the chain that a record carries."""
    return pack((certificate.signed, delegation.signed))


def serves_by_right(certificate: ClusterCertificate, cluster: str) -> bool:
    """Return whether the holder of a certificate may serve ``cluster`` without a further proof."""
    rights = certificate.rights
    return cluster == certificate.name or (rights.serves is not None and rights.may_serve(cluster))


class PeerCheck(Protocol):
    """Knows which nodes are revoked.  Asked whenever a statement or a proof of one is looked at; must not block."""

    def check(self, peer: PeerIdentity) -> None:
        """Raise AuthenticationError for a node that is revoked."""
        ...


@final
class ProofVerifier:
    """Signs this node's statements and verifies those of others.

    Args:
        admission: the nodes that are revoked, though their certificates are in order; None: no node is.
    """

    def __init__(
        self, identity: NodeIdentity, wall_clock: Callable[[], float], admission: PeerCheck | None = None
    ) -> None:
        self._identity = identity
        self._wall_clock = wall_clock
        self._admission = admission
        self._known: dict[tuple[bytes, NodeId, bytes], PeerIdentity] = {}

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement in this node's name."""
        return self._identity.sign(statement)

    def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
        """Return whether the subject of ``record`` signed ``statement``, and could ever serve what the record says."""
        try:
            peer = self._current_untrusted(record.node, record.proof)
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

    def holds(self, record: NodeRecord) -> bool:
        """Return True if a record's subject is still to be believed: not revoked, its certificates not ended."""
        try:
            self._current_untrusted(record.node, record.proof)
        except (AuthenticationError, RemoteProtocolError):
            return False
        return True

    def continues(self, held: NodeRecord, record: NodeRecord) -> bool:
        """Return whether two records that were believed are of one node: same cluster and same keys."""
        try:
            known = self._chain_untrusted(held.node, held.proof)
            return known.is_same_node(self._chain_untrusted(record.node, record.proof))
        except (AuthenticationError, RemoteProtocolError):
            return False

    def issuer(self, record: NodeRecord) -> bytes:
        """Return the public key in the certificate of a record, which says it is by it; empty if there is none."""
        try:
            match unpack_untrusted(record.proof):
                case (bytes() as certificate, bytes()):
                    return read_certificate_untrusted(certificate, self._identity.realm).public_key
                case _:
                    return b""
        except (AuthenticationError, RemoteProtocolError):
            return b""

    def check_known(self, record: NodeRecord, peer: PeerIdentity) -> None:
        """Check that a node which has proved itself in a handshake is the one that a record is about.

        Raises:
            AuthenticationError: it has that node's id, and other keys or another cluster.
        """
        if not self._chain_untrusted(record.node, record.proof).is_same_node(peer):
            raise AuthenticationError(
                f"node {peer.node_id} of cluster {peer.cluster!r} has the id of another node of {record.name!r}"
            )

    def permitted(self, record: NodeRecord) -> tuple[NodeRecord, float]:
        """Return a record that was believed with those clusters only that its subject may serve now.

        Returns:
            It, and the seconds until that may change by itself: infinity if there is nothing in it that ends.
        """
        entries: list[ClusterEntry] = []
        until = math.inf
        for entry in record.clusters:
            if entry.proof:
                until = min(until, _LATER)
                try:
                    until = min(until, self._current_untrusted(record.node, entry.proof).expires - self._wall_clock())
                except (AuthenticationError, RemoteProtocolError):
                    continue
            entries.append(entry)
        if len(entries) == len(record.clusters):
            return record, until
        return structs.replace(record, clusters=tuple(entries)), until

    def are_current(self, peer: PeerIdentity) -> bool:
        """Return whether the certificates that a node has shown in a handshake still hold."""
        try:
            self._check_now(peer)
        except AuthenticationError:
            return False
        return True

    def may_serve(self, peer: PeerIdentity, cluster: str, proof: bytes) -> bool:
        """Return whether a peer that has finished a handshake may serve a cluster, by ``proof`` if that is needed."""
        if not proof:
            return serves_by_right(peer.certificate, cluster)
        return self.proves(peer.node_id, cluster, proof, peer.other_realm)

    def proves(self, node: NodeId, cluster: str, proof: bytes, realm: OtherRealm | None = None) -> bool:
        """Return whether ``proof`` shows that a node may serve a cluster now, one of another realm if that is given."""
        try:
            return self._current_untrusted(node, proof, realm).cluster == cluster
        except (AuthenticationError, RemoteProtocolError):
            return False

    def _current_untrusted(self, node: NodeId, proof: bytes, realm: OtherRealm | None = None) -> PeerIdentity:
        """Verify that a chain holds now and is not revoked; raise as ``_chain_untrusted`` does if not."""
        peer = self._chain_untrusted(node, proof, realm)
        self._check_now(peer)
        return peer

    def _check_now(self, peer: PeerIdentity) -> None:
        peer.check_time(self._wall_clock())
        if self._admission is not None:
            self._admission.check(peer)

    def _chain_untrusted(self, node: NodeId, proof: bytes, realm: OtherRealm | None = None) -> PeerIdentity:
        """Verify what never changes of a chain, once.

        Raises:
            AuthenticationError, RemoteProtocolError: the chain does not hold.
        """
        root = self._identity.realm if realm is None else realm.bundle.realm
        known = self._known.pop((root, node, proof), None)
        if known is None:
            match unpack_untrusted(proof):
                case (bytes() as certificate, bytes() as delegation):
                    known = read_peer_untrusted(root, node_id=node, certificate=certificate, delegation=delegation)
                case _:
                    raise RemoteProtocolError("a proof is a certificate and a delegation")
            # Only what has verified gets here, and only what never changes: its time, and whether it is revoked, are
            # looked at anew for each use.
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
        self._known[root, node, proof] = known
        return known if realm is None else structs.replace(known, other_realm=realm)


_BRIEFLY: Final = 0.01
"""Seconds at least between looks at proofs that end, however the clocks are rounded."""


@final
class Proofs:
    """The proofs of the members that one node knows."""

    def __init__(self, verifier: ProofVerifier) -> None:
        self._verifier = verifier
        self._end = math.inf
        self._earlier = Wakeup()
        self._listeners: list[Callable[[NodeId, str], None]] = []

    def on_lost(self, listener: Callable[[NodeId, str], None]) -> None:
        """Call ``listener`` with a node, and a cluster that it says it serves and may serve no more."""
        self._listeners.append(listener)

    def compare(self, held: NodeRecord, permitted: NodeRecord) -> None:
        """Notify the listeners of clusters whose proof in a record has ended."""
        for cluster in sorted({entry.name for entry in held.clusters} - {entry.name for entry in permitted.clusters}):
            for listener in self._listeners:
                listener(held.node, cluster)

    def permitted(self, record: NodeRecord) -> NodeRecord:
        """Return a record that was believed with those clusters only that its subject may serve now."""
        permitted, seconds = self._verifier.permitted(record)
        end = trio.current_time() + max(seconds, _BRIEFLY)
        if end < self._end:
            self._end = end
            self._earlier.wake()
        return permitted

    async def wait_end(self) -> None:
        """Wait until a proof may have ended: ask again about every record then, by ``permitted``.  For one task."""
        while True:
            with trio.move_on_at(self._end) as waiting:
                await self._earlier.wait()
            if waiting.cancelled_caught:
                self._end = math.inf
                return
