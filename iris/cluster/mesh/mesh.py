"""Mesh: the peers of one node, their links and sessions, and the dispatch of what arrives.

All frames arrive in one inbox; the session index in a frame's header says whose it is.  Data frames are opened,
decoded and handed message by message to the handler that registered the kind: plain calls, one lookup in a table.

When a connection breaks, the peer is routed out at once and dialled again.  A fresh handshake over the new
connection makes sure that no other process has taken the address; messages wait for it, and both ends are told that
frames may have been lost.  A session of ``Config.session_lifetime`` is replaced by a fresh handshake over the same
connection; both ends accept frames of either for a while, so nothing waits for the change.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final, ParamSpec, final

import trio
from msgspec import Struct

from iris.cluster.addresses import advertised, return_urls
from iris.cluster.mesh.control import Disconnects, PingBarrier
from iris.cluster.mesh.dial_limits import DialLimits
from iris.cluster.mesh.dialer import Dialer, DialLimiter
from iris.cluster.mesh.dispatch import Dispatcher, loopback
from iris.cluster.mesh.handshakes import Handshakes
from iris.cluster.mesh.inbound import InboundConnections
from iris.cluster.mesh.outbound import DialRules, OutboundConnections
from iris.cluster.mesh.peer import Peer, PeerObserver, SessionEntry, check_identity, follow_trust
from iris.cluster.mesh.ports import MeshPorts, MeshSetting
from iris.cluster.mesh.reader import InboxReader
from iris.cluster.mesh.reconnect import Reconnector, RedialPatience, patience_of
from iris.cluster.mesh.refusal_backoff import ALL, LONGEST, RefusalBackoff
from iris.cluster.mesh.rekey import RekeySchedule
from iris.cluster.mesh.resets import Resets
from iris.cluster.routes import is_site_url, is_two_way, is_via_url, realm_of_url, site_url, via_url
from iris.cluster.work import TooMuchWork
from iris.kernel import wire
from iris.kernel.buffer_pool import give_back
from iris.kernel.errors import AuthenticationError, IrisError, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE, BulkSource, Link, LinkStatistics
from iris.kernel.names import NodeId, qualified
from iris.kernel.slots import Groups
from iris.kernel.tasks import open_background
from iris.kernel.transport import OutgoingConnection, Transport
from iris.kernel.unexpected import note_unexpected
from iris.kernel.wire import Message, kinds
from iris.security.channel import Established, Session
from iris.security.identity import NodeDelegation, NodeIdentity, OutOfDate, PeerIdentity

P = ParamSpec("P")

_log: Final = logging.getLogger("iris")

_LOGGED_AGAIN: Final = 10.0
"""Seconds after which an unexpected error of one kind is logged once more."""

_MAX_REPORTED: Final = 100
"""Clusters of which it is logged, each once, that a node is refused because of a date."""

_SAID_WITHIN: Final = 0.05
"""Seconds that what was lost has to come again, until a peer that answers is asked for it."""

_MAX_SESSIONS: Final = 8
"""Sessions of one peer that frames may arrive in.  Two are in use while one replaces the other."""


@final
class MeshStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot of the sessions, handshakes and connections of one mesh."""

    sessions: int
    """Sessions with other nodes, those included that are about to be replaced."""
    handshakes: int
    """Handshakes that were finished: new peers, reconnects and renewed sessions."""
    half_open: int
    """Handshakes in progress."""
    dialling: int
    """Handshakes of strangers for which a connection is being made."""
    outbound: int
    inbound: int
    """Connections that others have opened."""
    unauthenticated: int
    """Inbound connections that have not shown a genuine frame yet."""
    incomplete_bytes: int
    """Bytes that have come of frames that are not complete."""


@final
class Mesh:
    """The peers of one node, with their links and sessions.  Made by ``open_mesh``."""

    def __init__(
        self,
        identity: NodeIdentity,
        transport: Transport,
        listening: tuple[str, ...],
        nursery: trio.Nursery,
        ports: MeshPorts,
        setting: MeshSetting,
    ) -> None:
        config, entropy = setting.config, setting.entropy
        self.identity = identity
        """The identity of this node.  It may be renewed; where that matters, sessions follow at once."""
        self._public = identity.public()
        self.node: Final = identity.node_id
        """This node's id."""
        self._admission: Final = ports.admission
        self._frames = ports.frames
        self._border: Final = ports.border
        self.tag: Final = setting.tag
        self.listening = listening
        """The URLs bound here."""
        self._dials_both: Final = setting.dials_both
        self.advertised = own_addresses(identity.node_id, listening, dials_both=setting.dials_both)
        """The URLs at which others may reach this node; of one that only dials out, a route through third ones, too."""
        self.config: Final = config
        self.wall_clock: Final = setting.wall_clock
        """Returns the seconds since 1970."""
        self.refusals: Counter[str] = Counter()
        """Frames and messages that were refused, by reason."""
        self._out_of_date: set[str] = set()
        self._of_other_versions: set[str] = set()
        self._transport = transport
        self._nursery = nursery
        self.rules: Final = setting.rules
        """Rules for the addresses that this node dials."""
        self._outbound = OutboundConnections(
            transport,
            self,
            entropy if setting.dials_both else None,
            rules=DialRules(self.rules, DialLimits(config.failed_dials, config.failed_dial_rate), self.refusals),
            carriers=ports.carriers,
        )
        self.turns: Final = DialLimiter(config.handshake_timeout, ports.punctuality)
        self._inbound: Final = InboundConnections(transport, config, self.refusals, self.turns)
        self._handshakes = Handshakes(self, self._outbound, self._inbound, nursery, self.turns, entropy)
        self._peers: Final = ports.peers
        self.peers: Final = ports.peers.view
        """The other nodes that are linked, connected or being reconnected."""
        self.ended_links: LinkStatistics | None = None
        """Counters of the links that are no more, together; None: there was none."""
        self._finished = 0
        """Handshakes that were finished."""
        """Handshakes that were finished: new peers, reconnects and renewed sessions."""
        self._backoff: Final = RefusalBackoff(entropy)
        """Pauses before those are dialled again who do not let this node in."""
        self._dialling: Final = Dialer(self, self._outbound, self._handshakes, self.turns, self._peers, self._backoff)
        self.work: Final = ports.work
        """Work that may still be done for the frame that is being handled."""
        self._timed = -1
        self._time = 0.0
        """The frame of which the time was last asked, and that time."""
        self.reading: Final = InboxReader(transport, self)
        """Reader of the frames that arrive."""
        self._sessions: dict[int, SessionEntry] = {}
        self._sessions_of: Groups[Peer, SessionEntry] = Groups()
        self._guests: Groups[bytes | str, Peer] = Groups()
        """Linked clients by their cluster's key, and nodes of each other realm."""
        self.receivers: Final = Dispatcher(self.refusals, self)
        self.register: Final = self.receivers.add
        """Hands messages of a kind to a receiver."""
        self.own: Final = loopback(self._public, config, self.receivers, self)
        """This node as its own peer."""
        self._observers: list[PeerObserver] = []
        self._observers_of_clients: list[PeerObserver] = []
        """Observers among these that are also notified of peers where one of the two ends is a client."""
        self._barriers = PingBarrier(self._peers, entropy)
        direct = 0.0 if setting.tag.between else patience_of(config)  # gateways have no membership that would wait
        self.redialling: Final = Reconnector(
            self, self._peers, nursery, RedialPatience(direct, config.refused_grace, config.site_patience)
        )
        self._renewing: Final = RekeySchedule(self, self._sessions, nursery)
        self._cut_off = ""
        """Outcome of the last attempt to reach any node, if it failed; else empty."""
        self.closing = False
        """True once this node is leaving, so that connections that end are no news."""
        self._logged: dict[str, float] = {}
        """Time at which each kind of unexpected error was last logged."""
        self._carried_by: type[Message] | None = None
        """The kind of message that the frame came in which is being handled; None: it came over a connection."""
        self.register(kinds.Ping, self._barriers.receive_ping)
        self.register(kinds.Pong, self._barriers.receive_pong)
        self._final_messages: Final = Disconnects(self, nursery)
        self._resets: Final = Resets(self, self._peers, nursery)
        self.register(kinds.Reset, self._receive_reset)

    # -- for the patterns -----------------------------------------------------------------------------------

    def renew_identity(self, renewed: NodeIdentity) -> None:
        """Use other certificates from now on: replace sessions if need be, and drop peers that are trusted no more.

        Who has refused this node is dialled again without a pause.
        """
        if renewed is not self.identity:
            self._backoff.clear()
        self._renewing.follow(self.identity, renewed)
        self.identity, self._public = renewed, renewed.public()
        follow_trust(self._peers, renewed, self.drop)

    def deliver(self, peer: Peer, message: Message) -> None:
        """Hand a message of a peer that came inside of another one to its receiver; raises what that raises."""
        self.receivers.deliver(peer, message)

    def begin_reading(self) -> None:
        """Read what arrives, and answer handshakes, from now on: everybody who must see what comes is there.

        Until then frames wait in the transport, and nobody is linked.
        """
        self._nursery.start_soon(self.reading.run)

    def observe(self, *observers: PeerObserver) -> None:
        """Notify these observers of every peer, in this order; of those that are linked already at once."""
        self._observers += observers
        self._observers_of_clients += [observer for observer in observers if observer.of_clients]
        for peer in self._peers:
            notified = self._observers_of(peer)
            self._connected(peer, [observer for observer in observers if observer in notified])

    def is_between_members(self, peer: Peer) -> bool:
        """Return whether neither a peer nor this node is a client."""
        return not (peer.client or self.tag.client)

    def _observers_of(self, peer: Peer) -> list[PeerObserver]:
        return self._observers if self.is_between_members(peer) else self._observers_of_clients

    def _connected(self, peer: Peer, observers: list[PeerObserver]) -> None:
        self._notify([observer.peer_connected for observer in observers], peer)

    def _notify(self, calls: Iterable[Callable[P, None]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Notify some observers; an error in one of them keeps the news from nobody else, and ends nothing."""
        for call in calls:
            try:
                call(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 -- a bug in one of them
                observer = call.__qualname__.rpartition(".")[0].rpartition(".")[2]
                self.note_unexpected(f"what becomes of peers, in {observer}", error)

    def post(self, node: NodeId, message: Message, size: int, reserve: int = 0, *, flush: bool = False) -> None:
        """Append a message to the link to ``node``, see ``Link.post``; raise NotSent without one, or room on it."""
        peer = self._peers.get(node)
        if peer is None:
            peer = self.own
            if node != peer.node:
                raise NotSent(f"no link to node {node}")
        peer.link.post(message, size, reserve, flush=flush)

    def frame_time(self) -> float:
        """Return the time at which the present frame came: the same for all its messages, which are one look at it."""
        work = self.work
        if not work.is_frame:
            return trio.current_time()
        if self._timed != work.frame:
            self._timed, self._time = work.frame, trio.current_time()
        return self._time

    def add_bulk_source(self, node: NodeId, source: BulkSource) -> None:
        """Let the link to ``node`` take data from ``source``; nothing happens if there is no such link."""
        peer = self.own if node == self.own.node else self._peers.get(node)
        if peer is not None:
            peer.link.add_bulk_source(source)

    def peer(self, node: NodeId) -> Peer | None:
        """Return a linked node, or the node itself."""
        return self.own if node == self.own.node else self._peers.get(node)

    async def barrier(self, node: NodeId, said: Callable[[NodeId], bool] | None = None) -> None:
        """Wait until the peer has dispatched everything posted to it before, or is given up.

        Its answer comes behind all that it posted before, and frames may be lost between.

        Args:
            node: the peer.
            said: True once what the peer is to say has come.  Until then it is asked to say everything again: it was
                lost, or the peer did not notice that this node had given it up before.
        """
        await self._barriers.wait(node)
        while said is not None and node in self._peers and not said(node):
            await trio.sleep(_SAID_WITHIN)
            peer = self._peers.get(node)
            if peer is None:
                return
            if not said(node):
                self.notice_loss(peer)
                await self._barriers.wait(node)

    # -- connecting -----------------------------------------------------------------------------------------

    async def connect(
        self,
        urls: Iterable[str],
        *,
        expected: NodeId | None = None,
        realm_id: str = "",
        source: str = "",
        hearsay: bool = False,
    ) -> Peer:
        """Link to the node at the first of ``urls`` that answers; of another realm if ``realm_id`` says so.

        A node already linked is returned as it is.  Cancelling leaves no half-open handshake.

        Args:
            urls: in the order in which they are preferred.
            expected: the node; None: the one that is there.
            realm_id: the fingerprint of its realm; empty: this node's own.
            source: the source of the address: dials of one have turns behind each other, not before those of another.
            hearsay: True unless the source is the user: ``AddressRules`` hold for the addresses, and ``DialLimits``.

        Raises:
            NotSent: none could be reached, or finished the handshake in time, or too many dials there led to nobody;
                ``Refused``: nobody listens at any.
            AuthenticationError: somebody answered that is not of this realm, or not ``expected``.
            ConfigError: a URL is malformed, and no other one answered.
        """
        return await self._dialling.connect(urls, expected, realm_id, source, hearsay=hearsay)

    async def straighten(self, node: NodeId, urls: Sequence[str], source: str) -> None:
        """Replace the way to a peer through another node by a direct one, which others say that there is now.

        Nothing happens if the peer is not linked so.  The way in use stays where that fails; frames under way may be
        lost, as when a connection breaks.

        Raises:
            NotSent, AuthenticationError, ConfigError: see ``connect``.
        """
        if self._outbound.is_relayed(self._peers.outgoing_to(node)):
            await self._dialling.straighten(node, urls, source)

    def readdress(self, listening: tuple[str, ...]) -> bool:
        """Name ``listening``, which are bound, in handshakes from now on; return whether its addresses are others."""
        known = self.advertised
        self.listening = listening
        self.advertised = own_addresses(self.node, listening, dials_both=self._dials_both)
        if not self.dial_only:
            self._outbound.begin_answering()
        return self.advertised != known

    @property
    def dial_only(self) -> bool:
        """True while no other machine can dial this node, so that it dials both directions of every link."""
        return any(map(is_via_url, self.advertised))

    def redial(self, node: NodeId) -> None:
        """Make a new connection to a peer: that in use leaves from an address that this machine has no more.

        Nothing happens if it has none, or is not linked.
        """
        outgoing = self._peers.outgoing_to(node)
        if outgoing is not None:
            self._outbound.line_broke(outgoing)

    async def own_urls(self, dialled: str, over: OutgoingConnection | None = None) -> tuple[str, ...]:
        """Return where the node at ``dialled`` can reach this one; ``over``: the connection to it, if there is one."""
        if is_site_url(dialled):
            realm_id = self.identity.realm_id if realm_of_url(dialled) else ""
            return (site_url(qualified(realm_id, self.tag.site), self.node),)
        if is_via_url(dialled):
            return (via_url(self.node),)
        own = self._outbound.own_address(over)
        if own is None:
            return await return_urls(self.listening, dialled)
        return (own, *filter(is_two_way, await return_urls(self.listening, dialled)))

    def receive_carried(self, frame: bytes | memoryview, kind: type[Message], carrier: str | None = None) -> None:
        """Receive a frame that came inside of a message, as if it had come over a connection.

        Args:
            frame: the frame as received.
            kind: the kind of the message, Forward or Carry.
            carrier: whose limits on strangers count for it; None: those of all together, for carriers that can be
            trusted.

        Raises:
            RemoteProtocolError: see ``check_not_nested``.
        """
        self.check_not_nested(kind)
        inbound = self._inbound
        outer_kind, outer = self._carried_by, inbound.begin_carried(carrier)
        self._carried_by = kind
        try:
            self._receive_untrusted(frame)
        finally:
            self._carried_by = outer_kind
            inbound.end_carried(outer)

    def check_not_nested(self, kind: type[Message]) -> None:
        """Check that a Forward or a Carry came in a frame in which one may be.

        Frames that are carried do not nest: each level of them would be one of this node's stack.  A frame comes
        through gateways, and for the last step perhaps through another node of the site: a Carry in a Forward.

        Raises:
            RemoteProtocolError: it came in another one of its kind, or it is a Forward and came in a Carry.
        """
        if self._carried_by is not None and (self._carried_by, kind) != (kinds.Forward, kinds.Carry):
            raise RemoteProtocolError("a frame that is carried carries another one")

    def trouble(self) -> str:
        """Return, for errors, why this node may find nobody; empty if nothing is known to be wrong."""
        expelled = self.expelled()
        if expelled is not None:
            return f"; {expelled}, so nobody talks to this node: have a new credential issued ('iris keys')"
        return f"; this node is linked to nobody: {self._cut_off}" if self._cut_off and not self._peers else ""

    def note_cut_off(self, error: IrisError) -> None:
        """Note that no node could be reached: errors say so as long as this node is linked to nobody."""
        self._cut_off = str(error)

    def outgoing_to(self, node: NodeId) -> OutgoingConnection | None:
        """Return the connection in use to a node, if there is one."""
        return self._peers.outgoing_to(node)

    def statistics(self) -> MeshStatistics:
        """Return a snapshot of the counters."""
        return MeshStatistics(
            sessions=len(self._sessions),
            handshakes=self._finished,
            half_open=len(self._handshakes),
            dialling=self._handshakes.dialling,
            outbound=len(self._outbound),
            inbound=len(self._inbound),
            unauthenticated=len(self._inbound.unauthenticated),
            incomplete_bytes=self._transport.held,
        )

    def sessions_of(self, peer: Peer) -> int:
        """Return the number of sessions in which frames of a peer may arrive."""
        return len(self._sessions_of.of(peer))

    def is_session(self, index: int) -> bool:
        """Return whether an index is that of a session."""
        return index in self._sessions

    def check(self, peer: PeerIdentity) -> None:
        """Check that a node which has proved who it is may be linked.

        Raises:
            AuthenticationError: it is refused, or is not the node of this id that is linked already.
        """
        check_identity(peer, self._peers.get(peer.node_id), self.identity)
        self.check_peer(peer)

    def check_peer(self, peer: PeerIdentity) -> None:
        """Raise AuthenticationError if a node is refused, though its certificates are in order."""
        self._admission.check(peer)

    def final_messages(self, peer: PeerIdentity) -> Sequence[Message]:
        """Return what to send to a node of this realm that is refused."""
        return self._admission.final_messages(peer)

    def reason(self, peer: PeerIdentity) -> str | None:
        """Return why nobody of the realm talks to a node any more; None if they do."""
        return self._admission.reason(peer)

    def expelled(self) -> str | None:
        """Return why nobody of the realm talks to this node any more; None if they do."""
        return self._admission.reason(self._public)

    def check_guest(self, peer: PeerIdentity) -> None:
        """Check that one more client, or node of another realm, may be linked, besides those of the same owner.

        Raises:
            AuthenticationError: there are ``Config.clients_per_cluster_key`` of them.
        """
        guests = len(self._guests.of(_guests_key(peer)))
        if guests >= self.config.clients_per_cluster_key and peer.node_id not in self._peers:
            what = (
                f"node of realm {peer.other_realm.alias!r}"
                if peer.other_realm
                else f"client of cluster {peer.cluster!r}"
            )
            text = "a %s was turned away: %d are linked, as many as clients_per_cluster_key allows"
            self._warn("clients", text, what, guests)
            raise AuthenticationError("more guests of one owner's key than clients_per_cluster_key")

    def admit(
        self,
        established: Established,
        outgoing: OutgoingConnection,
        addresses: tuple[str, ...],
        site: str,
        *,
        initiated: bool,
        client: bool,
    ) -> Peer:
        """Use a finished handshake, for a new peer or for one already linked.

        A client stays one for as long as it is linked, whatever it says in a later handshake.  Frames leave under the
        latest session; over the same connection once the peer has shown that it has it.  Of two connections the one in
        use stays, but for what ``OutboundConnections.supersedes`` says.
        """
        self._finished += 1
        node, rights = established.peer.node_id, established.peer.certificate.rights
        known = self._peers.get(node)
        restricted = known is not None and known.identity.certificate.rights != rights
        renews = known is not None and initiated and known.link.is_up and outgoing is known.link.outgoing
        peer = known or Peer(
            established.peer, established.session, addresses, self.config, border=self._border, owner=self
        )
        if known is None:
            peer.client = client
            self._peers.add(peer)
            self._nursery.start_soon(peer.link.run)
        self._guests.remove(_guests_key(peer.identity), peer)
        peer.identity = established.peer
        if peer.client or peer.other_realm:
            self._guests.add(_guests_key(peer.identity), peer)
        peer.initiated, peer.site, link = initiated, site, peer.link
        entry = self._add_session(established.session, peer, awaited=renews)
        if renews:
            self._barriers.ask(peer)  # what it says next shows whether the last frame of the handshake was in time
            if restricted:
                self.notice_loss(peer)
            return peer
        later = entry.use(self._sessions_of.of(peer))
        if later is not None and link.outgoing is None and not later.begun:
            self._outbound.close(outgoing)  # the last frame of that one may be lost: a fresh handshake tells
        used = link.outgoing
        if used is not None and outgoing is not used and self._outbound.supersedes(outgoing, used):
            self._outbound.close(used)
            link.detach()
            used = None
            peer.addresses = addresses
        reconnected = used is None
        if outgoing is not used:
            if used is None and outgoing in self._outbound:
                self._outbound.give(outgoing, peer)
                link.attach(outgoing)
                peer.reached = self._outbound.url_of(outgoing)
            else:
                self._outbound.close(outgoing)
        if known is None:
            self._connected(peer, self._observers_of(peer))
        elif reconnected or restricted:
            self.notice_loss(peer)
        if link.outgoing is None:
            self._begin_redial(peer)
        return peer

    def _add_session(self, session: Session, peer: Peer, *, awaited: bool) -> SessionEntry:
        entry = self._sessions[session.local_index] = SessionEntry(session, peer, self.node, awaited=awaited)
        self._sessions_of.add(peer, entry)
        # Not the one in use: the peer may have shown none of the later ones that it has it.
        own = [entry for entry in self._sessions_of.of(peer) if entry.session is not peer.session]
        for former in own[: 1 - _MAX_SESSIONS]:
            self.forget_session(former)
        return entry

    def forget_session(self, entry: SessionEntry) -> None:
        """See ``RekeyHost``."""
        del self._sessions[entry.session.local_index]
        self._sessions_of.remove(entry.peer, entry)
        entry.session.close()

    # -- what arrives ---------------------------------------------------------------------------------------

    def receive_frame(self, frame: bytes | memoryview) -> None:
        """See ``FrameReceiver``: open the frame, and have ``Dispatcher`` hand its messages to their receivers."""
        work = self.work
        work.begin(is_frame=True)
        self._receive_untrusted(frame)
        if work.later:
            with self.survive("what frames have changed"):
                work.finish()
        else:
            work.is_frame = False

    def _receive_untrusted(self, frame: bytes | memoryview) -> None:
        """Receive a frame, whatever it is; raise nothing, for its sender must not be able to end this node."""
        try:
            receiver = wire.receiver_untrusted(frame)
            if receiver is None:
                self._receive_handshake(bytes(frame))
                return
            entry = self._sessions.get(receiver)
            if entry is None:
                self.refusals["unknown session"] += 1
                self._inbound.refused()
                return
            if entry.left:
                self.refusals["late frame of a former session"] += 1
                return
            if entry.peer.leaving:
                self.refusals["frame of a peer that is gone"] += 1
                return
            session, peer = entry.session, entry.peer
            body = session.open_untrusted(frame)
            # From here on the frame is genuine, and what is wrong with it is this peer's doing.  What failed above may
            # have been made by anybody, and must not count against the peer.
            try:
                if not entry.begun and not entry.begin(self._sessions_of.of(peer)):
                    self.refusals["late frame of a former session"] += 1
                    return
                if self._inbound.unauthenticated or self._inbound.contested:
                    self._inbound.genuine(peer.node)
                if session.lost_frames != entry.lost_frames:
                    entry.lost_frames = session.lost_frames
                    self.notice_loss(peer)
                frames = self._frames
                used = False if frames is None or self._carried_by is kinds.Carry else frames.examine(peer, body)
                if used is False:
                    self.receivers.dispatch_untrusted(peer, body, None if self._carried_by is None else self.work)
                elif used is not True:
                    begin, carrier = used
                    self.receive_carried(body[begin:], kinds.Carry, carrier)
            except RemoteProtocolError as error:
                self._warn(
                    "malformed batch",
                    "dropped what node %s of cluster %r sent, perhaps of another version of Iris: %s",
                    peer.node,
                    peer.identity.cluster,
                    error,
                )
                if isinstance(error, TooMuchWork):  # what was in it is lost as if the frame had never come
                    self.notice_loss(peer)
                raise
            except AuthenticationError:
                raise
            except Exception as error:  # noqa: BLE001 -- a peer must not be able to end the node
                self.quarantine_peer(peer, "frame", error)
            finally:
                if type(body) is memoryview:
                    give_back(body)
        except (RemoteProtocolError, AuthenticationError) as error:
            self.refusals[type(error).__name__] += 1
            if isinstance(error, OutOfDate):
                self._report_out_of_date(error)
            self._inbound.refused()
        except Exception as error:  # noqa: BLE001 -- the sender is not known, or gone
            self.note_unexpected("frame of a stranger", error)
            self._inbound.refused()

    def _report_out_of_date(self, error: OutOfDate) -> None:
        """Log, once for each cluster, that a node with a genuine certificate is not let in because of a date."""
        document = error.document
        cluster = document.cluster if isinstance(document, NodeDelegation) else document.name
        if cluster not in self._out_of_date and len(self._out_of_date) < _MAX_REPORTED:
            self._out_of_date.add(cluster)
            _log.warning(
                "a node of cluster %r has dialled and is not linked: %s", cluster, error, extra={"cluster": cluster}
            )

    def note_unexpected(self, what: str, error: Exception) -> None:
        """Count and log an unexpected error in what others have brought about.

        It is a bug of this program.  A peer that has found it can bring it about again and again, so it is logged now
        and then: ``what`` is one of few texts.
        """
        self.refusals[f"unexpected error: {what}"] += 1
        now = trio.current_time()
        if now >= self._logged.get(what, -math.inf) + _LOGGED_AGAIN:
            self._logged[what] = now
            note_unexpected(error)
            _log.error(
                "unexpected error: %s", what, exc_info=error, extra={"reason": type(error).__name__, "cause": what}
            )

    def _warn(self, what: str, text: str, *values: object) -> None:
        """Log what others have done, now and then: they can do it again and again."""
        now = trio.current_time()
        if now >= self._logged.get(what, -math.inf) + _LOGGED_AGAIN:
            self._logged[what] = now
            _log.warning(text, *values, extra={"reason": what})

    @contextlib.contextmanager
    def survive(self, what: str) -> Iterator[None]:
        """Run a block whose data came from several peers: an unexpected error ends the block, and no node."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- see above
            self.note_unexpected(what, error)

    def message_failed(self, peer: Peer, kind: str, error: Exception) -> None:
        """See ``FailedMessages.message_failed``."""
        self.quarantine_peer(peer, f"message of kind {kind}", error)

    def kinds_unknown(self, peer: Peer, unknown: set[int]) -> None:
        """See ``FailedMessages.kinds_unknown``: log, once for each cluster, that it has another version."""
        cluster = peer.identity.cluster
        if cluster not in self._of_other_versions and len(self._of_other_versions) < _MAX_REPORTED:
            self._of_other_versions.add(cluster)
            _log.warning(
                "node %s of cluster %r has another version of Iris: messages of kinds that this one does not have (%s) "
                "are left out, all others are taken; upgrade the older of the two",
                peer.node,
                cluster,
                ", ".join(map(str, sorted(unknown))),
                extra={"peer": peer.node, "cluster": cluster, "reason": "another version"},
            )

    def quarantine_peer(self, peer: Peer, what: str, error: Exception) -> None:
        """Note an unexpected error that a peer has brought about: it costs that peer its link and nothing else."""
        self.note_unexpected(what, error)
        if peer is not self.own:
            _log.warning(
                "the link to node %s of cluster %r ends: unexpected error",
                peer.node,
                peer.identity.cluster,
                extra={"peer": peer.node, "caller": peer.identity.caller, "reason": what},
            )
            self._final_messages.part(peer, f"unexpected error: {what}")

    def link_failed(self, link: Link, error: Exception) -> None:
        """See ``LinkOwner.link_failed``."""
        peer = self.peer(link.node)
        if peer is None or peer.link is not link:
            self.note_unexpected("messages to a peer", error)
        else:
            self.quarantine_peer(peer, "messages to this node" if peer is self.own else "messages to a peer", error)

    def _receive_handshake(self, frame: bytes) -> None:
        if len(frame) >= wire.HEADER_SIZE and frame[1] != wire.VERSION:
            text = (
                "a frame of protocol version %d was refused: this node speaks version %d; upgrade the older of the two"
            )
            self._warn("protocol version", text, frame[1], wire.VERSION)
        header = wire.parse_header_untrusted(frame)
        if header.kind == wire.HANDSHAKE_INIT:
            self._handshakes.receive_init_untrusted(frame, header.counter)
        elif header.kind == wire.HANDSHAKE_RESPONSE:
            self._handshakes.receive_response_untrusted(header.receiver, frame)
        else:
            self._handshakes.receive_finish_untrusted(header.receiver, frame)

    # -- connections that break, peers that end -------------------------------------------------------------

    def connection_broke(self, outgoing: OutgoingConnection, peer: Peer | None) -> None:
        """See ``OutboundObserver.connection_broke``."""
        self._handshakes.broken(outgoing)
        if peer is not None and peer.link.outgoing is outgoing and not self.closing:
            peer.link.detach()
            if peer.parting:
                return
            if not peer.indirect:  # else it says something about the route
                self._note_end(peer)
            self.redialling.flapping.broke(peer.node, trio.current_time())
            self._begin_redial(peer)

    def _note_end(self, peer: Peer) -> None:
        """Note whether a peer whose connection broke had let this node in.

        A member says something as soon as it is linked.  One that refuses the last frame of the handshake says nothing,
        or shows the list that has this node revoked, and hangs up.
        """
        if self.expelled() is not None or not _has_spoken(peer):
            if peer.initiated:  # else anybody could have this node dial nobody, by coming and going
                self.refused(peer.node, peer.reached)
        else:
            self._backoff.accepted(peer.node)
            self._backoff.accepted(peer.reached)

    def refused(self, node: NodeId | None, url: str) -> None:
        """See ``DialHost``."""
        now, expelled = trio.current_time(), self.expelled()
        for key in filter(None, (node, url)):
            self._backoff.refused(key, now)
        if expelled is None and any(peer.link.is_up and _has_spoken(peer) for peer in self._peers):
            self._backoff.accepted(ALL)
        elif self._backoff.refused(ALL, now) and expelled is None:
            _log.warning(
                "nobody lets this node in: links to it end before the other end has said anything; its certificates "
                "may be out of date, or its clock wrong; it dials less and less often, after %g s at most",
                LONGEST,
                extra={"peer": self.node, "caller": self.identity.cluster, "reason": "refused"},
            )

    def _begin_redial(self, peer: Peer) -> None:
        # A relayed connection says nothing about the peer when the relay is gone.
        if self.redialling.begin(peer) and not (peer.indirect and not peer.at_remote_site):
            self._notify([observer.peer_unreachable for observer in self._observers_of(peer)], peer.node)

    async def connect_again(self, peer: Peer) -> None:
        """See ``RedialHost``."""
        await self._dialling.again(peer)

    def peer_refused(self, peer: Peer) -> None:
        """See ``RedialHost``."""
        self._notify([observer.peer_refused for observer in self._observers_of(peer)], peer.node)

    async def renew_session(self, peer: Peer, outgoing: OutgoingConnection) -> None:
        """See ``RekeyHost``."""
        own = await self.own_urls(peer.addresses[0], outgoing)
        await self._handshakes.initiate(outgoing, peer.addresses, own, peer.node, peer.identity.other_realm_id)

    def _receive_reset(self, peer: Peer, _: Message) -> None:
        if self._resets.may(peer, self.work.frame):
            self._send_reset(peer)

    def notice_loss(self, peer: Peer) -> None:
        """Frames may be lost: what depended on them is repeated at both ends.  The other one is notified first."""
        if not self._resets.may(peer):
            return
        try:
            peer.link.post(kinds.Reset(), 0, CONTROL_RESERVE)
        except NotSent:
            self.refusals["answer without room on the link"] += 1
        self._send_reset(peer)

    def _send_reset(self, peer: Peer) -> None:
        self._notify([observer.frames_lost for observer in self._observers_of(peer)], peer)

    def is_held(self, peer: Peer) -> bool:
        """Return whether something would be lost with the link to a peer."""
        return any(observer.holds(peer.node) for observer in self._observers_of(peer))

    def part(self, peer: Peer, reason: str) -> None:
        """Say goodbye to a peer, take nothing from it any more, and drop it after the batch that is being read."""
        self._final_messages.part(peer, reason)

    def drop(self, node: NodeId, reason: str) -> None:
        """Drop a peer: end its link and sessions.  Messages still waiting are counted as lost."""
        # Out of the table first: observers that are called below, and ask for the node, must find it gone.
        peer = self._peers.remove(node)
        if peer is None:
            return
        for entry in self._sessions_of.of(peer):
            self.forget_session(entry)
        self._guests.remove(_guests_key(peer.identity), peer)
        self._outbound.close_all(peer)
        self._resets.forget(peer)
        self._inbound.hang_up(node)
        peer.link.close(reason)
        ended = peer.link.statistics()
        self.ended_links = ended if self.ended_links is None else self.ended_links + ended
        self._barriers.release(node)
        self._final_messages.gone()
        self._notify([observer.peer_removed for observer in self._observers_of(peer)], peer, reason)

    async def disconnect_all(self, reason: str, timeout: float) -> None:
        """Send every peer a goodbye, after all that was posted before.

        Returns when all have received it and ended their links, at the latest after ``timeout``.
        """
        self.closing = True
        await self._final_messages.say(reason, timeout)

    def stop_receiving(self) -> None:
        """Dispatch nothing any more: the handlers are about to end."""
        self.closing = True
        self._frames = None
        self.receivers.clear()

    def close(self) -> None:
        """End every link and the transport."""
        self.closing = True
        for peer in self._peers:
            self.drop(peer.node, "this node is closing")
        self.own.link.close("this node is closing")
        self._outbound.close_all()
        self._transport.close()


def own_addresses(node: NodeId, listening: tuple[str, ...], *, dials_both: bool) -> tuple[str, ...]:
    """Return the URLs at which others may reach a node that listens at some; see ``Mesh.advertised``."""
    own = advertised(listening)
    return (*own, via_url(node)) if dials_both and not any(map(is_two_way, own)) else own


@contextlib.asynccontextmanager
async def open_mesh(
    identity: NodeIdentity,
    transport: Transport,
    listening: tuple[str, ...],
    ports: MeshPorts,
    setting: MeshSetting,
) -> AsyncIterator[Mesh]:
    """Run a mesh over a transport that listens already; leaving the block ends every link and the transport.

    It reads nothing before ``Mesh.begin_reading``, to be called when all its observers and receivers are there.
    ``ports.admission`` decides who may be linked, from the first handshake on.
    """
    try:
        async with open_background() as nursery:
            mesh = Mesh(identity, transport, listening, nursery, ports, setting)
            for task in (mesh.own.link.run, mesh._inbound.run, mesh._renewing.run):
                nursery.start_soon(task)
            try:
                yield mesh
            finally:
                mesh.close()
    finally:
        transport.close()


def _has_spoken(peer: Peer) -> bool:
    """Return whether a frame has come from a peer in its present session."""
    return peer.session is not None and peer.session.statistics().received_frames > 0


def _guests_key(peer: PeerIdentity) -> bytes | str:
    """Return whose guest a client, or node of another realm, is: the key that can make any number of them."""
    return peer.other_realm_id or peer.certificate.public_key
