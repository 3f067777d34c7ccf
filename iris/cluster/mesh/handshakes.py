"""Handshakes in progress at one node, as initiator and as responder: each ends in a session or is given up.

The protocol itself is the machine in ``iris.security.channel.handshake``.  Here is what it needs around it:
connections, a limit in time and in number, and the hello in which each end says where it listens.

A first frame that is not answered is sent again: the other end may have had to drop it, with too many others there.

The last frame goes out over the connection that data will take, ahead of the first data under the new session: the
peer never sees a frame of a session that it does not know.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, final

import trio
from msgspec import Struct

from iris.cluster.address_rules import Hearsay
from iris.cluster.directory import SiteTag, is_client, is_tag, site_of
from iris.cluster.mesh.inbound import HandshakePace, InboundConnections
from iris.cluster.mesh.outbound import OutboundConnections
from iris.cluster.mesh.peer import Peer
from iris.cluster.routes import is_reverse_url, is_site_url, is_via_url, realm_of_url
from iris.cluster.swim import is_plain
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, ConfigError, IrisError, NotSent, RemoteProtocolError
from iris.kernel.names import Entropy, NodeId, is_node_id, qualified
from iris.kernel.shapes import are_texts, is_tuple
from iris.kernel.transport import OutgoingConnection
from iris.kernel.wire import Message
from iris.security.channel import (
    EPHEMERAL,
    Admission,
    Established,
    HandshakeRules,
    Initiator,
    NotAdmitted,
    Responder,
    Session,
)
from iris.security.identity import NodeIdentity, PeerIdentity

MAX_ADDRESSES: Final = 16
_MAX_ADDRESS: Final = 512
_PATIENCE: Final = (0.2, 0.4)
"""Shares of the time that a handshake may take after which a first frame is sent again, and then once more: 1 and 2 s.
Up to a quarter is added at random, so that nodes that were sent away together do not come back together.

A node whose own first frame comes back to it does not believe at once that it has dialled itself: a stranger who
listens to the network can send it a copy.  It gives up when the connection ends as well, or nobody has answered by
then."""

_CARRIED_PATIENCE: Final = (0.05, *_PATIENCE)
"""The same between sites, where a gateway that dies takes frames with it before anybody knows: also after 0.25 s.
Without it callers waited for a second where one of two gateways was killed, in 1 of 80 cases."""

_TURNED_AWAY: Final = 0.5
"""Share of the time that a handshake may take.  An unauthenticated peer is hung up on as soon as its first frame is
seen; one whose first frame is good and that cannot be answered has all of that time."""

_MAX_HELLO: Final = 3500
"""Limit on the addresses in a hello in bytes, so that it stays below the 4 KiB that the handshake has room for."""


class HandshakeHost(Protocol):
    """The part of a mesh that handshakes need."""

    refusals: Counter[str]

    @property
    def config(self) -> Config:
        """The limits of this node."""
        ...

    @property
    def identity(self) -> NodeIdentity:
        """The identity of this node."""
        ...

    @property
    def wall_clock(self) -> Callable[[], float]:
        """Returns the seconds since 1970."""
        ...

    @property
    def advertised(self) -> tuple[str, ...]:
        """The addresses at which others may reach this node."""
        ...

    @property
    def tag(self) -> SiteTag:
        """The site tag of this node."""
        ...

    async def own_urls(self, dialled: str, over: OutgoingConnection | None = None) -> tuple[str, ...]:
        """Return where the node at ``dialled`` can reach this one; ``over``: the connection to it, if there is one."""
        ...

    def check(self, peer: PeerIdentity) -> None:
        """Raise AuthenticationError for a node that is not to be admitted, though its certificates are in order."""
        ...

    def outgoing_to(self, node: NodeId) -> OutgoingConnection | None:
        """Return the connection in use to a node, if there is one."""
        ...

    def is_session(self, index: int) -> bool:
        """Return whether an index is that of a session."""
        ...

    def note_unexpected(self, what: str, error: Exception) -> None:
        """Count and log an unexpected error in what others have brought about."""
        ...

    def final_messages(self, peer: PeerIdentity, /) -> Sequence[Message]:
        """Return what to send to a node that is not admitted, though its certificates are in order."""
        ...

    def check_guest(self, peer: PeerIdentity) -> None:
        """Raise AuthenticationError if there is no room for one more client of this cluster's key, or of its realm."""
        ...

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
        """Use a finished handshake."""
        ...


@final
class _Initiating(Struct):
    initiator: Initiator
    outgoing: OutgoingConnection
    addresses: tuple[str, ...]
    done: trio.Event
    began: float
    own: tuple[str, ...]
    """The addresses for connecting back that were sent to the other end."""
    site: str = ""
    client: bool = False
    established: Established | None = None
    error: IrisError | None = None
    reflected: bool = False
    """True once its first frame has come back to this node."""

    def fail(self, error: IrisError) -> None:
        self.error = error
        self.done.set()


@final
class _Responding(Struct):
    responder: Responder
    claimed: NodeId
    addresses: tuple[str, ...]
    tag: str
    host: str | None
    advertised: Hearsay
    """The source of its addresses."""
    done: trio.Event
    scope: trio.CancelScope
    ephemeral: bytes
    outgoing: OutgoingConnection | None = None
    """The connection by which the response went."""
    response: bytes = b""


def next_index(last: int, is_taken: Callable[[int], bool]) -> int:
    """Return the next free index; of two sessions the later one is known by them (``SessionEntry``)."""
    index = last
    while True:
        index = (index + 1) % 2**32
        if index and not is_taken(index):
            return index


@final
class Handshakes:
    """The handshakes in progress at one node.

    Args:
        pace: how many seconds a handshake may take now.
    """

    def __init__(
        self,
        host: HandshakeHost,
        outbound: OutboundConnections,
        inbound: InboundConnections,
        nursery: trio.Nursery,
        pace: HandshakePace,
        entropy: Entropy,
    ) -> None:
        self._host = host
        self._patience = pace.patience
        self._outbound = outbound
        self._inbound = inbound
        self._admission = Admission(host.config, host.refusals)
        self._nursery = nursery
        self._config = host.config
        self._entropy = entropy
        self._wall_clock = host.wall_clock
        self._index = int.from_bytes(entropy(4))
        self._initiating: dict[int, _Initiating] = {}
        self._responding: dict[int, _Responding] = {}
        self._answering: dict[bytes, _Responding] = {}
        """Handshakes whose first frame may come again, by the ephemeral key in it."""

    def __len__(self) -> int:
        return len(self._initiating) + len(self._responding)

    @property
    def dialling(self) -> int:
        """Handshakes of strangers for which a connection is being made."""
        return self._admission.dialling

    async def initiate(
        self,
        outgoing: OutgoingConnection,
        addresses: tuple[str, ...],
        own: Iterable[str],
        expected: NodeId | None,
        realm_id: str = "",
    ) -> Peer:
        """Handshake over a connection, as initiator.  It has no limit in time; cancelling it leaves nothing behind.

        Raises:
            NotSent: the connection broke, it leads to this node itself, or the answer makes no sense.
            AuthenticationError: somebody answered that is not of this realm (or of the one with the fingerprint
                ``realm_id``), or not ``expected``; or this node's own credential is no longer valid.
        """
        identity = self._host.identity
        own = tuple(own)
        index = self._new_index()
        initiator = Initiator(
            identity,
            index=index,
            hello=_hello(identity.node_id, own, self._host.tag),
            entropy=self._entropy,
            wall_now=self._wall_clock(),
            rules=HandshakeRules(
                admit=self._host.check,
                config=self._config,
                expected=expected,
                realm_id=realm_id or realm_of_url(addresses[0]),
            ),
        )
        waiting = self._initiating[index] = _Initiating(
            initiator, outgoing, addresses, trio.Event(), trio.current_time(), own
        )
        try:
            await self._send(outgoing, initiator.frame)
            for share in _CARRIED_PATIENCE if is_site_url(addresses[0]) else _PATIENCE:
                with trio.move_on_after(share * self._patience() * (1 + self._entropy(1)[0] / 1024)):
                    await waiting.done.wait()
                if waiting.done.is_set():
                    break
                if waiting.reflected and self._outbound.owner(outgoing) is None:  # a link in use leads to somebody else
                    raise _dialled_itself(addresses)
                await self._send(outgoing, initiator.frame)
            await waiting.done.wait()
            if waiting.error is not None:
                raise waiting.error
            established = waiting.established
            assert established is not None
            assert established.frame is not None
            self._outbound.found(outgoing)
            in_use = self._host.outgoing_to(established.peer.node_id)
            if in_use is not None and self._is_superfluous(outgoing, in_use, established.peer.node_id):
                known = self._outbound.owner(in_use)
                if known is not None:
                    established.session.close()
                    self._outbound.close(outgoing)
                    return known
            current = outgoing if in_use is None or self._outbound.supersedes(outgoing, in_use) else in_use
            await self._send(current, established.frame)
            try:
                self._host.check(established.peer)  # again: it may have been revoked while its frame waited for room
            except AuthenticationError:
                established.session.close()
                raise
            return self._host.admit(
                established, outgoing, waiting.addresses, waiting.site, initiated=True, client=waiting.client
            )
        except trio.ClosedResourceError:
            raise _turned_away(addresses) from None
        finally:
            del self._initiating[index]

    def _is_superfluous(self, outgoing: OutgoingConnection, in_use: OutgoingConnection, node: NodeId) -> bool:
        """Return whether of two attempts to the same node this one is to end.

        The other end would leave the connection in use for this one.  Where both ends have dialled both directions, the
        one with the smaller id has dialled that which stays: otherwise each could close its own.
        """
        if in_use is outgoing or self._outbound.own_address(outgoing) is None or self._outbound.is_relayed(in_use):
            return False
        return self._outbound.returning(in_use) is None or self._host.identity.node_id > node

    def broken(self, outgoing: OutgoingConnection) -> None:
        """A connection broke: nothing will come of the handshakes begun over it."""
        for waiting in self._initiating.values():
            if waiting.outgoing is outgoing and not waiting.done.is_set():
                waiting.fail(self._cut_off(waiting))

    def _cut_off(self, waiting: _Initiating) -> NotSent:
        """Return why a connection broke over which a handshake was begun, as far as that can be told from here."""
        if waiting.reflected:
            return _dialled_itself(waiting.addresses)
        took, patience = trio.current_time() - waiting.began, self._patience()
        if took < _TURNED_AWAY * patience:
            return _turned_away(waiting.addresses)
        return no_answer(waiting.addresses, took, waiting.own)

    def _new_index(self) -> int:
        self._index = next_index(self._index, self._is_taken)
        return self._index

    def _is_taken(self, index: int) -> bool:
        return index in self._initiating or index in self._responding or self._host.is_session(index)

    async def _send(self, outgoing: OutgoingConnection, frame: bytes) -> None:
        """Send a frame; over the connection of a link it goes through the link, which may be waiting for room."""
        owner = self._outbound.owner(outgoing)
        if owner is not None and owner.link.outgoing is outgoing:
            owner.link.send_control(frame)
            return
        while not outgoing.send_nowait(frame):
            await outgoing.wait_writable()

    # -- what arrives ---------------------------------------------------------------------------------------

    def receive_init_untrusted(self, frame: bytes, sender_index: int) -> None:
        """Receive the first frame of a handshake in which this node is the responder.

        Raises:
            AuthenticationError, RemoteProtocolError: it is not one, or not of this realm.
        """
        host = self._host
        now, address = trio.current_time(), self._inbound.address()
        admission, ephemeral = self._admission, frame[EPHEMERAL]
        # Before any decryption: what is dropped here has cost this node microseconds, and its sender learns nothing.
        if not admission.may_begin(address, now) or not admission.is_fresh(ephemeral):
            return
        if ephemeral in self._answering and self._answer_again(self._answering[ephemeral]):
            admission.remember(ephemeral)
            return
        index = self._new_index()
        rules = HandshakeRules(admit=host.check, config=self._config)
        responder = Responder(host.identity, index=index, entropy=self._entropy, rules=rules)
        claimed, addresses, tag = parse_hello_untrusted(responder.receive_first_untrusted(frame))
        # From here on the frame is genuine, though it may be a replay.  Only genuine ones are remembered: junk could
        # otherwise push them out of the table.
        admission.remember(ephemeral)
        if responder.realm_id and not (host.tag.between or self._inbound.carried):
            admission.charge(address, now)
            # Before it is answered: the answer tells who this node is, its cluster, its rights and its addresses.
            raise AuthenticationError("nodes of different realms reach each other through gateways")
        if claimed == host.identity.node_id:
            admission.charge(address, now)
            own = self._initiating.get(sender_index)
            if own is not None and frame == own.initiator.frame:
                own.reflected = True
            host.refusals["first frame of this node itself"] += 1
            self._inbound.refused()  # if this node has dialled itself, that ends it
            return
        # From here on somebody unauthenticated has memory and a task of this node, for a handshake's time at most.
        for other in admission.open(index, address, now):
            admission.dialled(other)
            self._responding.pop(other).scope.cancel()
        scope = trio.CancelScope(deadline=now + self._patience())
        by_ipc = address is None and not self._inbound.carried
        host_of = None if self._inbound.carried else address
        hearsay = Hearsay(by=f"stranger {address}", node=claimed, host=host_of, by_ipc=by_ipc)
        waiting = self._responding[index] = _Responding(
            responder, claimed, addresses, tag, address, hearsay, trio.Event(), scope, ephemeral
        )
        self._answering[ephemeral] = waiting
        self._nursery.start_soon(self._respond, index, waiting)

    def _answer_again(self, waiting: _Responding) -> bool:
        """Receive the same first frame once more; return whether nothing more is to be done for it.

        Where processors are short an answer may take longer than its sender waits before he sends the frame again.  To
        make a connection for each copy would make them shorter.
        """
        outgoing = waiting.outgoing
        if outgoing is None:
            self._host.refusals["first frame again, before its answer"] += 1
            return True
        owner = self._outbound.owner(outgoing)
        if outgoing not in self._outbound or (owner is not None and owner.link.outgoing is not outgoing):
            return False  # it has broken
        # If there is no room, another answer has no room either.
        with contextlib.suppress(NotSent, trio.ClosedResourceError):
            if owner is not None:
                owner.link.send_control(waiting.response)
            else:
                outgoing.send_nowait(waiting.response)
        return True

    async def _respond(self, index: int, waiting: _Responding) -> None:
        """Send the response to a first frame, and wait, bounded, for the last frame."""
        refusals = self._host.refusals
        dialled: OutgoingConnection | None = None
        with waiting.scope:
            try:
                # The claim decides only over which connection the answer goes; it is verified by the last frame.
                outgoing = self._host.outgoing_to(waiting.claimed)
                advertised = waiting.addresses[0] if waiting.addresses else ""
                if (
                    outgoing is None
                    or (is_reverse_url(advertised) and self._outbound.returning(outgoing) != advertised)
                    or (self._outbound.is_relayed(outgoing) and not is_via_url(advertised))
                ):
                    outgoing = dialled = await self._dial_back(index, waiting)
                own = await self._host.own_urls(advertised) if is_site_url(advertised) else self._host.advertised
                hello = _hello(self._host.identity.node_id, own, self._host.tag)
                response = waiting.responder.respond(hello, wall_now=self._wall_clock())
                waiting.outgoing, waiting.response = outgoing, response
                await self._send(outgoing, response)
                await waiting.done.wait()
            except (NotSent, ConfigError):
                refusals["handshake without a way back"] += 1
            except trio.ClosedResourceError:
                refusals["handshake cut off"] += 1
            except AuthenticationError:
                refusals["AuthenticationError"] += 1
            except Exception as error:  # noqa: BLE001 -- a stranger chose the addresses, and must not end the node
                self._host.note_unexpected("handshake that somebody began", error)
        if self._answering.get(waiting.ephemeral) is waiting:
            del self._answering[waiting.ephemeral]
        self._forget(index, waiting)
        if dialled is not None and not waiting.done.is_set():
            self._outbound.close(dialled)

    async def _dial_back(self, index: int, waiting: _Responding) -> OutgoingConnection:
        """Connect to the addresses in a hello; of their sender only the first frame is known."""
        if self._responding.get(index) is waiting:  # else it had to go before it could begin
            for other in self._admission.dial_back(index, waiting.host, trio.current_time()):
                self._responding[other].scope.cancel()
        try:
            return await self._outbound.answer(waiting.addresses, waiting.advertised)
        finally:
            self._admission.dialled(index)

    def _forget(self, index: int, waiting: _Responding) -> None:
        """Remove a handshake, unless that was done and the index is another one's by now."""
        if self._responding.get(index) is waiting:
            del self._responding[index]
            self._admission.close(index)

    def receive_response_untrusted(self, index: int, frame: bytes) -> None:
        """Receive the response to a first frame of this node.

        Raises:
            AuthenticationError: it is forged; the genuine one may still come.
        """
        waiting = self._initiating.get(index)
        if waiting is None or waiting.done.is_set():
            self._host.refusals["unknown handshake"] += 1
            self._inbound.refused()
            return
        try:
            established = waiting.initiator.receive_untrusted(
                frame, now=trio.current_time(), wall_now=self._wall_clock()
            )
            _, addresses, tag = parse_hello_untrusted(established.hello)
            realm_id = waiting.initiator.realm_id
            waiting.client = _check_tag(self._host.tag, tag, (*waiting.addresses, *addresses), realm_id)
        except AuthenticationError as error:
            if not waiting.initiator.over:
                raise
            waiting.fail(error)
        except RemoteProtocolError as error:
            waiting.fail(NotSent(f"{waiting.addresses[0]} answered with a malformed hello: {error}"))
        else:
            self._inbound.genuine(established.peer.node_id)
            waiting.established = established
            waiting.site = qualified(realm_id, site_of(tag))
            waiting.addresses = tuple(dict.fromkeys((*waiting.addresses, *addresses)))
            waiting.done.set()

    def receive_finish_untrusted(self, index: int, frame: bytes) -> None:
        """Receive the last frame of a handshake in which this node is the responder.

        Raises:
            AuthenticationError: it is forged, or from somebody else than the first one claimed.
        """
        waiting = self._responding.get(index)
        if waiting is None or waiting.outgoing is None:
            self._host.refusals["unknown handshake"] += 1
            self._inbound.refused()
            return
        try:
            established = waiting.responder.receive_last_untrusted(
                frame, now=trio.current_time(), wall_now=self._wall_clock()
            )
            if established.peer.node_id != waiting.claimed:
                raise AuthenticationError(f"node {established.peer.node_id} had claimed to be {waiting.claimed}")
            realm_id = waiting.responder.realm_id
            client = _check_tag(self._host.tag, waiting.tag, waiting.addresses, realm_id)
            if client or established.peer.other_realm is not None:
                self._host.check_guest(established.peer)
        except NotAdmitted as error:
            if error.session is not None:
                self._part(waiting.outgoing, error.session, self._host.final_messages(error.peer))
            raise AuthenticationError(str(error)) from None
        finally:
            if waiting.responder.over:
                self._forget(index, waiting)
        # From here on the peer is authenticated.  Until this line its first frame has had no effect but an answer to
        # the addresses in it.
        self._inbound.genuine(established.peer.node_id)
        waiting.done.set()
        self._outbound.found(waiting.outgoing)
        site = qualified(realm_id, site_of(waiting.tag))
        self._host.admit(established, waiting.outgoing, waiting.addresses, site, initiated=False, client=client)

    def _part(self, outgoing: OutgoingConnection, session: Session, words: Sequence[Message]) -> None:
        """Send a node that is not admitted the final messages, in the only frame of its session."""
        try:
            if words:
                frame = wire.encode_batch([*words], session.seal)
                owner = self._outbound.owner(outgoing)
                # If there is no room, or it has broken, it is sent the next time.
                with contextlib.suppress(NotSent, trio.ClosedResourceError):
                    if owner is not None:
                        owner.link.send_control(frame)
                    else:
                        outgoing.send_nowait(frame)
        finally:
            session.close()


@final
class TurnedAway(NotSent):
    """A node hung up as soon as it saw the first frame: it is of another realm or version, or has no room."""


@final
class NoWayBack(NotSent):
    """A node takes connections of this one and answers nothing: it cannot connect back, or hangs."""


def no_answer(addresses: tuple[str, ...], patience: float, own: tuple[str, ...] | None) -> NotSent:
    """Return the error for a handshake that has taken too long.

    Args:
        addresses: the addresses that were dialled.
        patience: seconds that it took.
        own: the addresses that the other end was sent for connecting back; None: there was no connection.
    """
    text = f"no answer from {addresses[0]} within {patience:.3g} s"
    if own is None:
        return NotSent(f"{text}: nobody is there, or a firewall lets nothing through")
    if is_site_url(addresses[0]) or is_via_url(addresses[0]) or any(map(is_reverse_url, own)):
        return NotSent(f"{text}: the node there is cut off, or hangs")
    return NoWayBack(
        f"{text}: it takes connections, and cannot connect back to this node at {', '.join(own[:3]) or 'no address'} "
        "(a firewall or NAT between them?), or hangs; let it in, say with --listen (listen=) where it can reach this "
        "node, or leave listen out: then this node dials both directions"
    )


def _turned_away(addresses: tuple[str, ...]) -> TurnedAway:
    return TurnedAway(
        f"the connection to {addresses[0]} broke during the handshake: the node there is of another realm, speaks "
        "another version of the protocol, has no room for more, or is gone"
    )


def _dialled_itself(addresses: tuple[str, ...]) -> NotSent:
    return NotSent(f"{addresses[0]} is the address of this node itself")


def _check_tag(own: SiteTag, tag: str, addresses: tuple[str, ...], realm_id: str) -> bool:
    """Check that nodes of different sites or realms meet through gateways only; return whether this one is a client.

    Raises:
        AuthenticationError: they do not.
    """
    between_sites = list(map(is_site_url, addresses))
    if any(between_sites) and not all(between_sites):
        raise AuthenticationError("a node is reached through gateways or directly, not both")
    if not any(between_sites):
        own.check(tag, same_realm=not realm_id)
    elif any(realm_of_url(address) != realm_id for address in addresses):
        raise AuthenticationError("a node says that it is reached in a realm that it is not of")
    return is_client(tag) and not any(between_sites)


def _hello(node: NodeId, urls: Iterable[str], tag: SiteTag) -> bytes:
    """Write a hello: the node's id, its addresses as far as there is room, and its site."""
    advertised: list[str] = []
    room = _MAX_HELLO
    for url in urls:
        room -= len(url.encode()) + 3
        if len(advertised) == MAX_ADDRESSES or room < 0:
            break
        advertised.append(url)
    return wire.pack((node, tuple(advertised), tag.text) if tag.text else (node, tuple(advertised)))


def parse_hello_untrusted(data: bytes) -> tuple[NodeId, tuple[str, ...], str]:
    """Read a hello.

    Raises:
        RemoteProtocolError: not a node id, at most 16 addresses of at most 512 printable ASCII characters without
            blanks, and a site or nothing.
    """
    value = wire.unpack_untrusted(data)
    if is_tuple(value) and len(value) in (2, 3):
        node, urls, tag = (*value, "")[:3]
        if (
            is_node_id(node)
            and are_texts(urls)
            and len(urls) <= MAX_ADDRESSES
            and max(map(len, urls), default=0) <= _MAX_ADDRESS
            and all(map(is_plain, urls))
            and (tag == "" if len(value) == 2 else is_tag(tag))
            and isinstance(tag, str)
        ):
            return node, urls, tag
    raise RemoteProtocolError("a hello is a node id, at most 16 addresses, and a site or nothing")
