"""Hostile frames against the links of a node: the part of ``python -m benchmarks.fuzz_frames`` about whole frames.

A ``Mesh`` runs on a network in memory, as in any node: what arrives passes its limits on strangers, its handshakes and
sessions, its decoder and its dispatch.  It is linked to an honest node, and in the middle of two handshakes with a
third one: it waits for the response in one, for the last frame in the other.  The frames that would bring each of them
forward are held back, and what an attacker sends is made of them:

- from outside, changed copies, on unauthenticated connections; each is closed for it, and another one opened;
- as a member, properly sealed frames of malformed batches, by the honest node's own connection.

What the mesh does not take for a refusal ends it, and the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final, final

import trio

from iris.cluster.mesh.mesh import Mesh
from iris.cluster.mesh.peer import Peer
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport.memory import MemoryNetwork, MemoryOutgoing, MemoryTransport
from iris.kernel.wire import kinds
from iris.kernel.wire.codec import encode_batch
from iris.kernel.wire.kinds import Message
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.channel.handshake import Initiator, Responder
from iris.security.identity.identity import NodeIdentity
from tests.support.admission import open_reading_mesh
from tests.support.damage import damaged, malformed

WALL: Final = 1_800_000_000.0
_LATENCY: Final = 0.0001

_ROUND: Final = 512
"""Frames before the handshakes are begun anew: they may last 5 s, and dials for unknown peers are limited."""

_BURST: Final = 16
"""Frames in progress at a time: one address may have 24 unauthenticated connections, and one connection 64 frames."""

_OF_CONNECTIONS: Final = ("junk from a stranger", "no genuine frame in time", "handshake without a way back")
"""Refusals that are counted beside that of the frame."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of an attack on a mesh."""

    refused: Counter[str]
    """Frames, and messages of members, by reason."""
    accepted: int
    """Frames from outside that were accepted as genuine; messages of members that were dispatched."""


@final
class Middle:
    """Stands at the address of a third node, with its keys, and holds back what would bring a handshake forward."""

    def __init__(
        self,
        transport: MemoryTransport,
        identity: NodeIdentity,
        entropy: Callable[[int], bytes],
        wall_clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._wall_clock = wall_clock
        self._identity = identity
        self._entropy = entropy
        self.url: Final = f"mem://{transport.host}"
        self.response: bytes | None = None
        self.last: bytes | None = None
        self._initiator: Initiator | None = None
        self._news = trio.Event()

    def first(self, index: int = 1) -> Initiator:
        """Begin a handshake."""
        hello = wire.pack((self._identity.node_id, (self.url,)))
        return Initiator(self._identity, index=index, hello=hello, entropy=self._entropy, wall_now=self._wall_clock())

    def begin(self) -> bytes:
        """Return the first frame of the handshake of which the last one will be held back."""
        self.last = None
        self._initiator = self.first(2)
        return self._initiator.frame

    async def wait(self) -> None:
        """Wait until both frames are held back."""
        while self.response is None or self.last is None:
            self._news = trio.Event()
            await self._news.wait()

    async def run(self) -> None:
        """Take what the victim sends."""
        while True:
            frame = self._transport.receive_nowait()
            if frame is None:
                await self._transport.wait_readable()
                continue
            with contextlib.suppress(AuthenticationError):
                if wire.parse_header_untrusted(frame).kind == wire.HANDSHAKE_INIT:
                    responder = Responder(self._identity, index=3, entropy=self._entropy)
                    responder.receive_first_untrusted(frame)
                    hello = wire.pack((self._identity.node_id, (self.url,)))
                    self.response = responder.respond(hello, wall_now=self._wall_clock())
                elif self._initiator is not None and not self._initiator.over:
                    self.last = self._initiator.receive_untrusted(frame, now=0.0, wall_now=self._wall_clock()).frame
            self._news.set()


@final
class Stage:
    """The mesh that is attacked, the honest node that it is linked to, and who stands between it and a third one."""

    def __init__(self, network: MemoryNetwork, victim: Mesh, honest: Mesh, middle: Middle) -> None:
        self.network: Final = network
        self.victim: Final = victim
        self.honest: Final = honest
        self.middle: Final = middle
        self.dispatched = 0
        for kind in (kinds.Request, kinds.Events):
            victim.register(kind, self._receive)

    def _receive(self, *_: object) -> None:
        self.dispatched += 1

    @property
    def accepted(self) -> int:
        """Frames and handshakes that the victim has taken as genuine so far."""
        sessions = [entry.session for entry in self.victim._sessions.values()]
        return sum(session.statistics().received_frames for session in sessions) + len(sessions)

    def connection_broken(self) -> None:
        """Nothing is made of it: the next frame opens another one."""

    def connect(self, source: MemoryTransport) -> MemoryOutgoing:
        """Open an unauthenticated connection to the victim, at once."""
        target = self.network.find(self.victim.listening[0])
        assert target is not None
        way = MemoryOutgoing(self.network, source, target, self)
        source.opened(way)
        target.accept(way)
        return way

    async def link(self) -> Peer:
        """Return what the honest node knows of the victim, after linking to it if need be."""
        with contextlib.suppress(NotSent):
            return await self.honest.connect(self.victim.listening, expected=NodeId(self.victim.node))
        await trio.sleep(1)
        return await self.link()


@contextlib.asynccontextmanager
async def open_stage(seed: int) -> AsyncIterator[Stage]:
    """Bring everything up."""
    entropy = random.Random(seed).randbytes
    network = MemoryNetwork(seed=seed, latency=(_LATENCY, _LATENCY))
    began = trio.current_time()
    realm = create_realm(entropy)
    identities: list[NodeIdentity] = []

    def wall_clock() -> float:
        return WALL + trio.current_time() - began

    for name in ("orders", "billing", "third"):
        realm, credential = issue_cluster(realm, name, entropy=entropy, wall_now=WALL)
        identities.append(credential.new_identity(entropy, WALL))

    @contextlib.asynccontextmanager
    async def mesh(host: str, identity: NodeIdentity) -> AsyncIterator[Mesh]:
        transport = network.transport(host)
        async with open_reading_mesh(
            identity,
            transport,
            await transport.listen([f"mem://{host}"]),
            config=Config(),
            entropy=entropy,
            wall_clock=wall_clock,
        ) as opened:
            yield opened

    async with mesh("victim", identities[0]) as victim, mesh("honest", identities[1]) as honest:
        between = network.transport("middle")
        await between.listen(["mem://middle"])
        middle = Middle(between, identities[2], entropy, wall_clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(middle.run)
            stage = Stage(network, victim, honest, middle)
            await stage.link()
            await trio.sleep(1)
            yield stage
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def open_round(stage: Stage, peer: Peer, rng: random.Random) -> AsyncIterator[list[list[bytes]]]:
    """Yield genuine frames that the victim would take at this moment: data, first, responses, last."""
    assert peer.session is not None
    data = [bytes(peer.session.seal(rng.randbytes(rng.randrange(300)))) for _ in range(50)]
    stage.middle.response = None

    async def initiate() -> None:
        with contextlib.suppress(NotSent, AuthenticationError):
            await stage.victim.connect([stage.middle.url])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(initiate)
        third = stage.network.transport("third")
        with trio.fail_after(30):
            while stage.middle.response is None or stage.middle.last is None:
                stage.connect(third).send_nowait(stage.middle.begin())
                with trio.move_on_after(2):  # it is turned away if too many have just come from this address
                    await stage.middle.wait()
        assert stage.middle.response is not None
        assert stage.middle.last is not None
        yield [data, [stage.middle.first().frame], [stage.middle.response], [stage.middle.last]]
        third.close()
        nursery.cancel_scope.cancel()


def forged(genuine: list[list[bytes]], rng: random.Random) -> bytes:
    """Return a changed copy of a genuine frame; half of them are data."""
    data, *handshakes = genuine
    original = frame = rng.choice(data if rng.random() < 0.5 else rng.choice(handshakes))
    while frame == original:
        frame = damaged(original, rng)
        if rng.random() < 0.2 and len(frame) > wire.HEADER_SIZE:  # a header that leads somewhere
            _, _, _, receiver, counter = wire.HEADER.unpack_from(rng.choice(rng.choice(genuine)))
            header = wire.HEADER.pack(rng.randrange(1, 5), 1, 0, receiver, counter)
            frame = header + frame[wire.HEADER_SIZE :]
    return frame


async def attack_from_outside(count: int, seed: int, notice: Callable[[int], None]) -> Found:
    """Send ``count`` changed frames on unauthenticated connections; raise whatever is not a refusal."""
    rng = random.Random(seed)
    async with open_stage(seed) as stage:
        peer = await stage.link()
        before, accepted = Counter(stage.victim.refusals), stage.accepted
        sent = 0
        while sent < count:
            notice(sent)
            outsider = stage.network.transport(f"outsider-{sent}")
            ways: list[MemoryOutgoing] = []
            async with open_round(stage, peer, rng) as genuine:
                for _ in range(0, min(_ROUND, count - sent), _BURST):
                    ways = [way for way in ways if not way.closed]
                    ways += [stage.connect(outsider) for _ in range(_BURST - len(ways))]
                    for way in ways[: count - sent]:
                        way.send_nowait(forged(genuine, rng))
                        sent += 1
                    await trio.sleep(4 * _LATENCY)
            outsider.close()
        await trio.sleep(10)
        refused = Counter(stage.victim.refusals) - before
        found = Found(
            refused=Counter({reason: number for reason, number in refused.items() if reason not in _OF_CONNECTIONS}),
            accepted=stage.accepted - accepted,
        )
        assert await stage.link() is peer, "the honest node has lost its link"
        await stage.honest.barrier(stage.victim.node)
        return found


def batch(rng: random.Random) -> bytes:
    """Return some messages, encoded."""
    messages: list[Message] = [
        kinds.Request(rng.randrange(2**32), "databases", None, 5000, 0, ("trace", "x" * 20), rng.randbytes(40)),
        kinds.Events(
            "orders.created", 7, 0, None, None, None, (b"payload", wire.encode_payload({"a": [1.5, None]}, 99)), ()
        ),
        kinds.Ping(2**48 - 1),
    ]
    if rng.random() < 0.05:  # it ends the link, and most of the time would go into linking again
        messages.append(kinds.Goodbye("closing"))
    return bytes(encode_batch(rng.sample(messages, rng.randrange(1, 4))))


async def attack_as_member(count: int, seed: int, notice: Callable[[int], None]) -> Found:
    """Send ``count`` malformed batches in proper frames by the honest node's connection."""
    rng = random.Random(seed)
    async with open_stage(seed) as stage:
        before = Counter(stage.victim.refusals)
        sent = 0
        while sent < count:
            notice(sent)
            peer = await stage.link()
            for _ in range(min(_BURST, count - sent)):
                if peer.session is not None and peer.link.outgoing is not None:
                    with contextlib.suppress(trio.ClosedResourceError):
                        peer.link.outgoing.send_nowait(peer.session.seal(malformed(batch(rng), rng)))
                        sent += 1
            await trio.sleep(4 * _LATENCY)
        await trio.sleep(10)
        found = Found(refused=Counter(stage.victim.refusals) - before, accepted=stage.dispatched)
        await stage.link()
        await stage.honest.barrier(stage.victim.node)
        return found
