"""Certificate chain: cluster certificates signed by the realm's root, node delegations signed by the cluster's key.

Chain: realm public key -> certificate (this key is the cluster "databases") -> delegation (this X25519 key is a node
of it).  A peer that knows the realm public key needs nothing else to know who is calling.

Both are positional msgpack, signed as raw bytes, and stay together with their signature (``signed``).  Nothing in
them is decoded before the signature has been verified.

``wall_now`` is seconds since 1970.  Validity is compared strictly; who issues takes ``CLOCK_TOLERANCE`` off the
start, for peers whose clock is behind.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import ClassVar, Final, TypeGuard, final

from iris.kernel.errors import AuthenticationError, ConfigError, RemoteProtocolError
from iris.kernel.names import NodeId, check_name, is_name
from iris.kernel.shapes import are_texts, is_tuple
from iris.kernel.wire import pack, unpack_untrusted
from iris.security.identity import signing
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from iris.security.secret import Redacted

VERSION: Final = 1

CLOCK_TOLERANCE: Final = 300
"""Seconds by which clocks may disagree without a fresh certificate or delegation being refused."""

DELEGATION_LIFETIME: Final = 24 * 3600
"""Seconds that a node's delegation lasts unless it is issued for longer: one day's work for the thief of a node key."""

LONGEST_DELEGATION: Final = 2 * DELEGATION_LIFETIME
"""Seconds from the start to the end of a delegation for one node id, which is one boot; who receives one that is for
longer refuses it.  A thief who had a cluster's key for a moment, and made a delegation then, is out two days later."""

LONGEST_SEALED: Final = 400 * 24 * 3600
"""Seconds of a delegation that names half of a node id, which is for one machine: a year, and time to renew it."""

MAX_SIGNED: Final = 8 * 1024
"""Limit on a signed certificate in bytes; a larger one is refused when it is issued."""


@final
class ClusterCertificate(Redacted, frozen=True, kw_only=True):
    """The root's statement that a public key is a cluster of the realm, until when, and what it may do."""

    _unshown: ClassVar = frozenset({"public_key", "signed"})

    name: str
    public_key: bytes
    generation: int
    not_before: int
    not_after: int
    rights: Rights
    signed: bytes

    def may_serve(self, cluster: str) -> bool:
        """Return whether nodes with this certificate may be members of ``cluster``."""
        return cluster == self.name or self.rights.may_serve(cluster)


@functools.lru_cache(maxsize=2048)  # the same keys come with each handshake; who has none of the realm adds no entry
def node_digits(static_key: bytes, signing_key: bytes) -> str:
    """Return the id of the node with these public keys.

    The signer of delegations cannot choose it: a holder of one cluster's key cannot speak as a node of another.
    """
    return hashlib.sha256(b"iris node 1\0" + static_key + signing_key).hexdigest()[:32]


@final
class NodeDelegation(Redacted, frozen=True, kw_only=True):
    """The cluster's statement that a node speaks for it.

    ``node`` is a whole node id, or, in a delegation that outlives one boot, the first half: the node completes it
    with fresh random digits each time it starts, because a node id is never used twice.  Either follows from the
    node's keys, see ``node_digits``.
    """

    _unshown: ClassVar = frozenset({"static_key", "signing_key", "signed"})

    cluster: str
    node: str
    static_key: bytes
    signing_key: bytes
    not_before: int
    not_after: int
    signed: bytes

    def names(self, node_id: NodeId) -> bool:
        """Return whether this delegation speaks of ``node_id``, and rightly."""
        return (
            len(node_id) == 32
            and node_id.startswith(self.node)
            and node_digits(self.static_key, self.signing_key).startswith(self.node)
        )


def issue_certificate(
    root: SigningKey,
    *,
    name: str,
    public_key: bytes,
    generation: int,
    not_before: float,
    not_after: float,
    rights: Rights,
) -> ClusterCertificate:
    """Sign a certificate with the realm's root key.

    Raises:
        ConfigError: the name is not one, the validity is empty, or the rights take more than 8 KiB.
    """
    check_name(name, "cluster")
    start, end = _validity(not_before, not_after, f"certificate of cluster {name!r}")
    fields = (
        VERSION,
        name,
        public_key,
        generation,
        start,
        end,
        rights.serves,
        rights.publishes,
        rights.subscribes,
        rights.gateway,
    )
    signed = root.attach(signing.CERTIFICATE, pack(fields))
    if len(signed) > MAX_SIGNED:
        raise ConfigError(f"the certificate of cluster {name!r} is {len(signed)} bytes: the limit is {MAX_SIGNED}")
    return ClusterCertificate(
        name=name,
        public_key=public_key,
        generation=generation,
        not_before=start,
        not_after=end,
        rights=rights,
        signed=signed,
    )


def issue_delegation(
    cluster_key: SigningKey,
    *,
    cluster: str,
    node: str,
    static_key: bytes,
    signing_key: bytes,
    not_before: float,
    not_after: float,
) -> NodeDelegation:
    """Sign a delegation with the cluster's key; ``node`` is a node id (32 hexadecimal digits) or its first half.

    Raises:
        ConfigError: the validity is empty, or longer than anybody would accept.
    """
    what = f"delegation of a node of cluster {cluster!r}"
    start, end = _validity(not_before, not_after, what)
    if end - start > (longest := _longest_delegation(node)):
        raise ConfigError(f"{what}: it would be for {(end - start) / 86_400:.1f} days: {longest // 86_400} at most")
    fields = (VERSION, cluster, bytes.fromhex(node), static_key, signing_key, start, end)
    return NodeDelegation(
        cluster=cluster,
        node=node,
        static_key=static_key,
        signing_key=signing_key,
        not_before=start,
        not_after=end,
        signed=cluster_key.attach(signing.DELEGATION, pack(fields)),
    )


def read_certificate_untrusted(signed: bytes, realm: bytes) -> ClusterCertificate:
    """Verify a certificate against the realm's public key, then decode it.  Validity in time is not looked at.

    Raises:
        AuthenticationError: not signed by this realm, or malformed.
    """
    if len(signed) > MAX_SIGNED:
        raise AuthenticationError(f"certificate: {len(signed)} bytes: the limit is {MAX_SIGNED}")
    return _read_certificate(signed, realm)


# Every member of a cluster sends the same certificate, at each handshake.  Whether a signature is valid never
# changes, failures are not kept, and only who has the root key can add entries.
@functools.lru_cache(maxsize=256)
def _read_certificate(signed: bytes, realm: bytes) -> ClusterCertificate:
    # The signature first: the decoder sees nothing that the root has not signed.
    fields = _fields(signing.detach_untrusted(realm, signing.CERTIFICATE, signed, "certificate"), "certificate")
    match fields:
        case (
            int(version),
            str(name),
            bytes(public_key),
            int(generation),
            int(not_before),
            int(not_after),
            serves,
            publishes,
            subscribes,
            bool(gateway),
        ) if (
            version == VERSION
            and is_name(name)
            and len(public_key) == signing.PUBLIC_KEY_SIZE
            and generation >= 0
            and are_texts(serves)
            and _are_patterns(publishes)
            and _are_patterns(subscribes)
        ):
            try:
                rights = Rights(serves=serves, publishes=publishes, subscribes=subscribes, gateway=gateway)
            except ConfigError as error:
                raise AuthenticationError(f"certificate: {error}") from None
            return ClusterCertificate(
                name=name,
                public_key=public_key,
                generation=generation,
                not_before=not_before,
                not_after=not_after,
                rights=rights,
                signed=signed,
            )
        case _:
            raise AuthenticationError("certificate: malformed, or of another version")


def read_delegation_untrusted(signed: bytes, certificate: ClusterCertificate) -> NodeDelegation:
    """Verify a delegation against the certified key of its cluster, then decode it.

    Raises:
        AuthenticationError: not signed by this cluster, or malformed.
    """
    if len(signed) > MAX_SIGNED:
        raise AuthenticationError(f"delegation: {len(signed)} bytes: the limit is {MAX_SIGNED}")
    return _read_delegation(signed, certificate.name, certificate.public_key)


# A node shows the same one in its record, in each handshake, and when a session is renewed.  As above, only who has a
# cluster's key can add entries.
@functools.lru_cache(maxsize=2048)
def _read_delegation(signed: bytes, of_cluster: str, cluster_key: bytes) -> NodeDelegation:
    what = f"delegation of a node of cluster {of_cluster!r}"
    fields = _fields(signing.detach_untrusted(cluster_key, signing.DELEGATION, signed, what), what)
    match fields:
        case (
            int(version),
            str(cluster),
            bytes(node),
            bytes(static_key),
            bytes(signing_key),
            int(not_before),
            int(not_after),
        ) if (
            version == VERSION
            and cluster == of_cluster
            and len(node) in (8, 16)
            and len(static_key) == 32
            and len(signing_key) == signing.PUBLIC_KEY_SIZE
        ):
            # Looked at here and not only by the issuer: a thief of a cluster's key issues without it.
            if not_after - not_before > (longest := _longest_delegation(node.hex())):
                raise AuthenticationError(f"{what}: made for more than {longest // 86_400} days")
            return NodeDelegation(
                cluster=cluster,
                node=node.hex(),
                static_key=static_key,
                signing_key=signing_key,
                not_before=not_before,
                not_after=not_after,
                signed=signed,
            )
        case _:
            raise AuthenticationError(f"{what}: malformed, or of another version or cluster")


def _longest_delegation(node: str) -> int:
    """Return how many seconds a delegation for a node id, or for half of one, may be for."""
    return LONGEST_DELEGATION if len(node) == 32 else LONGEST_SEALED


@final
class OutOfDate(AuthenticationError):
    """A certificate or delegation is not valid yet, or no longer: it has ended, or the clocks differ.

    Args:
        message: says which one.
        document: the one.
    """

    def __init__(self, message: str, document: ClusterCertificate | NodeDelegation) -> None:
        super().__init__(message)
        self.document = document


def check_validity(certificate: ClusterCertificate, delegation: NodeDelegation | None, wall_now: float) -> None:
    """Check that a chain is valid at ``wall_now``.

    Raises:
        OutOfDate: a part of it is not valid yet, or no longer.
    """
    for document in (certificate, delegation):
        if document is None or document.not_before <= wall_now < document.not_after:
            continue
        what = (
            f"certificate of cluster {document.name!r}"
            if isinstance(document, ClusterCertificate)
            else f"delegation of node {document.node} of cluster {document.cluster!r}"
        )
        if wall_now < document.not_before:
            left = document.not_before - wall_now
            raise OutOfDate(f"{what}: valid only in {left:.0f} s; check the clocks", document)
        raise OutOfDate(f"{what}: expired {wall_now - document.not_after:.0f} s ago", document)


def _validity(not_before: float, not_after: float, what: str) -> tuple[int, int]:
    if not (math.isfinite(not_before) and math.isfinite(not_after)):
        raise ConfigError(f"{what}: it would be valid from {not_before} until {not_after}")
    start, end = int(not_before), int(not_after)
    if not 0 <= start < end < 2**40:
        raise ConfigError(f"{what}: it would be valid from {start} until {end}")
    return start, end


def _fields(message: bytes, what: str) -> tuple[object, ...]:
    try:
        fields = unpack_untrusted(message)
    except RemoteProtocolError as error:
        raise AuthenticationError(f"{what}: {error}") from None
    if not is_tuple(fields):
        raise AuthenticationError(f"{what}: malformed")
    return fields


def _are_patterns(value: object) -> TypeGuard[tuple[str, ...] | None]:
    return value is None or are_texts(value)
