"""Node identity and peer identity: the secrets of this node, and what a peer has proved to be.

``NodeIdentity`` holds every secret of a running node and is made once per boot, by ``Credential.new_identity``.
``PeerIdentity`` is what a finished handshake has verified; it holds no secrets.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import final

from msgspec import Struct, structs

from iris.kernel.errors import AuthenticationError
from iris.kernel.names import NodeId, is_node_id
from iris.security.identity import certificate as certificates
from iris.security.identity import signing
from iris.security.identity.certificate import ClusterCertificate, NodeDelegation
from iris.security.identity.realm_bundle import OtherRealm, TrustedRealm
from iris.security.identity.signing import SigningKey
from iris.security.identity.signing import realm_fingerprint as realm_fingerprint  # part of this module's interface
from iris.security.noise import HandshakeState, KeyPair, Suite
from iris.security.secret import secrets_of


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A running node: its keys and what proves them.  The repr shows no secret.

    Args:
        node_id: this boot's id.
        realm: root public key.
        gate_secrets: one or two of 32 bytes.  The first is used when dialling, each is accepted when answering.
        certificate: the certificate of the cluster that this node speaks for.
        delegation: the delegation of this node, signed by the key in ``certificate``.
        static: X25519 keys for handshakes.
        signing: Ed25519 keys for claims that others pass on.
        trusted: realms of other owners whose nodes it speaks with.
    """

    node_id: NodeId
    realm: bytes = dataclasses.field(repr=False)
    gate_secrets: tuple[bytes, ...] = dataclasses.field(repr=False)
    certificate: ClusterCertificate
    delegation: NodeDelegation
    static: KeyPair
    signing: SigningKey
    trusted: tuple[TrustedRealm, ...] = ()
    beginnings: dict[tuple[Suite, int, str, bool], HandshakeState] = dataclasses.field(
        default_factory=dict[tuple[Suite, int, str, bool], HandshakeState], init=False, repr=False, compare=False
    )
    """The first state of all handshakes of this node, by suite, gate secret, realm and side; filled in as they come."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gate_secrets", secrets_of(self.gate_secrets))

    @property
    def cluster(self) -> str:
        """The cluster that this node speaks for."""
        return self.certificate.name

    @property
    def realm_id(self) -> str:
        """The fingerprint of the realm."""
        return realm_fingerprint(self.realm)

    @property
    def expires(self) -> int:
        """Time at which this identity stops being accepted, in seconds since 1970."""
        return min(self.certificate.not_after, self.delegation.not_after)

    def other_realm(self, realm_id: str) -> OtherRealm | None:
        """Return the trusted realm with this fingerprint."""
        return next((trusted.realm for trusted in self.trusted if trusted.realm.id == realm_id), None)

    def alias(self, alias: str) -> OtherRealm | None:
        """Return the trusted realm that is called so here."""
        return next((trusted.realm for trusted in self.trusted if trusted.realm.alias == alias), None)

    def sign(self, claim: bytes) -> bytes:
        """Sign something that other nodes pass on in this node's name; ``PeerIdentity.verify_untrusted`` checks it."""
        return self.signing.sign(signing.CLAIM, claim)

    def public(self) -> PeerIdentity:
        """Return what a peer will know of this node."""
        return PeerIdentity(
            node_id=self.node_id, realm_id=self.realm_id, certificate=self.certificate, delegation=self.delegation
        )


@final
class PeerIdentity(Struct, frozen=True, kw_only=True):
    """A verified node, of the same realm or of a trusted one: ``other_realm`` is None, or that realm."""

    node_id: NodeId
    realm_id: str
    certificate: ClusterCertificate
    delegation: NodeDelegation
    other_realm: OtherRealm | None = None

    @property
    def cluster(self) -> str:
        """The cluster that it speaks for, as its own realm calls it."""
        return self.certificate.name

    @property
    def caller(self) -> str:
        """The cluster that it speaks for, as this realm calls it: with the alias of its realm before it, if need be."""
        return (
            self.certificate.name if self.other_realm is None else f"{self.other_realm.alias}/{self.certificate.name}"
        )

    @property
    def other_realm_id(self) -> str:
        """The fingerprint of its realm if that is another one; else empty."""
        return "" if self.other_realm is None else self.realm_id

    @property
    def owner(self) -> str:
        """The owner of the key that can make any number of such nodes: its cluster; for another realm, the realm."""
        return self.other_realm_id or self.cluster

    @property
    def signing_key(self) -> bytes:
        """The public key of its claims."""
        return self.delegation.signing_key

    @property
    def expires(self) -> int:
        """Time at which its certificate or delegation ends, or the trust in its realm, in seconds since 1970."""
        ends = min(self.certificate.not_after, self.delegation.not_after)
        return ends if self.other_realm is None else min(ends, self.other_realm.ends)

    def is_same_node(self, other: PeerIdentity) -> bool:
        """Return True if ``other`` is this node, perhaps with fresher certificates: same id, cluster and keys."""
        mine, theirs = self.delegation, other.delegation
        return (self.node_id, self.realm_id, self.cluster, mine.static_key, mine.signing_key) == (
            other.node_id,
            other.realm_id,
            other.cluster,
            theirs.static_key,
            theirs.signing_key,
        )

    def check_time(self, wall_now: float) -> None:
        """Check that certificate and delegation are valid at ``wall_now``, and the bundle of another realm.

        Raises:
            AuthenticationError: they are not, or not yet.
        """
        if self.other_realm is not None:
            self.other_realm.check_time(wall_now)
        certificates.check_validity(self.certificate, self.delegation, wall_now)

    def verify_untrusted(self, claim: bytes, signature: bytes) -> None:
        """Check that this node signed ``claim`` with ``NodeIdentity.sign``.

        Raises:
            AuthenticationError: it did not.
        """
        what = f"claim of node {self.node_id} of cluster {self.cluster!r}"
        signing.verify_untrusted(self.signing_key, signing.CLAIM, claim, signature, what)


def verify_peer_untrusted(
    realm: bytes,
    *,
    node_id: str,
    certificate: bytes,
    delegation: bytes,
    wall_now: float,
    other_realm: OtherRealm | None = None,
) -> PeerIdentity:
    """Verify the whole chain of a node: realm key, certificate, delegation, node id, validity in time.

    ``other_realm`` says that the realm is that one.

    It proves that such a node exists, not that it is the one who sent this: for that it must sign something, or
    complete a handshake with ``delegation.static_key``.

    Raises:
        AuthenticationError: a part of the chain does not hold.
    """
    peer = read_peer_untrusted(realm, node_id=node_id, certificate=certificate, delegation=delegation)
    if other_realm is not None:
        peer = structs.replace(peer, other_realm=other_realm)
    peer.check_time(wall_now)
    return peer


def read_peer_untrusted(realm: bytes, *, node_id: str, certificate: bytes, delegation: bytes) -> PeerIdentity:
    """Verify all of a node's chain that never changes: everything but whether it is valid at this time.

    Raises:
        AuthenticationError: a part of the chain does not hold.
    """
    read = certificates.read_certificate_untrusted(certificate, realm)
    delegated = certificates.read_delegation_untrusted(delegation, read)
    if not is_node_id(node_id) or not delegated.names(NodeId(node_id)):
        raise AuthenticationError(f"node id {node_id!r}: the delegation is for {delegated.node}")
    return PeerIdentity(
        node_id=NodeId(node_id), realm_id=realm_fingerprint(realm), certificate=read, delegation=delegated
    )
