"""Replication of durable subscriptions: the records that this node signs, learns, and forwards within its realm.

Each node sends a new peer every record that it stores, and sends its own changes to all peers; in a realm in which not
all are linked, also what it learns.  So a node knows of a durable subscriber that it never met.  Bridges keep the
records on their disks.

Between sites only the subscriber itself sends its record.  The node at the other end of that link stores the record and
forwards it to the nodes of its site.  A tombstone is forwarded once more at each border.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, final

from msgspec import Struct

from iris.cluster.directory import Border
from iris.cluster.membership import PARTNERS
from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.errors import AuthenticationError, ConfigError, NotAllowed, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId, check_name
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest.durable_names import (
    MAX_PATTERNS,
    MAX_RECORD,
    DurableNames,
    DurableRecord,
    NameId,
    read_record_untrusted,
    sign_record,
)
from iris.patterns.pubsub.interest.retry import InterestRetry
from iris.patterns.pubsub.interest.table import InterestTable
from iris.security.identity import CLOCK_TOLERANCE, PeerIdentity, covers

_log: Final = logging.getLogger("iris")

_MESSAGE_BYTES: Final = 64 * KIB
"""Records in one message, as many as are begun before this size."""

_MAX_RECORDS: Final = 80
"""Records in one message: receivers check ``wire.MAX_CHECKS`` signatures for one frame, 3 for a record."""

_SIGNATURES: Final = 3
"""Signatures of a record: those of its subscriber, of that one's cluster, and of the realm."""


@final
class DurableSubscriber(Struct, frozen=True, kw_only=True):
    """A subscriber that is owed every confirmed event of some topics.

    Attributes:
        cluster: cluster that the subscriber belongs to; only its nodes may forget it.
        name: name that it has subscribed with.
        patterns: patterns of the topics.
        present: True if it is linked to this node now; if not, confirmed events on these topics wait for it.
    """

    cluster: str
    name: str
    patterns: tuple[str, ...]
    present: bool


_SEEN: Final = 4096
"""Records that were accepted, or older than the stored one; they are not verified again when others send them."""

_INSISTED: Final = 16
"""Times that a node signs anew for a name when others send a newer record.  Of two nodes with one name, which send each
other theirs, one gives in."""


class SiteMembers(Protocol):
    """Members of this site, as ``iris.cluster.membership.Membership`` knows them."""

    def others(self) -> Sequence[NodeId]:
        """Return the other members that are held alive."""
        ...


class PublishedCount(Protocol):
    """Count of the events of a publisher."""

    @property
    def published(self) -> int:
        """Number of events that it has published in all."""
        ...


@final
class _Claim:
    """Claim of this node to a name."""

    def __init__(self, patterns: tuple[str, ...], group: str | None, share: tuple[int, ...]) -> None:
        self.patterns = patterns
        self.group = group
        self.share = share
        self.insisted = 0


@final
class DurableSubscribers:
    """The durable subscriptions that one node has claimed, and those that it has learned of.

    Args:
        mesh: mesh whose links it uses.
        interest: table of the nodes that are there and subscribe.
        count: number of events that this node has published in all.
        retry: notes peers without room on their links; ``send_all`` is to be called again for them.
        members: members of this site.
        border: border of this node's site: the topics that may leave it.  None if it is at no site.
    """

    def __init__(
        self,
        mesh: Mesh,
        interest: InterestTable,
        count: PublishedCount,
        retry: InterestRetry,
        members: SiteMembers,
        border: Border | None,
    ) -> None:
        self._mesh = mesh
        self._interest = interest
        self._count = count
        self._retry = retry
        self._members = members
        self._border = border
        self._listeners: list[Callable[[], None]] = []
        self._claims: dict[str, _Claim] = {}
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._left: dict[NameId, int] = {}
        """Subscribers that are away, and the number of events published when they left, or became known."""
        self._said: set[NameId] = set()
        """Subscribers among these whose absence was logged."""
        self._away_since: dict[tuple[NodeId, str], int] = {}
        """Numbers of events published when this node's own names left, as publishers report them."""
        self.names: Final = DurableNames(mesh.config.durable_bytes)
        mesh.register(kinds.Durable, self._receive)
        mesh.register(kinds.DurableAway, self._receive_away)

    def __repr__(self) -> str:
        return f"<DurableSubscribers: {self.names!r}>"

    # -- for publishers -------------------------------------------------------------------------------------

    def owed(self, topic: str) -> Sequence[DurableRecord]:
        """Return the records of the subscribers that are owed the confirmed events of a topic."""
        found = self.names.match(topic)
        site = self._mesh.tag.site
        for one in found:
            if one.site != site:
                return [record for record in found if record.site == site or self._may_leave(record, topic)]
        return found

    def _may_leave(self, record: DurableRecord, topic: str) -> bool:
        """Return whether events of a topic would go to a subscriber at another site if it were there."""
        border = self._border
        return border is not None and any(
            border.may_leave(pattern) for pattern in record.patterns if covers(pattern, topic)
        )

    def groups(self, topic: str) -> frozenset[tuple[str, str]]:
        """Return the named groups that store a topic: the cluster that owns each, and its name there.

        Nobody else can receive events in its place, or confirm them, by calling a group the same.
        """
        return frozenset([(record.id[0], record.group) for record in self.owed(topic) if record.group is not None])

    def is_present(self, record: DurableRecord) -> bool:
        """Return whether a durable subscriber is linked and subscribes; of a group, a member with one of its shards."""
        if record.group is None:
            return self._mesh.peer(record.node) is not None and self._interest.stores(record.node)
        peers = map(self._mesh.peer, self._interest.storing(record.group, record.share))
        return any(peer is not None and peer.identity.cluster == record.id[0] for peer in peers)

    def left(self, topic: str) -> dict[NameId, int]:
        """Return the subscribers owed a topic that are away, with the number of events published when they left."""
        if not self._left:
            return {}
        away = [record for record in self.owed(topic) if record.id in self._left]
        for record in away:
            self._say_away(record, topic)
        return {record.id: self._left[record.id] for record in away}

    def _say_away(self, record: DurableRecord, topic: str) -> None:
        """Log once that this node publishes what is not stored where it is owed: nobody waits for plain events."""
        if record.id in self._said:
            return
        self._said.add(record.id)
        _log.warning(
            "durable subscriber %s of cluster %s is away: what this node publishes on %s and other topics of it is not "
            "stored there until it is back, unless it is published by publish_confirmed",
            record.name,
            record.id[0],
            topic,
            extra={"cluster": record.id[0], "topic": topic},
        )

    def interest_changed(self, node: NodeId) -> None:
        """Note durable subscribers that have come or left, as a node subscribes to something else now, or is gone."""
        for record in self.names.of_node(node):
            if record.is_forgotten or not self.is_present(record):
                self._note_left(record)
            elif record.id in self._left:
                self._send_away(record, self._left.pop(record.id))
                self._say_back(record)
            if node != self._mesh.node and not record.is_forgotten:
                self._insist(record)  # of two nodes with one name this one has given in, and the other one has left
        if self._mesh.peer(node) is None:
            for name in self._claims:
                self._away_since.pop((node, name), None)

    def _note_left(self, record: DurableRecord) -> None:
        if record.is_forgotten:
            self._left.pop(record.id, None)
            self._said.discard(record.id)
        elif not self.is_present(record):
            self._left.setdefault(record.id, self._count.published)

    def _say_back(self, record: DurableRecord) -> None:
        if record.id in self._said:
            self._said.discard(record.id)
            _log.info(
                "durable subscriber %s of cluster %s is back",
                record.name,
                record.id[0],
                extra={"cluster": record.id[0]},
            )

    def _send_away(self, record: DurableRecord, published: int) -> None:
        try:
            self._mesh.post(record.node, kinds.DurableAway(record.name, published), len(record.name), CONTROL_RESERVE)
        except NotSent:
            self._mesh.refusals["durable subscribers without room on the link"] += 1

    def known(self) -> tuple[DurableSubscriber, ...]:
        """Return the subscribers that are not forgotten, sorted by name."""
        return tuple(
            DurableSubscriber(
                cluster=record.id[0], name=record.name, patterns=record.patterns, present=self.is_present(record)
            )
            for record in sorted(self.names, key=lambda record: (record.name, record.id[0]))
            if not record.is_forgotten
        )

    # -- for subscribers ------------------------------------------------------------------------------------

    @contextmanager
    def claim(
        self, name: str, patterns: Iterable[str], *, group: str | None = None, share: tuple[int, ...] = ()
    ) -> Iterator[None]:
        """Be the durable subscriber of this name.  It is owed events also after the block, until it is forgotten.

        Patterns that it was owed under this name before, and that are not named now, it is owed no longer.

        Raises:
            ConfigError: the name is malformed or taken on this node, it has more than 256 patterns, or too many
                durable subscribers are known.
            NotAllowed: this node's certificate does not permit to subscribe to one of the patterns.
        """
        check_name(name, "durable subscriber")
        if name in self._claims:
            raise ConfigError(
                f"this node is the durable subscriber {name!r} already: give each subscription its own name"
            )
        wanted = tuple(dict.fromkeys(patterns))
        if len(wanted) > MAX_PATTERNS:
            raise ConfigError(f"durable subscriber {name!r} has {len(wanted)} patterns: use at most {MAX_PATTERNS}")
        certificate = self._mesh.identity.certificate
        for pattern in wanted:
            if not certificate.rights.may_subscribe(pattern):
                raise NotAllowed(
                    f"the certificate of cluster {certificate.name!r} does not permit to subscribe to {pattern!r}"
                )
        claim = _Claim(wanted, group, share)
        record = self._sign(name, claim)
        if len(record.signed) > MAX_RECORD or not self.names.put(record):
            raise ConfigError(
                f"durable subscriber {name!r} cannot be remembered: too many are known in this realm; forget those "
                "that do not come back ('iris bridge forget NAME'), or raise Config.durable_bytes at every node"
            )
        self._claims[name] = claim
        self._send_to_all(record)
        self._notify_listeners()
        try:
            yield
        finally:
            del self._claims[name]

    def forget(self, name: str) -> None:
        """Make publishers wait no more for a durable subscriber of this node's own cluster.

        Raises:
            NotAllowed: it belongs to another cluster.
            ConfigError: it is not known, or it is there.
        """
        check_name(name, "durable subscriber")
        cluster = self._mesh.identity.cluster
        record = self.names.get((cluster, name))
        if record is None or record.is_forgotten:
            others = sorted(one.id[0] for one in self.names if one.name == name and not one.is_forgotten)
            if others:
                raise NotAllowed(
                    f"durable subscriber {name!r} belongs to cluster {others[0]!r}, and this node speaks for "
                    f"{cluster!r}: only nodes of its own cluster may forget it"
                )
            known = ", ".join(sorted(one.name for one in self.names if not one.is_forgotten))
            raise ConfigError(f"no durable subscriber {name!r} is known here; known: {known or 'none'}")
        # This node's own subscription ends with its block, and is in the table of interest for a moment longer.
        own = record.group is None and record.node == self._mesh.node
        if name in self._claims if own else self.is_present(record):
            raise ConfigError(f"durable subscriber {name!r} is there, at node {record.node}: stop it, then forget it")
        forgotten = self._sign(name, _Claim((), None, ()))
        self.names.put(forgotten)
        self._note_left(forgotten)
        self._send_to_all(forgotten)
        self._notify_listeners()

    def owed_since(self, node: NodeId, name: str, published: int | None) -> int | None:
        """Return how many events a publisher had published when it began to owe a name of this node what follows.

        Args:
            node: publisher.
            name: name that this node has claimed.
            published: number published when it knew of the present subscription; None if it never sent it.
        """
        away = self._away_since.get((node, name))
        return published if away is None or published is None else min(away, published)

    def _sign(self, name: str, claim: _Claim) -> DurableRecord:
        identity = self._mesh.identity
        known = self.names.get((identity.cluster, name))
        version = int(self._mesh.wall_clock() * 1_000_000)
        return sign_record(
            identity,
            name,
            version=version if known is None else max(version, known.version + 1),
            site=self._mesh.tag.site,
            patterns=claim.patterns,
            group=claim.group,
            share=claim.share,
        )

    # -- for those who keep them ----------------------------------------------------------------------------

    def on_changed(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` whenever ``records`` returns something else; return the function that ends that.

        Then publishers may have to wait for somebody else, too.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def records(self) -> list[bytes]:
        """Return all known records, in the form that ``load`` reads."""
        return [record.signed for record in self.names]

    def load(self, records: Iterable[bytes]) -> int:
        """Load what ``records`` returned in an earlier run; return how many of them are not of this realm."""
        refused = 0
        for signed in records:
            try:
                self._accept(read_record_untrusted(signed, self._mesh.identity.realm), None)
            except RemoteProtocolError:
                refused += 1
        return refused

    def recheck(self) -> None:
        """Drop the records that were signed with a certificate that was revoked."""
        if self.names.drop(self._is_believed):
            self._left = {name: count for name, count in self._left.items() if self.names.get(name) is not None}
            self._said &= self._left.keys()
            self._notify_listeners()

    def _is_believed(self, identity: PeerIdentity) -> bool:
        try:
            self._mesh.check_peer(identity)
        except AuthenticationError:
            return False
        return True

    # -- between nodes --------------------------------------------------------------------------------------

    def send_all(self, peer: Peer) -> None:
        """Send a peer the records: all of them at the own site, elsewhere only this node's own."""
        self._send(
            peer, [record for record in self.names if not peer.at_remote_site or self._is_for_other_sites(record)]
        )

    def _is_for_other_sites(self, record: DurableRecord) -> bool:
        return record.is_forgotten or record.node == self._mesh.node

    def _send_to_all(self, record: DurableRecord) -> None:
        for peer in list(self._mesh.peers.values()):
            self._send(peer, [record])

    def _send(self, peer: Peer, records: Collection[DurableRecord]) -> None:
        if peer.other_realm or peer.client:
            return
        part: list[bytes] = []
        size = 0
        for record in records:
            part.append(record.signed)
            size += len(record.signed)
            if size >= _MESSAGE_BYTES or len(part) == _MAX_RECORDS:
                self._post(peer, part, size)
                part, size = [], 0
        if part:
            self._post(peer, part, size)

    def _post(self, peer: Peer, records: Sequence[bytes], size: int) -> None:
        try:
            size += wire.CHECK * _SIGNATURES * len(records)
            peer.link.post(kinds.Durable(tuple(records)), size, CONTROL_RESERVE)
        except NotSent:
            self._retry.note(peer, "durable subscribers without room on the link")

    def _receive(self, peer: Peer, message: kinds.Durable) -> None:
        for signed in message.records:
            digest = hashlib.blake2b(signed, digest_size=16).digest()
            if digest in self._seen:
                continue
            self._mesh.work.check(_SIGNATURES)
            record = read_record_untrusted(signed, self._mesh.identity.realm)
            if peer.at_remote_site and not record.is_forgotten and record.node != peer.node:
                continue  # from another site each sends its own record
            if self._accept(record, peer):
                self._seen[digest] = None
                if len(self._seen) > _SEEN:
                    self._seen.popitem(last=False)

    def _receive_away(self, peer: Peer, message: kinds.DurableAway) -> None:
        if message.name in self._claims:
            self._away_since[peer.node, message.name] = message.published

    def _accept(self, record: DurableRecord, sender: Peer | None) -> bool:
        """Store a record that was verified; return whether it need not be looked at again."""
        if not self.names.is_news(record):
            return True
        # Neither is the fault of the peer that sends it: clocks differ, and it may have learned of a revocation later.
        if record.version > (self._mesh.wall_clock() + CLOCK_TOLERANCE) * 1_000_000:
            self._mesh.refusals["durable subscriber of a time to come"] += 1
            return False
        if not self._is_believed(record.identity):
            self._mesh.refusals["durable subscriber of a revoked node"] += 1
            return False
        if not self.names.put(record):
            self._mesh.refusals["durable subscriber without room"] += 1
            return False
        if sender is not None:
            sparse = len(self._members.others()) > PARTNERS  # else its subscriber has sent it to all
            for peer in list(self._mesh.peers.values()):
                crosses = record.is_forgotten and peer.at_remote_site != sender.at_remote_site
                if crosses or (sparse and peer is not sender and not peer.at_remote_site):
                    self._send(peer, [record])
        self._note_left(record)
        self._insist(record)
        self._notify_listeners()
        return True

    def _insist(self, record: DurableRecord) -> None:
        """Sign anew for a claimed name: its older run had a clock ahead, or it was forgotten meanwhile."""
        cluster, name = record.id
        claim = self._claims.get(name) if cluster == self._mesh.identity.cluster else None
        if claim is not None and claim.insisted < _INSISTED and self._mesh.peer(record.node) is None:
            claim.insisted += 1
            own = self._sign(name, claim)
            if self.names.put(own):
                self._send_to_all(own)

    def _notify_listeners(self) -> None:
        for listener in self._listeners:
            listener()
