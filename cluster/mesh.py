"""The links of one node: who is dialled, handshakes, sessions, and what arrives.

All frames arrive in one inbox; the session index in a frame's header says whose it is.  Data frames are opened,
decoded and handed message by message to the pattern that registered the kind: plain calls, one lookup in a table.

A peer's session is tied to no connection.  When a connection breaks, the peer is routed out at once and dialled
again; if that works, the same session goes on and the patterns are told that frames may have been lost.  A session
of ``Config.session_lifetime`` is replaced by a fresh handshake over the same connection; both ends accept frames of
either for a while, so nothing waits for the change.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, Protocol, final

import trio

from iris.cluster.addresses import advertised, return_urls
from iris.cluster.loopback import loopback
from iris.cluster.peer import Peer
from iris.kernel import kinds, wire
from iris.kernel.background import open_background
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, ConfigError, IrisError, NotSent, RemoteProtocolError
from iris.kernel.ids import Entropy, NodeId, is_node_id
from iris.kernel.link import BulkSource
from iris.kernel.transport import Outgoing, Transport
from iris.kernel.wire import Message
from iris.security.handshake import Established, Initiator, Responder
from iris.security.identity import NodeIdentity
from iris.security.session import Session

MessageReceiver = Callable[[Peer, Message], None]
"""Takes one message, without awaiting.  May raise RemoteProtocolError, which is counted against the peer."""

_MAX_ADDRESSES: Final = 16
_REDIALS: Final = (0.0, 0.02, 0.1, 0.5)
"""Pauses before each attempt to reach a peer whose connection broke.  The first one meets a refused port within a
millisecond where the process is gone; the rest ride out a listener that restarts."""


_TURN: Final = 0.0003
"""Seconds for which frames are read before other tasks get their turn."""


class PeerObserver(Protocol):
    """What those above are told of peers; plain calls in the trio thread."""

    def peer_up(self, peer: Peer) -> None:
        """A node is linked for the first time, or again after ``peer_down``."""
        ...

    def peer_reset(self, peer: Peer) -> None:
        """Frames to or from the peer may have been lost; the link goes on."""
        ...

    def peer_refused(self, node: NodeId) -> None:
        """The connection broke, or nobody listens where the peer was: no new work for it."""
        ...

    def peer_down(self, peer: Peer, reason: str) -> None:
        """The peer is given up; its link has ended and waiting messages are lost."""
        ...


@final
@dataclasses.dataclass(slots=True)
class _Initiating:
    initiator: Initiator
    outgoing: Outgoing
    addresses: tuple[str, ...]
    done: trio.Event
    peer: Peer | None = None
    error: IrisError | None = None


@final
@dataclasses.dataclass(slots=True)
class _Responding:
    responder: Responder
    outgoing: Outgoing
    addresses: tuple[str, ...]
    done: trio.Event


@final
class _Entry:
    """A session in which frames may arrive, whose it is, and the gaps that were reported upwards."""

    __slots__ = ("lost_frames", "peer", "session")

    def __init__(self, session: Session, peer: Peer) -> None:
        self.session = session
        self.peer = peer
        self.lost_frames = 0


@final
class _Way:
    """Remembers whose connection it was that broke."""

    __slots__ = ("broken", "outgoing", "peer")

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.outgoing: Outgoing | None = None
        self.broken = False


@final
class Mesh:
    """The peers of one node.  Made by ``open_mesh``."""

    def __init__(
        self,
        identity: NodeIdentity,
        transport: Transport,
        listening: tuple[str, ...],
        nursery: trio.Nursery,
        *,
        config: Config,
        entropy: Entropy,
        wall_clock: Callable[[], float],
    ) -> None:
        self.identity = identity
        self.listening: Final = listening
        """The URLs bound here."""
        self.advertised: Final = advertised(listening)
        """The URLs at which other machines may reach this one."""
        self.config: Final = config
        self.refusals: Counter[str] = Counter()
        """Frames and messages that were refused, by reason."""
        self._transport = transport
        self._nursery = nursery
        self._entropy = entropy
        self._wall_clock = wall_clock
        self._peers: dict[NodeId, Peer] = {}
        self._sessions: dict[int, _Entry] = {}
        self._initiating: dict[int, _Initiating] = {}
        self._responding: dict[int, _Responding] = {}
        self._ways: dict[Outgoing, _Way] = {}
        self.own: Final = loopback(identity.public(), config, self._dispatch)
        """This node as its own peer."""
        self._receivers: dict[int, tuple[MessageReceiver, int]] = {}
        self._observers: list[PeerObserver] = []
        self._barriers: dict[int, trio.Event] = {}
        self._redialling: set[NodeId] = set()
        self.closing = False
        """Whether this node is on its way out, so that connections that end are no news."""
        self.on(kinds.PING, 1, self._receive_ping)
        self.on(kinds.PONG, 1, self._receive_pong)
        self.on(kinds.GOODBYE, 1, self._receive_goodbye)

    # -- for the patterns -----------------------------------------------------------------------------------

    @property
    def node(self) -> NodeId:
        """This node's id."""
        return self.identity.node_id

    @property
    def peers(self) -> Mapping[NodeId, Peer]:
        """The other nodes that are linked, connected or being reconnected."""
        return MappingProxyType(self._peers)

    def on(self, kind: int, fields: int, receiver: MessageReceiver) -> None:
        """Have messages of ``kind`` with ``fields`` fields handed to ``receiver``; any other length is refused."""
        assert kind not in self._receivers, f"message kind {kind:#x} is taken"
        self._receivers[kind] = (receiver, fields + 1)

    def observe(self, observer: PeerObserver) -> None:
        """Tell ``observer`` of peers from now on."""
        self._observers.append(observer)

    def post(self, node: NodeId, message: Message, size: int) -> None:
        """Append a message to the link to ``node``.

        Raises:
            NotSent: no link to that node, or its buffer is full.
        """
        peer = self.peer(node)
        if peer is None:
            raise NotSent(f"no link to node {node}")
        peer.link.post(message, size)

    def ready(self, node: NodeId, source: BulkSource) -> None:
        """Have the link to ``node`` take data from ``source``; nothing happens if there is no such link."""
        peer = self.peer(node)
        if peer is not None:
            peer.link.ready(source)

    def peer(self, node: NodeId) -> Peer | None:
        """Return a linked node, or the node itself."""
        return self.own if node == self.own.node else self._peers.get(node)

    async def barrier(self, node: NodeId) -> None:
        """Wait until the peer has dispatched everything posted to it before, or is given up."""
        peer = self._peers.get(node)
        if peer is None:
            return
        token = int.from_bytes(self._entropy(6))
        event = self._barriers[token] = trio.Event()
        try:
            peer.link.post((kinds.PING, token), 0)
            while node in self._peers and not event.is_set():
                with trio.move_on_after(0.25):
                    await event.wait()
        except NotSent:
            return
        finally:
            del self._barriers[token]

    # -- connecting -----------------------------------------------------------------------------------------

    async def connect(self, urls: Iterable[str], *, expected: NodeId | None = None) -> Peer:
        """Link to the node at the first of ``urls`` that answers.

        A node already linked is returned as it is.  Cancelling leaves no half-open handshake.

        Raises:
            NotSent: none of them could be reached, or none finished the handshake in time.
            AuthenticationError: somebody answered that is not of this realm, or not ``expected``.
            ConfigError: a URL is malformed.
        """
        failures: list[IrisError] = []
        for url in list(urls)[:_MAX_ADDRESSES]:
            if expected is not None and expected in self._peers:
                return self._peers[expected]
            try:
                return await self._connect(url, expected)
            except (NotSent, AuthenticationError) as error:
                failures.append(error)
        for failure in failures:
            if isinstance(failure, AuthenticationError):
                raise failure
        raise failures[-1] if failures else NotSent("there is no address to connect to")

    async def _connect(self, url: str, expected: NodeId | None) -> Peer:
        with trio.move_on_after(self.config.handshake_timeout):
            way = await self._dial(url)
            assert way.outgoing is not None
            try:
                peer = await self._initiate(way.outgoing, (url,), await return_urls(self.listening, url), expected)
            except BaseException:
                way.outgoing.close()
                self._ways.pop(way.outgoing, None)
                raise
            return peer
        raise NotSent(f"no answer from {url} within {self.config.handshake_timeout:g} s")

    async def _dial(self, url: str) -> _Way:
        way = _Way()

        def broken() -> None:
            way.broken = True
            if way.outgoing is not None:
                self._ways.pop(way.outgoing, None)
                if way.peer is not None:
                    self._connection_lost(way.peer, way.outgoing)

        way.outgoing = await self._transport.dial(url, broken)
        self._ways[way.outgoing] = way
        return way

    async def _initiate(
        self, outgoing: Outgoing, addresses: tuple[str, ...], own: tuple[str, ...], expected: NodeId | None
    ) -> Peer:
        index = self._new_index()
        initiator = Initiator(
            self.identity,
            index=index,
            hello=wire.pack((self.node, own[:_MAX_ADDRESSES])),
            entropy=self._entropy,
            wall_now=self._wall_clock(),
            expected=expected,
            config=self.config,
        )
        waiting = _Initiating(initiator, outgoing, addresses, trio.Event())
        self._initiating[index] = waiting
        try:
            while not outgoing.send_nowait(initiator.frame):
                await outgoing.wait_writable()
            await waiting.done.wait()
        except trio.ClosedResourceError:
            raise NotSent(f"the connection to {addresses[0]} broke during the handshake") from None
        finally:
            self._initiating.pop(index, None)
        if waiting.error is not None:
            raise waiting.error
        assert waiting.peer is not None
        return waiting.peer

    def _new_index(self) -> int:
        while True:
            index = int.from_bytes(self._entropy(4))
            if index and index not in self._sessions and index not in self._initiating | self._responding:
                return index

    # -- what arrives ---------------------------------------------------------------------------------------

    async def _receive_frames(self) -> None:
        transport = self._transport
        turn = trio.current_time()
        while True:
            try:
                frame = transport.receive_nowait()
                if frame is None:
                    await transport.wait_readable()
                    turn = trio.current_time()
                    continue
            except trio.ClosedResourceError:
                return
            try:
                self._receive(frame)
            except (RemoteProtocolError, AuthenticationError) as error:
                self.refusals[type(error).__name__] += 1
            # Waiting for the next frame is a checkpoint anyway; one for each frame would add 20 us to every reply.
            if trio.current_time() - turn > _TURN:
                await trio.lowlevel.checkpoint()
                turn = trio.current_time()

    def _receive(self, frame: bytes) -> None:
        header = wire.parse_header_untrusted(frame)
        if header.kind == wire.DATA:
            entry = self._sessions.get(header.receiver)
            if entry is None:
                self.refusals["unknown session"] += 1
                return
            session, peer = entry.session, entry.peer
            body = session.open_untrusted(frame)
            if session.lost_frames != entry.lost_frames:
                entry.lost_frames = session.lost_frames
                self._tell_reset(peer)
            self._dispatch(peer, body)
        elif header.kind == wire.HANDSHAKE_INIT:
            self._receive_init(frame)
        elif header.kind == wire.HANDSHAKE_RESPONSE:
            self._receive_response(header.receiver, frame)
        else:
            self._receive_finish(header.receiver, frame)

    def _dispatch(self, peer: Peer, batch: bytes) -> None:
        receivers = self._receivers
        for message in peer.decoder.decode_untrusted(batch):
            entry = receivers.get(message[0])
            if entry is None or len(message) != entry[1]:
                self.refusals["message of unknown kind or length"] += 1
                continue
            try:
                entry[0](peer, message)
            except RemoteProtocolError:
                self.refusals[f"message of kind {message[0]:#x}"] += 1

    def _receive_init(self, frame: bytes) -> None:
        if len(self._responding) >= self.config.half_open_handshakes:
            self.refusals["half-open handshakes"] += 1
            return
        index = self._new_index()
        responder = Responder(self.identity, index=index, entropy=self._entropy, config=self.config)
        claimed, addresses = _parse_hello_untrusted(responder.receive_first_untrusted(frame))
        self._nursery.start_soon(self._respond, index, responder, claimed, addresses)

    async def _respond(self, index: int, responder: Responder, claimed: NodeId, addresses: tuple[str, ...]) -> None:
        """Answer a first handshake frame and wait, bounded, for the last one."""
        way: _Way | None = None
        finished = False
        with trio.move_on_after(self.config.handshake_timeout):
            try:
                # The claim decides only over which connection the answer goes; it is verified by the last frame.
                known = self._peers.get(claimed)
                outgoing = known.link.outgoing if known is not None else None
                if outgoing is None:
                    way = await self._dial_any(addresses)
                    assert way.outgoing is not None
                    outgoing = way.outgoing
                waiting = _Responding(responder, outgoing, addresses, trio.Event())
                self._responding[index] = waiting
                frame = responder.respond(wire.pack((self.node, self.advertised[:_MAX_ADDRESSES])), wall_now=self._wall_clock())
                while not outgoing.send_nowait(frame):
                    await outgoing.wait_writable()
                await waiting.done.wait()
                finished = True
            except (NotSent, ConfigError):
                self.refusals["handshake without a way back"] += 1
            except trio.ClosedResourceError:
                self.refusals["handshake cut off"] += 1
        self._responding.pop(index, None)
        if way is not None and way.outgoing is not None and not finished:
            self._ways.pop(way.outgoing, None)
            way.outgoing.close()

    async def _dial_any(self, urls: Iterable[str]) -> _Way:
        failure: IrisError = NotSent("there is no address to connect to")
        for url in urls:
            try:
                return await self._dial(url)
            except (NotSent, ConfigError) as error:
                failure = error
        raise failure

    def _receive_response(self, index: int, frame: bytes) -> None:
        waiting = self._initiating.get(index)
        if waiting is None or waiting.done.is_set():
            self.refusals["unknown handshake"] += 1
            return
        try:
            established = waiting.initiator.receive_untrusted(
                frame, now=trio.current_time(), wall_now=self._wall_clock()
            )
            if established.peer.node_id == self.node:
                raise NotSent("this is the address of the node itself")
            assert established.frame is not None
            if not waiting.outgoing.send_nowait(established.frame):
                raise NotSent("the connection is stuck")
        except AuthenticationError as error:
            if not waiting.initiator.over:
                raise  # forged: the genuine answer may still come
            waiting.error = error
        except NotSent as error:
            waiting.error = error
        except trio.ClosedResourceError:
            waiting.error = NotSent("the connection broke during the handshake")
        else:
            _, addresses = _parse_hello_untrusted(established.hello)
            waiting.peer = self._admit(established, waiting.outgoing, (*waiting.addresses, *addresses))
            waiting.peer.initiated = True
        waiting.done.set()

    def _receive_finish(self, index: int, frame: bytes) -> None:
        waiting = self._responding.get(index)
        if waiting is None:
            self.refusals["unknown handshake"] += 1
            return
        established = waiting.responder.receive_last_untrusted(
            frame, now=trio.current_time(), wall_now=self._wall_clock()
        )
        del self._responding[index]
        if established.peer.node_id != self.node:
            self._admit(established, waiting.outgoing, waiting.addresses).initiated = False
        waiting.done.set()

    def _admit(self, established: Established, outgoing: Outgoing, addresses: tuple[str, ...]) -> Peer:
        """Take a finished handshake into use, for a new peer or for one already linked."""
        peer = self._peers.get(established.peer.node_id)
        fresh = peer is None
        if peer is None:
            peer = Peer(established.peer, established.session, addresses, self.config)
            self._peers[peer.node] = peer
            self._nursery.start_soon(peer.link.run)
        self._sessions[established.session.local_index] = _Entry(established.session, peer)
        present = peer.link.outgoing
        if present is None or present is outgoing:
            peer.identity = established.peer
            peer.session = established.session
            peer.link.use(established.session)
            way = self._ways.get(outgoing)
            if way is not None:
                way.peer = peer
            if present is None:
                peer.link.attach(outgoing)
        else:
            # Both ends dialled each other at the same time, and this node has a connection in use.  The peer may
            # seal under either session.  The spare connection may still hold the last frame of the handshake, without
            # which the peer knows nothing of this session: it is closed only when that has had time to arrive.
            self._nursery.start_soon(self._close_later, outgoing)
        if fresh:
            for observer in self._observers:
                observer.peer_up(peer)
        return peer

    async def _close_later(self, outgoing: Outgoing) -> None:
        await trio.sleep(self.config.handshake_timeout)
        self._ways.pop(outgoing, None)
        outgoing.close()

    # -- connections that break, peers that end -------------------------------------------------------------

    def _connection_lost(self, peer: Peer, outgoing: Outgoing) -> None:
        if peer.link.outgoing is not outgoing or self.closing:
            return
        peer.link.detach()
        if self._peers.get(peer.node) is peer and peer.node not in self._redialling:
            for observer in self._observers:
                observer.peer_refused(peer.node)
            self._redialling.add(peer.node)
            self._nursery.start_soon(self._redial, peer)

    async def _redial(self, peer: Peer) -> None:
        try:
            for pause in _REDIALS:
                await trio.sleep(pause)
                if self._peers.get(peer.node) is not peer or peer.link.outgoing is not None:
                    return
                try:
                    with trio.move_on_after(self.config.handshake_timeout):
                        way = await self._dial_any(peer.addresses)
                        if way.broken or way.outgoing is None:
                            continue
                        way.peer = peer
                        peer.link.attach(way.outgoing)
                        self._tell_reset(peer)
                        return
                except (NotSent, ConfigError):
                    continue
        finally:
            self._redialling.discard(peer.node)
        self.drop(peer.node, "it cannot be reached any more")

    def _tell_reset(self, peer: Peer) -> None:
        for observer in self._observers:
            observer.peer_reset(peer)

    def drop(self, node: NodeId, reason: str) -> None:
        """Give a peer up: end its link and sessions.  Messages still waiting are counted as lost."""
        peer = self._peers.pop(node, None)
        if peer is None:
            return
        for index in [index for index, entry in self._sessions.items() if entry.peer is peer]:
            self._sessions.pop(index).session.close()
        for outgoing in [outgoing for outgoing, way in self._ways.items() if way.peer is peer]:
            del self._ways[outgoing]
            outgoing.close()
        peer.link.close(reason)
        for observer in self._observers:
            observer.peer_down(peer, reason)

    def _receive_ping(self, peer: Peer, message: Message) -> None:
        _, token = message
        peer.link.post((kinds.PONG, token), 0)

    def _receive_pong(self, _: Peer, message: Message) -> None:
        token = message[1]
        event = self._barriers.get(token)
        if event is not None:
            event.set()

    def _receive_goodbye(self, peer: Peer, message: Message) -> None:
        _, reason = message
        self._nursery.start_soon(self._drop_soon, peer, str(reason)[:200])

    async def _drop_soon(self, peer: Peer, reason: str) -> None:
        """Drop a peer outside the loop that reads its batch."""
        if self._peers.get(peer.node) is peer:
            self.drop(peer.node, f"it said goodbye: {reason}")

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def _keep_sessions_fresh(self) -> None:
        """Replace sessions that have lived long enough, and forget those that may not be used any more."""
        while True:
            await trio.sleep(min(1.0, self.config.session_lifetime / 10))
            now = trio.current_time()
            for index, entry in list(self._sessions.items()):
                session, peer = entry.session, entry.peer
                if now - session.established > self.config.session_rejected:
                    del self._sessions[index]
                    session.close()
                    if peer.session is session:
                        self.drop(peer.node, "its session could not be renewed")
            for peer in list(self._peers.values()):
                assert peer.session is not None
                age = now - peer.session.established
                # The answering side waits longer, so that one handshake is made and not two.
                patience = 1.0 if peer.initiated else 1.15
                if age > self.config.session_lifetime * patience and peer.link.outgoing is not None:
                    self._nursery.start_soon(self._renew, peer, peer.link.outgoing)

    async def _renew(self, peer: Peer, outgoing: Outgoing) -> None:
        with trio.move_on_after(self.config.handshake_timeout):
            try:
                own = await return_urls(self.listening, peer.addresses[0])
                await self._initiate(outgoing, peer.addresses, own, peer.node)
            except (NotSent, AuthenticationError) as error:
                self.refusals[f"renewal: {type(error).__name__}"] += 1

    async def say_goodbye(self, reason: str, timeout: float) -> None:
        """Tell every peer that this node leaves, after all that was posted before; wait at most ``timeout``."""
        self.closing = True
        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                for node in list(self._peers):
                    nursery.start_soon(self.barrier, node)
        for peer in self._peers.values():
            try:
                peer.link.post((kinds.GOODBYE, reason), 0)
            except NotSent:
                continue
        for _ in range(3):  # rounds of the scheduler in which the flushers run
            await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """End every link and the transport."""
        self.closing = True
        for node in list(self._peers):
            self.drop(node, "this node is closing")
        self.own.link.close("this node is closing")
        self._transport.close()


def _parse_hello_untrusted(data: bytes) -> tuple[NodeId, tuple[str, ...]]:
    """Read what each end says of itself in the handshake: its id and where it listens."""
    match wire.unpack_untrusted(data):
        case (str() as node, tuple() as urls) if is_node_id(node) and len(urls) <= _MAX_ADDRESSES:
            if all(isinstance(url, str) and len(url) <= 512 for url in urls):
                return NodeId(node), urls
    raise RemoteProtocolError("a hello is a node id and at most 16 addresses")


@asynccontextmanager
async def open_mesh(
    identity: NodeIdentity,
    transport: Transport,
    listening: tuple[str, ...],
    *,
    config: Config,
    entropy: Entropy,
    wall_clock: Callable[[], float],
) -> AsyncIterator[Mesh]:
    """Run a mesh over a transport that listens already; leaving the block ends every link and the transport."""
    async with open_background() as nursery:
        mesh = Mesh(identity, transport, listening, nursery, config=config, entropy=entropy, wall_clock=wall_clock)
        nursery.start_soon(mesh.own.link.run)
        nursery.start_soon(mesh._receive_frames)
        nursery.start_soon(mesh._keep_sessions_fresh)
        try:
            yield mesh
        finally:
            mesh.close()
