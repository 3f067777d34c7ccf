"""Peer: a node whose certificate was verified, with its link, and the callbacks for what becomes of it.

Peers of other realms are checked again when what this node trusts changes: it got another credential.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, final

from msgspec import structs

from iris.cluster.directory import Border
from iris.cluster.routes import is_site_url, is_via_url
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, RemoteProtocolError
from iris.kernel.link import Link, LinkOwner
from iris.kernel.names import NodeId
from iris.kernel.transport import OutgoingConnection
from iris.security.channel import Session
from iris.security.identity import NodeIdentity, PeerIdentity

_KINDS: Final = {"site": "gateway", "via": "relay"}
"""Kinds of the connections that no transport dials, by scheme."""


@final
class Peer:
    """A linked node: its verified identity, the link to it, and the session that frames leave under.

    ``session`` is None for the node itself, whose messages never leave the process.
    """

    __slots__ = (
        "addresses",
        "at_remote_site",
        "border",
        "client",
        "fruitless",
        "fruitless_since",
        "identity",
        "initiated",
        "leaving",
        "link",
        "node",
        "other_realm",
        "parting",
        "reached",
        "returning",
        "round_trip",
        "session",
        "site",
    )

    def __init__(
        self,
        identity: PeerIdentity,
        session: Session | None,
        addresses: tuple[str, ...],
        config: Config,
        *,
        border: Border | None = None,
        owner: LinkOwner | None = None,
    ) -> None:
        self.identity = identity
        self.node: Final[NodeId] = identity.node_id
        self.link: Final = Link(self.node, config, owner)
        self.addresses = addresses
        self.other_realm: Final = identity.other_realm is not None
        """True if the peer is of a realm of another owner."""
        self.at_remote_site: Final = bool(addresses) and is_site_url(addresses[0])
        """True if the peer is at another site, reached through gateways."""
        self.border: Final = (border or Border()) if self.at_remote_site else None
        """Rules for the peer's requests and subscriptions.  None unless it is at another site."""
        self.reached = ""
        """The address at which this node has dialled and found it last.  Its other addresses are its own claims."""
        self.session = session
        self.initiated = False
        """True if this node began the handshake of the present session."""
        self.fruitless = 0
        """Attempts to reach it again since something came from it.  Who turns this node away lets it connect first."""
        self.fruitless_since = 0.0
        """Time at which the first of them began; trio's clock."""
        self.leaving = False
        """True once the peer has said goodbye, so that its connections end in order."""
        self.parting = False
        """True while the peer may end the link, as was agreed: if its connection ends it is not dialled again."""
        self.client = False
        """True if the peer is no member: it asks, and has no part in membership and in what is published."""
        self.returning = False
        """True if its connection is gone and there is another one: requests to it are repeated there, not elsewhere."""
        self.site = ""
        """The site that the peer says it is in."""
        self.round_trip: float | None = None
        """Seconds from asking it whether it lives to its answer, the last time; None: it was not asked yet."""

    @property
    def kind(self) -> str:
        """The kind of its route: tcp, ipc or ws; gateway: through those of two sites; relay: through a third node.

        And reverse: the peer has dialled both directions, by tcp or ws.
        """
        scheme = (self.reached or next(iter(self.addresses), "")).partition("://")[0]
        return _KINDS.get(scheme, scheme)

    @property
    def indirect(self) -> bool:
        """True if frames to the peer go through other nodes."""
        return bool(self.addresses) and (is_via_url(self.addresses[0]) or self.at_remote_site)

    def may_ask(self, cluster: str) -> bool:
        """Return whether the peer's site and realm may use a cluster of this one; services have rules of their own."""
        realm = self.identity.other_realm
        permitted = realm is None or realm.may_reach(cluster)
        return permitted and (self.border is None or self.border.may_ask(cluster))

    def may_receive(self, pattern: str) -> bool:
        """Return whether the peer may have the events of every topic that matches a pattern."""
        realm = self.identity.other_realm
        # The rights of a node of another realm are in that one's names, and its affair.
        rights = self.identity.certificate.rights
        permitted = rights.may_subscribe(pattern) if realm is None else realm.may_receive(pattern)
        return permitted and (self.border is None or self.border.may_leave(pattern))

    def check_gateway(self) -> None:
        """Raise RemoteProtocolError unless the peer's certificate gives it the right to be a gateway."""
        if not self.identity.certificate.rights.gateway:
            raise RemoteProtocolError(f"cluster {self.identity.cluster!r} has no right to be a gateway")

    def __repr__(self) -> str:
        return f"<Peer {self.node[:8]} of {self.identity.cluster} {self.link!r}>"


@final
class PeerTable:
    """The other nodes that are linked, connected or being reconnected.

    It is made before the mesh, so that what chooses routes and what sees members alive can be there before the first
    frame is read.  The mesh alone adds and removes.
    """

    __slots__ = ("_peers", "get", "view")

    def __init__(self) -> None:
        self._peers: dict[NodeId, Peer] = {}
        self.view: Final[Mapping[NodeId, Peer]] = MappingProxyType(self._peers)
        """The same as a mapping that nobody can change."""
        self.get: Final = self.view.get
        """Returns a peer; None if it is not linked."""

    def __repr__(self) -> str:
        return f"<PeerTable of {len(self._peers)} peers>"

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, node: object) -> bool:
        return node in self._peers

    def __iter__(self) -> Iterator[Peer]:
        """Iterate over the peers as they are now: they may come and go meanwhile."""
        return iter([*self._peers.values()])

    def add(self, peer: Peer) -> None:
        """Add a peer that is linked now."""
        self._peers[peer.node] = peer

    def remove(self, node: NodeId) -> Peer | None:
        """Remove a peer that is given up, and return it; None if it is not here."""
        return self._peers.pop(node, None)

    def outgoing_to(self, node: NodeId) -> OutgoingConnection | None:
        """Return the connection in use to a peer; None if there is none."""
        peer = self._peers.get(node)
        return None if peer is None else peer.link.outgoing

    def link_to(self, node: NodeId) -> Link | None:
        """Return the link to a peer; None if it is not linked."""
        peer = self._peers.get(node)
        return None if peer is None else peer.link


@final
class SessionEntry:
    """A session in which frames may arrive, and whose it is.

    A peer that has begun to send in one session never goes back to a former one.  What a broken connection still holds
    of that one may be read later than what follows on the next connection, and would be out of order.  That holds for
    its first frame, too: which of two sessions is the former one, both ends tell by the index that the one with the
    lesser id gave them, because each gives them in ascending order.

    Attributes:
        lost_frames: the gaps that were reported upwards.
        begun: True once a frame has arrived in it.
        left: True once a frame of the peer has arrived in a later session, so that no more are accepted in this one.
        awaited: True if frames are to leave under it once the first one has arrived, and not before: the last frame of
            the handshake may come too late, and what is sealed for a session that the peer does not have is lost.
    """

    __slots__ = ("_rank", "awaited", "begun", "left", "lost_frames", "peer", "session")

    def __init__(self, session: Session, peer: Peer, own: NodeId, *, awaited: bool) -> None:
        self.session: Final = session
        self.peer: Final = peer
        self._rank = session.local_index if own < peer.node else session.remote_index
        self.lost_frames = 0
        self.begun = False
        self.left = False
        self.awaited = awaited

    def is_awaited(self, now: float, config: Config) -> bool:
        """Return whether the peer may still show that it has this session, so that it is too soon for another one."""
        return self.awaited and now - self.session.established < 2 * config.handshake_timeout

    def follows(self, other: SessionEntry) -> bool:
        """Return whether this session with the same peer is a later one."""
        return 0 < (self._rank - other._rank) % 2**32 < 2**31

    def use(self, entries: Iterable[SessionEntry]) -> SessionEntry | None:
        """Have frames leave under it; if they do so under a later one of ``entries`` already, return that one.

        Two handshakes that cross may end in another order than they began in, and at both ends in different ones.
        """
        peer = self.peer
        for entry in entries:
            if entry.session is peer.session and entry.follows(self):
                return entry
        peer.session = self.session
        peer.link.use(self.session)
        return None

    def begin(self, entries: Collection[SessionEntry]) -> bool:
        """Note the first frame: the peer has left those of ``entries`` in which it sent before.

        False if it comes late, after frames in a later session.
        """
        former = [other for other in entries if other.peer is self.peer and other.begun]
        for other in former:
            if other.follows(self):
                self.left = True
                return False
        # From here on late frames of the former sessions are refused, though they are genuine: they would be out of
        # order.
        for other in former:
            other.left = True
        self.begun = True
        if self.peer.link.is_up:  # else it was sent before the connection broke: perhaps the peer has hung up
            self.peer.fruitless = 0
        if self.awaited:
            # From here on frames leave under it: that a frame came shows that the peer has the session, and can open
            # what is sealed for it.
            self.awaited = False
            self.use(entries)
        return True


class PeerObserver:
    """Observer of the peers of a mesh, with methods that do nothing.  Parts in the layers above are such.

    The methods are plain calls in the trio thread, in the order in which the observers were added.  They must not
    block.  An error in one of them is counted, and keeps the news from no other observer.
    """

    of_clients: ClassVar[bool] = True
    """True to be notified also of peers where one of the two ends is a client."""

    def peer_connected(self, peer: Peer) -> None:
        """A node is linked for the first time, or again after ``peer_removed``."""

    def holds(self, node: NodeId) -> bool:  # noqa: ARG002 -- for those that hold something
        """Return whether something would be lost with the link to a node."""
        return False

    def frames_lost(self, peer: Peer) -> None:
        """Frames to or from the peer may have been lost; the link goes on."""

    def peer_unreachable(self, node: NodeId) -> None:
        """The connection broke: no new work for the peer."""

    def peer_refused(self, node: NodeId) -> None:
        """Nobody listens where the peer was, or somebody else does.

        A connection that breaks is no such evidence: a node that has too much to do, or holds the other end dead,
        closes some.
        """

    def peer_removed(self, peer: Peer, reason: str, /) -> None:
        """The peer is given up; its link has ended and waiting messages are lost."""


def check_identity(peer: PeerIdentity, known: Peer | None, own: NodeIdentity) -> None:
    """Check that a node which has proved who it is, is the one that is linked already, and of a realm that is trusted.

    Raises:
        AuthenticationError: it is not; or what is trusted has changed since its handshake began.
    """
    if known is not None and not known.identity.is_same_node(peer):
        raise AuthenticationError(f"node {peer.node_id} of cluster {peer.cluster!r} has the id of a linked node")
    if peer.other_realm is not None and own.other_realm(peer.realm_id) != peer.other_realm:
        raise AuthenticationError(f"realm {peer.other_realm.alias!r} is not trusted as it was when the handshake began")


def follow_trust(peers: Iterable[Peer], own: NodeIdentity, drop: Callable[[NodeId, str], None]) -> None:
    """Give up the peers whose realm is not trusted any more, or not in the same way; tell the others of a longer time.

    Who is given up and still trusted comes back, and is then taken by the new lists.
    """
    for peer in list(peers):
        former = peer.identity.other_realm
        if former is None:
            continue
        trusted = own.other_realm(former.id)
        if trusted is None:
            drop(peer.node, f"realm {former.alias!r} is not trusted any more")
        elif not trusted.means_the_same(former):
            drop(peer.node, f"what realm {former.alias!r} may do has changed")
        else:
            peer.identity = structs.replace(peer.identity, other_realm=trusted)
