"""Credential: all that a node needs to be one of a cluster, in one value and one file.

Use::

    credential = load_credential(path)  # or LocalRealm.credential(name)
    identity = credential.new_identity(entropy, wall_now)  # once per boot
    identity = credential.renew_identity(identity, wall_now)  # before ``identity.expires``; the node id stays
    delegation = credential.delegate(identity, wall_now)  # lets this node serve the credential's cluster too

A *portable* credential holds the cluster's key: its holder can act as that cluster, and makes its own delegation at
each boot.  A *sealed* one holds the keys and the delegation of one node: who steals it can pose as that node until the
delegation ends or is revoked, and cannot make others.
"""

from __future__ import annotations

from typing import ClassVar, Final, final

from msgspec import Struct, structs

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.names import Entropy, NodeId
from iris.security.identity.certificate import (
    CLOCK_TOLERANCE,
    DELEGATION_LIFETIME,
    ClusterCertificate,
    NodeDelegation,
    check_validity,
    issue_delegation,
    node_digits,
)
from iris.security.identity.identity import NodeIdentity, realm_fingerprint
from iris.security.identity.realm_bundle import TrustedRealm
from iris.security.identity.signing import SigningKey
from iris.security.noise import KeyPair
from iris.security.secret import Redacted, secrets_of

GATE_SECRET_SIZE: Final = 32
MAX_GATE_SECRETS: Final = 2
"""Gate secrets: one, and a second one during a rotation.  Each more costs a stranger's junk 15 us of a node."""


@final
class SealedKeys(Struct, frozen=True, kw_only=True):
    """The keys of one node, and the delegation that was made for them in advance.  The repr shows no secret."""

    delegation: NodeDelegation
    static: KeyPair
    signing: SigningKey


@final
class Credential(Redacted, frozen=True, kw_only=True):
    """The right to speak for one cluster of one realm.  The repr shows no secret.

    Args:
        realm: root public key.
        gate_secrets: one or two; the first is used when dialling.
        certificate: the certificate of the cluster.
        keys: the cluster's key (portable), or those of one node (sealed).
        seeds: URLs of nodes to join through.
        trusted: realms of other owners whose nodes may be spoken with.
    """

    _unshown: ClassVar = frozenset({"realm", "gate_secrets"})

    realm: bytes
    gate_secrets: tuple[bytes, ...]
    certificate: ClusterCertificate
    keys: SigningKey | SealedKeys
    seeds: tuple[str, ...] = ()
    trusted: tuple[TrustedRealm, ...] = ()

    def __post_init__(self) -> None:
        structs.force_setattr(self, "gate_secrets", secrets_of(self.gate_secrets))
        if not 1 <= len(self.gate_secrets) <= MAX_GATE_SECRETS:
            raise ConfigError(f"credential: {len(self.gate_secrets)} gate secrets: use one, or two while they change")
        if any(len(secret) != GATE_SECRET_SIZE for secret in self.gate_secrets):
            raise ConfigError(f"credential: a gate secret is {GATE_SECRET_SIZE} bytes")
        if isinstance(self.keys, SigningKey):
            matching = self.keys.public == self.certificate.public_key
        else:
            delegation = self.keys.delegation
            matching = (delegation.static_key, delegation.signing_key) == (
                self.keys.static.public,
                self.keys.signing.public,
            )
        if not matching:
            raise ConfigError(f"credential of cluster {self.name!r}: its keys are not those that it certifies")

    @property
    def name(self) -> str:
        """The cluster that nodes with this credential speak for."""
        return self.certificate.name

    @property
    def realm_id(self) -> str:
        """The fingerprint of the realm."""
        return realm_fingerprint(self.realm)

    @property
    def sealed(self) -> bool:
        """True if it holds the keys of one node only."""
        return isinstance(self.keys, SealedKeys)

    @property
    def expires(self) -> int:
        """Time at which nodes with this credential stop being accepted, in seconds since 1970."""
        if isinstance(self.keys, SealedKeys):
            return min(self.certificate.not_after, self.keys.delegation.not_after)
        return self.certificate.not_after

    def new_identity(self, entropy: Entropy, wall_now: float) -> NodeIdentity:
        """Return the identity of a node that starts now.  Never fork or copy a process that holds one.

        Raises:
            ConfigError: the credential is not valid at ``wall_now``.
        """
        if isinstance(self.keys, SealedKeys):
            node_id = NodeId(self.keys.delegation.node + entropy(8).hex())
            static, signing = self.keys.static, self.keys.signing
        else:
            static, signing = KeyPair(entropy(32)), SigningKey(entropy(32))
            node_id = NodeId(node_digits(static.public, signing.public))
        return self._identify(node_id, static, signing, wall_now)

    def renew_identity(self, identity: NodeIdentity, wall_now: float) -> NodeIdentity:
        """Return the identity of a running node, with what is now in this credential and a fresh delegation.

        Node id and node keys stay, so peers see the same node.  Sessions go on until their own renewal.

        Raises:
            ConfigError: the credential is not valid at ``wall_now``, is of another cluster or realm, or is sealed
                for another node.
        """
        if (self.realm, self.name) != (identity.realm, identity.cluster):
            raise ConfigError(
                f"credential of cluster {self.name!r} in realm {self.realm_id}: this node is of cluster "
                f"{identity.cluster!r} in realm {identity.realm_id}; restart it to change"
            )
        if isinstance(self.keys, SealedKeys) and (
            self.keys.static.public != identity.static.public
            or self.keys.signing.public != identity.signing.public
            or not self.keys.delegation.names(identity.node_id)
        ):
            raise ConfigError(
                f"credential of cluster {self.name!r}: sealed for another node; restart this one to change"
            )
        return self._identify(identity.node_id, identity.static, identity.signing, wall_now)

    def delegate(self, identity: NodeIdentity, wall_now: float) -> NodeDelegation:
        """Return a delegation by which the node ``identity`` speaks for this credential's cluster as well.

        Raises:
            ConfigError: not valid at ``wall_now``, of another realm, or sealed (it cannot make delegations).
        """
        if isinstance(self.keys, SealedKeys):
            raise ConfigError(f"credential of cluster {self.name!r}: a sealed one cannot speak for further nodes")
        if self.realm != identity.realm:
            raise ConfigError(f"credential of cluster {self.name!r}: of realm {self.realm_id}, not {identity.realm_id}")
        self._check(None, wall_now)
        return self._delegate(self.keys, identity.node_id, identity.static, identity.signing, wall_now)

    def _delegate(
        self, key: SigningKey, node: str, static: KeyPair, signing: SigningKey, wall_now: float
    ) -> NodeDelegation:
        return issue_delegation(
            key,
            cluster=self.name,
            node=node,
            static_key=static.public,
            signing_key=signing.public,
            not_before=wall_now - CLOCK_TOLERANCE,
            not_after=min(wall_now + DELEGATION_LIFETIME, self.certificate.not_after),
        )

    def _identify(self, node_id: NodeId, static: KeyPair, signing: SigningKey, wall_now: float) -> NodeIdentity:
        self._check(self.keys.delegation if isinstance(self.keys, SealedKeys) else None, wall_now)
        if isinstance(self.keys, SealedKeys):
            delegation = self.keys.delegation
        else:
            delegation = self._delegate(self.keys, node_id, static, signing, wall_now)
        return NodeIdentity(
            node_id=node_id,
            realm=self.realm,
            gate_secrets=self.gate_secrets,
            certificate=self.certificate,
            delegation=delegation,
            static=static,
            signing=signing,
            trusted=self.trusted,
        )

    def _check(self, delegation: NodeDelegation | None, wall_now: float) -> None:
        try:
            check_validity(self.certificate, delegation, wall_now)
        except AuthenticationError as error:
            raise ConfigError(f"{error}; have a new credential issued") from None


def seal_credential(
    credential: Credential, *, entropy: Entropy, not_before: float, not_after: float, previous: Credential | None = None
) -> Credential:
    """Return a sealed credential made of a portable one: for one machine, until ``not_after``.

    Args:
        credential: holds the cluster's key.
        entropy: source of the node's keys.
        not_before: seconds since 1970.
        not_after: likewise; not later than the certificate's end.
        previous: a sealed credential to renew.  Its keys stay, so a running node can take the new one without a
            restart.

    Raises:
        ConfigError: the credential is sealed itself, or ``previous`` is not sealed or of another cluster.
    """
    if isinstance(credential.keys, SealedKeys):
        raise ConfigError(f"credential of cluster {credential.name!r}: sealed already; seal the portable one")
    if previous is None:
        static, signing = KeyPair(entropy(32)), SigningKey(entropy(32))
        node = node_digits(static.public, signing.public)[:16]
    else:
        kept = previous.keys
        if not isinstance(kept, SealedKeys) or (previous.realm, previous.name) != (credential.realm, credential.name):
            raise ConfigError(
                f"credential of cluster {previous.name!r}: not a sealed one of cluster {credential.name!r}"
            )
        node, static, signing = kept.delegation.node, kept.static, kept.signing
    delegation = issue_delegation(
        credential.keys,
        cluster=credential.name,
        node=node,
        static_key=static.public,
        signing_key=signing.public,
        not_before=not_before,
        not_after=min(not_after, credential.certificate.not_after),
    )
    return structs.replace(credential, keys=SealedKeys(delegation=delegation, static=static, signing=signing))
