"""Durable subscriptions by name: signed records of subscribers that are owed every confirmed event, present or not.

A durable subscriber that has a name signs a *record*: its name, the patterns that it subscribes to, the group and the
shards that it stores for.  Nodes keep the newest record of each name and forward it.  So a publisher knows also of a
subscriber that was away before the publisher started.  A record holds until a newer one replaces it.  A record without
patterns marks the subscriber as *forgotten* (a tombstone).

A name belongs to the cluster that signed for it.  Two clusters may use the same name, and are two subscribers.  Nobody
can replace the record of another cluster: the cluster in the certificate counts, and the chain from the realm's root to
the signature travels with the record.  The certificates must have been valid on the date of the record, which is its
version.  They need not be valid any more: a bridge that was switched off for a month is still owed its events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import ClassVar, Final, final

from iris.cluster.membership import proof_of
from iris.kernel.errors import AuthenticationError, RemoteProtocolError
from iris.kernel.names import NodeId, is_name
from iris.kernel.shapes import are_numbers, are_texts, is_tuple
from iris.kernel.wire import MAX_NUMBER, pack, unpack_untrusted
from iris.patterns.pubsub.interest.shards import is_share
from iris.patterns.pubsub.interest.table import MAX_SHAPES
from iris.patterns.pubsub.interest.topics import Matcher, Shape, is_pattern, shape_of
from iris.security.identity import NodeIdentity, PeerIdentity, read_peer_untrusted
from iris.security.secret import Redacted

MAX_RECORD: Final = 32 * 1024
"""Size limit of one signed record, in bytes: the certificate takes up to 8 KiB, the patterns the rest."""

MAX_PATTERNS: Final = 256
"""Patterns of one durable subscriber."""

MAX_CLUSTER_SHAPES: Final = 4 * MAX_SHAPES
"""Shapes of the patterns in all records of one cluster: a match looks at each that fits the number of tokens."""

_DOMAIN: Final = b"iris durable subscriber 1\0"
_MICROSECONDS: Final = 1_000_000

NameId = tuple[str, str]
"""Cluster that a durable subscriber belongs to, and its name."""


@final
class DurableRecord(Redacted, frozen=True, kw_only=True):
    """A durable subscription, signed by its subscriber.  Made by ``sign_record`` and ``read_record_untrusted``."""

    _unshown: ClassVar = frozenset({"identity", "signed"})

    name: str
    version: int
    """Date of the signature in microseconds since 1970, at least one more than in the record before."""
    site: str
    """Site of the subscriber; empty if its site has no name."""
    patterns: tuple[str, ...]
    """Patterns of the topics that it is owed; empty if it is forgotten."""
    group: str | None
    share: tuple[int, ...]
    """Number of shards of its group, then its own shards, like ``Terms.share``; empty if it stores all."""
    identity: PeerIdentity
    """Identity of the node that has signed."""
    signed: bytes
    """Record as it travels."""

    @property
    def id(self) -> NameId:
        """Cluster and name of the subscriber whose record it is."""
        return (self.identity.cluster, self.name)

    @property
    def node(self) -> NodeId:
        """Node that has signed, which is the subscriber unless it is forgotten."""
        return self.identity.node_id

    @property
    def is_forgotten(self) -> bool:
        """True if publishers are to wait for it no more."""
        return not self.patterns

    def replaces(self, other: DurableRecord) -> bool:
        """Return whether this is the newer of two records of one name, whichever came first."""
        return (self.version, self.signed) > (other.version, other.signed)


def sign_record(
    identity: NodeIdentity,
    name: str,
    *,
    version: int,
    site: str,
    patterns: Collection[str],
    group: str | None = None,
    share: tuple[int, ...] = (),
) -> DurableRecord:
    """Make the record of a durable subscriber that belongs to the cluster of this node."""
    body = pack((name, version, site, tuple(patterns), group, share))
    signed = pack(
        (
            bytes.fromhex(identity.node_id),
            proof_of(identity.certificate, identity.delegation),
            body,
            identity.sign(_DOMAIN + body),
        )
    )
    return DurableRecord(
        name=name,
        version=version,
        site=site,
        patterns=tuple(patterns),
        group=group,
        share=share,
        identity=identity.public(),
        signed=signed,
    )


def read_record_untrusted(signed: bytes, realm: bytes) -> DurableRecord:
    """Verify a record against the public key of the realm, then decode it.

    Raises:
        RemoteProtocolError: it is malformed, or not signed by a cluster that may subscribe to its patterns.
    """
    if len(signed) > MAX_RECORD:
        raise RemoteProtocolError(f"the record of a durable subscriber is at most {MAX_RECORD} bytes")
    try:
        identity, body = _verified_untrusted(signed, realm)
        fields = unpack_untrusted(body)
        match fields if is_tuple(fields) else ():
            case (str() as name, int() as version, str() as site, patterns, group, share) if (
                is_name(name)
                and type(version) is int
                and 0 < version <= MAX_NUMBER
                and (site == "" or is_name(site))
                and are_texts(patterns)
                and len(patterns) <= MAX_PATTERNS
                and all(map(is_pattern, patterns))
                and (group is None or is_name(group))
                and are_numbers(share)
                and (share == () or (group is not None and is_share(share)))
            ):
                record = DurableRecord(
                    name=name,
                    version=version,
                    site=site,
                    patterns=patterns,
                    group=group,
                    share=share,
                    identity=identity,
                    signed=signed,
                )
            case _:
                raise RemoteProtocolError("the record of a durable subscriber is malformed")
        identity.check_time(version / _MICROSECONDS)
    except AuthenticationError as error:
        raise RemoteProtocolError(f"the record of a durable subscriber: {error}") from None
    if len(set(map(shape_of, record.patterns))) > MAX_SHAPES:
        raise RemoteProtocolError(f"a durable subscriber has its wildcards at {MAX_SHAPES} different places at most")
    if not all(map(identity.certificate.rights.may_subscribe, record.patterns)):
        raise RemoteProtocolError(f"cluster {identity.cluster!r} may not subscribe to what its record names")
    return record


def _verified_untrusted(signed: bytes, realm: bytes) -> tuple[PeerIdentity, bytes]:
    match unpack_untrusted(signed):
        case (bytes() as node, bytes() as proof, bytes() as body, bytes() as signature):
            match unpack_untrusted(proof):
                case (bytes() as certificate, bytes() as delegation):
                    identity = read_peer_untrusted(
                        realm, node_id=node.hex(), certificate=certificate, delegation=delegation
                    )
                    identity.verify_untrusted(_DOMAIN + body, signature)
                    return identity, body
                case _:
                    pass
        case _:
            pass
    raise RemoteProtocolError("the record of a durable subscriber is malformed")


@final
class DurableNames:
    """The newest record of every durable subscriber.

    Forgotten ones are kept, so that an older record which somebody still has does not bring them back; they make room
    first, the oldest one before the others.

    Args:
        max_bytes: bytes of all records together; a single cluster has a quarter of it, and 256 shapes of patterns.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._records: dict[NameId, DurableRecord] = {}
        self._matcher: Matcher[DurableRecord] = Matcher()
        self._of_nodes: dict[NodeId, set[NameId]] = {}
        self._bytes = 0
        self._bytes_of: dict[str, int] = {}
        self._shapes_of: dict[str, Counter[Shape]] = {}
        """Number of patterns in the records of a cluster, by cluster and shape."""
        self.refused = 0
        """Records that there was no room for."""

    def __repr__(self) -> str:
        return f"<DurableNames: {len(self._records)}, {self._bytes} bytes>"

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[DurableRecord]:
        return iter(tuple(self._records.values()))

    def get(self, name: NameId) -> DurableRecord | None:
        """Return the record of a name, also if it is forgotten."""
        return self._records.get(name)

    def of_node(self, node: NodeId) -> Collection[DurableRecord]:
        """Return the records that a node has signed."""
        return [self._records[name] for name in self._of_nodes.get(node, ())]

    @property
    def shapes(self) -> int:
        """Number of shapes of the patterns: the cost of a match."""
        return len(self._matcher.shapes)

    def match(self, topic: str) -> tuple[DurableRecord, ...]:
        """Return the records of the subscribers that are owed the events of a topic."""
        return self._matcher.match(topic)

    def is_news(self, record: DurableRecord) -> bool:
        """Return whether a record is newer than the one that is stored."""
        known = self._records.get(record.id)
        return known is None or record.replaces(known)

    def put(self, record: DurableRecord) -> bool:
        """Store a record if it is newer than the one stored; return whether it is stored now and was not before.

        False, and counted, if there is no room for it.
        """
        if not self.is_news(record):
            return False
        known = self._records.get(record.id)
        cluster, more = record.id[0], len(record.signed) - (0 if known is None else len(known.signed))
        if not (
            self._has_few_shapes(record, known)
            and self._make_room(record, lambda: self._bytes_of.get(cluster, 0) + more <= self._max_bytes // 4, cluster)
            and self._make_room(record, lambda: self._bytes + more <= self._max_bytes)
        ):
            self.refused += 1
            return False
        if known is not None:
            self._remove(known)
        self._records[record.id] = record
        for pattern in record.patterns:
            self._matcher.add(pattern, record)
        self._shapes_of.setdefault(cluster, Counter()).update(_shapes(record))
        self._of_nodes.setdefault(record.node, set()).add(record.id)
        self._count(record, len(record.signed))
        return True

    def _has_few_shapes(self, record: DurableRecord, known: DurableRecord | None) -> bool:
        """Return whether the cluster's records have few shapes with this one in the place of the one that is stored."""
        shapes = self._shapes_of.get(record.id[0], Counter())
        gone = Counter(() if known is None else _shapes(known))
        kept = {shape for shape, count in shapes.items() if count > gone.get(shape, 0)}
        return len(kept.union(_shapes(record))) <= MAX_CLUSTER_SHAPES

    def _make_room(self, record: DurableRecord, fits: Callable[[], bool], cluster: str | None = None) -> bool:
        while not fits():
            oldest = min(
                (
                    one
                    for one in self._records.values()
                    if one.is_forgotten and one.id != record.id and cluster in (None, one.id[0])
                ),
                key=lambda one: one.version,
                default=None,
            )
            if oldest is None:
                return False
            self._remove(oldest)
        return True

    def drop(self, is_believed: Callable[[PeerIdentity], bool]) -> bool:
        """Forget the records whose signers are not believed any more; return whether there was one."""
        gone = [record for record in self._records.values() if not is_believed(record.identity)]
        for record in gone:
            self._remove(record)
        return bool(gone)

    def _remove(self, record: DurableRecord) -> None:
        del self._records[record.id]
        for pattern in record.patterns:
            self._matcher.remove(pattern, record)
        cluster = record.id[0]
        left = self._shapes_of.pop(cluster, Counter[Shape]()) - Counter(_shapes(record))
        if left:
            self._shapes_of[cluster] = left
        names = self._of_nodes[record.node]
        names.discard(record.id)
        if not names:
            del self._of_nodes[record.node]
        self._count(record, -len(record.signed))

    def _count(self, record: DurableRecord, size: int) -> None:
        cluster = record.id[0]
        self._bytes += size
        self._bytes_of[cluster] = self._bytes_of.get(cluster, 0) + size
        if not self._bytes_of[cluster]:
            del self._bytes_of[cluster]


def _shapes(record: DurableRecord) -> list[Shape]:
    return [shape for shape in map(shape_of, record.patterns) if shape is not None]
