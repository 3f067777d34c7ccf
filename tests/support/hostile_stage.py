"""Hostile members against a whole node: the part of ``python -m benchmarks.fuzz_frames`` that needs a network.

A node and a gateway run with everything that they can be asked for: services, tunnels, subscriptions, kept values,
relays, confirmed publishing, the messages between sites.  Two others, a node of the same site and a gateway of another
one, have valid credentials.  First all of them work together, and what they say to each other is written down, by
kind.  Then the two send those messages changed: fields of other types, at the edges of their ranges, from other
messages, or made up for the kinds that nobody needed; and batches whose bytes are changed.  All of it is sealed
properly, and goes by the ordinary connections, so that everything behind the session is the node's own.

Nothing may come out of the node but refusals.  It has to answer honest nodes afterwards, and to hold no more than
before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, final

import trio

import iris
import iris.testing
from iris.cluster.mesh.mesh import Mesh
from iris.cluster.mesh.peer import Peer
from iris.cluster.swim import ClientView, Swim
from iris.federation.gateway import open_gateway_parts
from iris.federation.policy import Policy
from iris.kernel.wire import kinds
from iris.kernel.wire.codec import encode_batch
from iris.kernel.wire.kinds import Message
from iris.testing import Network
from tests.support.damage import changed_field, damaged, malformed
from tests.support.messages import made_up, raw, torn

_TURN: Final = 16
"""Frames that are sent before the node gets to work on them."""

_EVERYTHING: Final = Policy(exports=(">",), export_topics=(">",))


@final
class Recording:
    """Recorded messages, by kind, and the number of fields of each kind."""

    def __init__(self) -> None:
        self.messages: dict[type[Message], list[Message]] = defaultdict(list)

    def tap(self, mesh: Mesh) -> None:
        """Write down what a mesh dispatches from now on."""
        for kind, receiver in list(mesh.receivers.own.items()):

            def receive(peer: Peer, message: Message, receiver: Callable[..., None] = receiver) -> None:
                known = self.messages[type(message)]
                if len(known) < 40:
                    known.append(message)
                receiver(peer, message)

            mesh.receivers.own[kind] = receive

    def hostile(self, rng: random.Random, mesh: Mesh) -> tuple[type[Message], Any]:
        """Return the kind and the array of a message that was changed or made up, of a kind that a mesh takes."""
        kind = rng.choice(tuple(mesh.receivers.own))
        if kind is kinds.Goodbye and rng.random() < 0.95:
            kind = kinds.Reset  # else most of the time goes into linking again
        known = self.messages[kind]
        fields: list[Any]
        if known and rng.random() < 0.8:
            fields = list(torn(rng.choice(known)))
        elif rng.random() < 0.9:
            fields = made_up(kind, rng)
        else:
            fields = [changed_field(None, rng) for _ in kind.__struct_fields__]
        for _ in range(rng.randrange(3)):
            if fields:
                position = rng.randrange(len(fields))
                other = torn(rng.choice(known))[position] if known and rng.random() < 0.3 else fields[position]
                fields[position] = changed_field(other, rng)
        if rng.random() < 0.02:
            fields.append(None)
        return kind, raw(kind, *fields)


@final
class Attacker:
    """A member that sends what it likes to one other node."""

    def __init__(self, mesh: Mesh, victim: Mesh) -> None:
        self.mesh: Final = mesh
        self.victim: Final = victim
        self.sent = 0

    def send(self, batch: bytes) -> bool:
        """Send a batch by the connection that is in use, if there is one and it takes it."""
        peer = self.mesh.peers.get(self.victim.node)
        if peer is None or peer.session is None or peer.link.outgoing is None:
            return False
        with contextlib.suppress(trio.ClosedResourceError):
            self.sent += peer.link.outgoing.send_nowait(peer.session.seal(batch))
        return True

    async def wait_linked(self, gateway: str | None) -> None:
        """Wait for the link, which the last batch may have ended."""
        if self.victim.node not in self.mesh.peers:
            with contextlib.suppress(iris.IrisError):
                await self.mesh.connect(self.victim.listening if gateway is None else [gateway])
        await trio.sleep(0.05)


@final
class Stage:
    """The nodes of one run."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.attackers: list[Attacker] = []
        self.victims: list[Mesh] = []
        self.nodes: dict[str, iris.Node] = {}
        """Nodes by cluster and site."""
        self.views: dict[iris.Node, Swim | ClientView] = {}
        """Members as each node sees them."""
        self.network: Network

    @contextlib.asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[Callable[[], Any]]:
        """Bring everything up, let it work, and yield a call that lets an honest node use the victim."""
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            network = await stack.enter_async_context(iris.testing.open_network(seed=seed))

            self.network, meshes = network, dict[iris.Node, Mesh]()

            async def node(name: str, site: str) -> iris.Node:
                opened, parts = await stack.enter_async_context(network.open_parts(name, site=site))
                self.nodes[f"{name}@{site}"], meshes[opened] = opened, parts.mesh
                self.views[opened] = parts.view
                return opened

            async def gateway(site: str, *peers: str) -> tuple[iris.Node, Mesh]:
                inner = await node("gateway", site)
                url = f"mem://{site}/between"
                opened = open_gateway_parts(inner, listen=[url], peers=peers, policy=_EVERYTHING)
                return inner, (await stack.enter_async_context(opened)).between

            near, near_between = await gateway("near")
            far, far_between = await gateway("far", "mem://near/between")
            victim, villain, honest = (
                await node("victim", "near"),
                await node("villain", "near"),
                await node("x", "near"),
            )
            distant = await node("distant", "far")
            self.victims = [meshes[victim], meshes[near], near_between]
            for mesh in (
                *self.victims,
                meshes[villain],
                meshes[far],
                far_between,
                meshes[distant],
            ):
                self.recording.tap(mesh)
            service = _service()
            await stack.enter_async_context(victim.join("victim", service))
            await stack.enter_async_context(villain.join("villain", _service()))
            for reader in (victim, villain, distant):
                for durable in (False, True):
                    subscribe = reader.subscribe_durable if durable else reader.subscribe
                    events = await stack.enter_async_context(subscribe("t.>"))
                    nursery.start_soon(_read, events)
            for asking in (villain, distant, victim):
                for cluster in ("victim", "villain"):
                    await _work(asking, cluster)
            self.attackers = [
                Attacker(meshes[villain], meshes[victim]),
                Attacker(meshes[villain], meshes[near]),
                Attacker(far_between, near_between),
            ]

            async def check() -> None:
                await _work(honest, "victim")

            await check()
            yield check
            nursery.cancel_scope.cancel()


def _service() -> iris.Service:
    service = iris.Service("any")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @service.tunnel
    async def back(tunnel: iris.Tunnel) -> None:
        with contextlib.suppress(iris.IrisError):
            async for message in tunnel:
                await tunnel.send(message)

    return service


async def _read(events: Any) -> None:
    with contextlib.suppress(iris.IrisError):
        async for event in events:
            await events.confirm([event])


async def _work(node: iris.Node, cluster: str) -> None:
    """Use everything once."""
    await node.wait_for(cluster, timeout=60)
    assert await node.request(cluster, b"question", headers={"a": "b"}) == b"question"
    assert await node.request(cluster, {"x": [1, None]}, options=iris.RequestOptions(idempotent=True)) == {
        "x": [1, None]
    }
    await node.broadcast(cluster, b"all")
    await node.publish("t.a", b"event", key="k")
    await node.retain("t.b", [1, 2])
    await node.publish_confirmed("t.c", b"to disk")
    async with node.open_tunnel(cluster) as tunnel:
        await tunnel.send(b"there and back")
        assert await tunnel.receive() == b"there and back"
    await trio.sleep(1)


@final
class Refusals:
    """Refusals of the victims since the start."""

    def __init__(self, victims: list[Mesh]) -> None:
        self._victims = victims
        self._before = sum((Counter(mesh.refusals) for mesh in victims), Counter[str]())

    def since(self) -> Counter[str]:
        """Return the difference, by reason."""
        return sum((Counter(mesh.refusals) for mesh in self._victims), Counter[str]()) - self._before


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of an attack on a node."""

    refused: Counter[str]
    messages: int
    """Messages that were sent."""
    recorded: frozenset[type[Message]]
    """Kinds of messages of which some were taken by a decoder, so that their receivers have had to do with them."""
    sent: frozenset[type[Message]]
    """Kinds of messages that were sent."""


async def attack_node(count: int, seed: int, notice: Callable[[int], None]) -> Found:
    """Send ``count`` hostile batches; raise whatever is not a refusal."""
    rng = random.Random(seed)
    stage = Stage()
    sent: set[type[Message]] = set()
    messages_sent = 0
    async with stage.open(seed) as check:
        refusals = Refusals(stage.victims)
        for number in range(count):
            attacker = rng.choice(stage.attackers)
            messages = [stage.recording.hostile(rng, attacker.victim) for _ in range(rng.randrange(1, 4))]
            sent.update(kind for kind, _ in messages)
            messages_sent += len(messages)
            batch = encode_batch([message for _, message in messages])
            if rng.random() < 0.2:
                batch = malformed(batch, rng) if rng.random() < 0.5 else damaged(batch, rng)
            attacker.send(batch)
            if number % _TURN == 0:
                notice(number)
                await trio.sleep(0.002)
            if number % 512 == 0:
                for one in stage.attackers:
                    await one.wait_linked("mem://near/between" if one is stage.attackers[-1] else None)
        await trio.sleep(10)
        await check()
        recorded = frozenset(kind for kind, messages in stage.recording.messages.items() if messages)
        return Found(refused=refusals.since(), messages=messages_sent, recorded=recorded, sent=frozenset(sent))
