"""Revocation list: whom nobody talks to any more, signed by the realm's root.

Use::

    revocations = NewestRevocations(identity.realm, load_revocations(path, identity.realm))
    initiator = Initiator(..., rules=HandshakeRules(admit=revocations.check))  # and Responder(...)
    if revocations.receive_untrusted(signed):  # from gossip or a file; True: it is newer
        save_revocations(path, revocations.current)
        for peer in peers:  # and end the sessions that are in progress
            if revocations.reason(peer.identity): mesh.drop(...)
    share(revocations.current.signed)

A list is complete: the newest one replaces all before it.  Newer is the one with the higher number.  Of two with the
same number, which the root should not have signed, it is the one that was signed later, then the greater one: so every
order of arrival ends at the same list.  An older list is refused, also after a restart, because the newest is kept
on disk (``iris.security.files.realm_files``).

What can be revoked: a cluster's certificates below a generation (its key was stolen; the next generation has another
key), and a node, by its id or by the first half that a sealed credential gives to all its node ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, TypeGuard, final

from iris.kernel.errors import AuthenticationError, ConfigError, RemoteProtocolError
from iris.kernel.names import is_name
from iris.kernel.shapes import is_tuple
from iris.kernel.wire import pack, unpack_untrusted
from iris.security.identity import signing
from iris.security.identity.identity import PeerIdentity
from iris.security.identity.signing import SigningKey
from iris.security.secret import Redacted

VERSION: Final = 1

MAX_ENTRIES: Final = 1024
"""Entries in a list, clusters and nodes each.  An entry of a node is left out once its delegation has ended."""

MAX_LIST: Final = 256 * 1024
"""Limit on a signed list in bytes: 1,024 clusters with names of 128 characters and 1,024 nodes take 176 KiB."""

WHAT: Final = "revocation list"


@final
class RevocationList(Redacted, frozen=True, kw_only=True):
    """A signed, complete list of whom the realm has expelled.

    Args:
        number: grows with each list.
        issued: seconds since 1970.
        clusters: name to generation: certificates of a lower generation are revoked.
        nodes: node id, or the first half of one, to when its delegation ends (seconds since 1970).
        signed: the list as it travels.
    """

    _unshown: ClassVar = frozenset({"signed"})

    number: int
    issued: int
    clusters: Mapping[str, int]
    nodes: Mapping[str, int]
    signed: bytes

    def reason(self, peer: PeerIdentity) -> str | None:
        """Return why ``peer`` is revoked, or None if it is not."""
        certificate = peer.certificate
        if certificate.generation < self.clusters.get(certificate.name, 0):
            return f"generation {certificate.generation} of cluster {certificate.name!r} is revoked"
        if peer.node_id in self.nodes or peer.node_id[:16] in self.nodes:
            return f"node {peer.node_id} of cluster {certificate.name!r} is revoked"
        return None

    def _order(self) -> tuple[int, int, bytes]:
        return self.number, self.issued, self.signed

    def supersedes(self, other: RevocationList | None) -> bool:
        """Return whether this list is to be used in place of ``other``."""
        return other is None or self._order() > other._order()


@final
class NewestRevocations:
    """The newest revocation list that this node has seen.  Sans-IO.

    Attributes:
        taken: number of lists that were newer than the one before.
        not_newer: number of lists that were not.
    """

    __slots__ = ("_current", "_realm", "not_newer", "taken")

    def __init__(self, realm: bytes, current: RevocationList | None = None) -> None:
        self._realm = realm
        self._current = current
        self.taken = 0
        self.not_newer = 0

    @property
    def current(self) -> RevocationList | None:
        """The newest list, or None if there has been none."""
        return self._current

    @property
    def number(self) -> int:
        """The number of the newest list; 0 before the first.  Enough to tell who has something to share."""
        return self._current.number if self._current is not None else 0

    def receive_untrusted(self, signed: bytes) -> bool:
        """Take a list if it is newer; return whether it was.  Then save it and end the sessions of who is on it.

        Raises:
            AuthenticationError: the root of this realm did not sign it, or it is malformed.
        """
        if self._current is not None and signed == self._current.signed:
            self.not_newer += 1
            return False
        received = read_revocations_untrusted(signed, self._realm)
        if not received.supersedes(self._current):
            self.not_newer += 1
            return False
        # From here on the list is in force, be it saved or not: a full disk must not keep a stolen key in use.
        self._current = received
        self.taken += 1
        return True

    def reason(self, peer: PeerIdentity) -> str | None:
        """Return why ``peer`` is revoked, or None if it is not.  Of nodes of other realms the list says nothing."""
        return self._current.reason(peer) if self._current is not None and peer.other_realm is None else None

    def check(self, peer: PeerIdentity) -> None:
        """Refuse a revoked peer: what handshakes take as ``admit``.

        Raises:
            AuthenticationError: ``peer`` is revoked.
        """
        reason = self.reason(peer)
        if reason is not None:
            raise AuthenticationError(reason)


def issue_revocations(
    root: SigningKey, *, number: int, issued: float, clusters: Mapping[str, int], nodes: Mapping[str, int]
) -> RevocationList:
    """Sign a list with the realm's root key.

    Raises:
        ConfigError: more than 1,024 clusters or nodes, or an entry that is none.
    """
    if len(clusters) > MAX_ENTRIES or len(nodes) > MAX_ENTRIES:
        raise ConfigError(
            f"{WHAT}: {len(clusters)} clusters and {len(nodes)} nodes: the limit is {MAX_ENTRIES} of each; issue a "
            "new generation of the cluster whose nodes these are"
        )
    entries = tuple(sorted(clusters.items())), tuple(sorted((bytes.fromhex(n), end) for n, end in nodes.items()))
    if not (_are_clusters(entries[0]) and _are_nodes(entries[1]) and number > 0):
        raise ConfigError(f"{WHAT}: an entry is neither a cluster and a generation nor a node and a time")
    signed = root.attach(signing.REVOCATION, pack((VERSION, number, int(issued), *entries)))
    return read_revocations_untrusted(signed, root.public)


def read_revocations_untrusted(signed: bytes, realm: bytes) -> RevocationList:
    """Verify a list against the realm's public key, then decode it.

    Raises:
        AuthenticationError: not signed by this realm, or malformed.
    """
    if not isinstance(signed, bytes):  # it may be a user's own
        raise AuthenticationError(f"{WHAT}: it is of type {type(signed).__name__}: use the bytes of its file")
    if len(signed) > MAX_LIST:
        raise AuthenticationError(f"{WHAT}: {len(signed)} bytes: the limit is {MAX_LIST}")
    try:
        fields = unpack_untrusted(signing.detach_untrusted(realm, signing.REVOCATION, signed, WHAT))
    except RemoteProtocolError as error:
        raise AuthenticationError(f"{WHAT}: {error}") from None
    match fields if is_tuple(fields) else ():
        case (int(version), int(number), int(issued), clusters, nodes) if (
            version == VERSION and number > 0 and _are_clusters(clusters) and _are_nodes(nodes)
        ):
            return RevocationList(
                number=number,
                issued=issued,
                clusters=dict(clusters),
                nodes={node.hex(): end for node, end in nodes},
                signed=signed,
            )
        case _:
            raise AuthenticationError(f"{WHAT}: malformed, or of another version")


def _are_clusters(entries: object) -> TypeGuard[tuple[tuple[str, int], ...]]:
    return _all_pairs(entries, lambda name, generation: is_name(name) and _is_count(generation))


def _are_nodes(entries: object) -> TypeGuard[tuple[tuple[bytes, int], ...]]:
    return _all_pairs(entries, lambda node, end: isinstance(node, bytes) and len(node) in (8, 16) and _is_count(end))


def _all_pairs(entries: object, valid: Callable[[object, object], bool]) -> bool:
    """Return whether ``entries`` is a tuple of pairs, not too many, each of them ``valid``."""
    if not is_tuple(entries) or len(entries) > MAX_ENTRIES:
        return False
    return all(is_tuple(pair) and len(pair) == 2 and valid(*pair) for pair in entries)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0
