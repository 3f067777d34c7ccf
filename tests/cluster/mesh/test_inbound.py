"""Inbound connections of a node: time limit and number of unauthenticated ones, and the owners of the others."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.mesh import Mesh
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, NotSent
from iris.kernel.transport.memory import MemoryOutgoing, MemoryTransport
from iris.kernel.wire import kinds
from iris.security.channel.handshake import Initiator
from tests.support.admission import open_reading_mesh
from tests.support.meshes import Fleet, open_meshes
from tests.support.realms import WALL
from tests.support.transports import ignore


async def knock(transport: MemoryTransport, url: str, count: int) -> list[MemoryOutgoing]:
    """Open connections and say nothing."""
    return [await transport.dial(url, ignore) for _ in range(count)]


def first_frame(fleet: Fleet, index: int, url: str = "mem://nobody") -> bytes:
    """Return a genuine first frame of a node that can be reached at ``url``."""
    identity = fleet.realm.identity("x")
    hello = wire.pack((identity.node_id, (url,)))
    return Initiator(identity, index=index, hello=hello, entropy=fleet.realm.entropy, wall_now=WALL).frame


# -- time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("says", ["nothing", "a first frame"])
async def test_who_shows_nothing_genuine_is_sent_away_after_five_seconds(says: str, autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        began = trio.current_time()
        (way,) = await knock(fleet.network.transport("stranger"), a.url, 1)
        if says == "a first frame":
            way.send_nowait(first_frame(fleet, 1))
        await trio.sleep_until(began + 4.9)
        assert not way.closed
        await trio.sleep_until(began + 5.1)
        assert way.closed
        assert a.mesh.refusals["no genuine frame in time"] == 1
        assert a.mesh.statistics().inbound == a.mesh.statistics().unauthenticated == 0


async def test_one_who_sends_junk_is_sent_away_for_it_at_once(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        transport = fleet.network.transport("stranger")
        session = wire.HEADER.pack(wire.DATA, 1, 0, 7, 0) + bytes(40)
        for junk in (b"", b"junk", bytes(2000), session, b"\x01" + first_frame(fleet, 1)):
            (way,) = await knock(transport, a.url, 1)
            way.send_nowait(junk)
            await trio.sleep(0.01)
            assert way.closed
        assert a.mesh.refusals["junk from a stranger"] == 5


async def test_connections_of_peers_stay_whether_they_are_used_or_not(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        await trio.sleep(100)
        for node in fleet.nodes.values():
            assert node.mesh.refusals == {}
            assert node.mesh.statistics().inbound == 2
            assert node.mesh.statistics().unauthenticated == 0
            assert {what for what, _ in node.log.entries} == {"up"}


# -- number ----------------------------------------------------------------------------------------------------


async def test_of_too_many_strangers_from_one_address_the_oldest_go(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        (witness,) = await knock(fleet.network.transport("elsewhere"), a.url, 1)
        ways = await knock(fleet.network.transport("stranger"), a.url, 50)
        await trio.sleep(0.01)
        assert [way.closed for way in ways] == [True] * 26 + [False] * 24
        assert not witness.closed
        assert a.mesh.refusals == {"too many connections": 26}
        began = trio.current_time()
        await b.mesh.connect([a.url])
        assert trio.current_time() - began < 0.1


async def test_a_node_links_from_an_address_that_strangers_use_as_well(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        await knock(fleet.network.transport("b"), a.url, 200)
        await b.mesh.connect([a.url])
        more = await knock(fleet.network.transport("b"), a.url, 200)
        await trio.sleep(10)
        assert all(way.closed for way in more)
        assert b.log.of(a.id) == ["up"]
        assert a.mesh.statistics().inbound == 1


async def test_junk_from_its_address_does_not_keep_a_node_out(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        transport = fleet.network.transport("b")
        for _ in range(300):
            (way,) = await knock(transport, a.url, 1)
            way.send_nowait(b"\x01\x01" + bytes(1300))
        began = trio.current_time()
        await b.mesh.connect([a.url])
        assert trio.current_time() - began < 0.1


async def test_a_first_frame_that_was_too_many_is_sent_again(autojump_clock: MockClock) -> None:
    """The address has used up its rate: what a node sends from there is dropped at first."""
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        (way,) = await knock(fleet.network.transport("b"), a.url, 1)
        for index in range(1, 131):
            while not way.send_nowait(first_frame(fleet, index)):
                await way.wait_writable()
        await trio.sleep(0.01)
        assert a.mesh.refusals["handshake rate of one address"] > 0
        began = trio.current_time()
        await b.mesh.connect([a.url])
        assert 1.0 <= trio.current_time() - began < 1.3


async def test_sixty_nodes_behind_one_address_that_start_together_are_linked_soon(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet, AsyncExitStack() as stack:
        a = fleet["a"]
        meshes: list[Mesh] = []
        for number in range(60):
            transport = fleet.network.transport("nat")
            listening = await transport.listen([f"mem://nat-{number}"])
            one = open_reading_mesh(
                fleet.realm.identity(f"n{number}"),
                transport,
                listening,
                config=Config(),
                entropy=fleet.realm.entropy,
                wall_clock=lambda: WALL,
            )
            meshes.append(await stack.enter_async_context(one))

        async def link(mesh: Mesh) -> None:
            for pause in (0.25, 0.5, 1.0):  # as membership does
                try:
                    await mesh.connect([a.url])
                except NotSent:
                    await trio.sleep(pause)
                else:
                    return

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for mesh in meshes:
                nursery.start_soon(link, mesh)
        assert trio.current_time() - began < 2.5
        await trio.sleep(6)
        assert len(a.mesh.peers) == a.mesh.statistics().inbound == 60
        assert a.mesh.statistics().unauthenticated == 0


# -- whose they are --------------------------------------------------------------------------------------------


async def test_a_member_may_have_eight_connections_and_loses_the_oldest_for_more(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        session = b.peer(a).session
        assert session is not None
        ways = await knock(b.transport, a.url, 10)
        for way in ways:
            way.send_nowait(session.seal(wire.encode_batch([kinds.Pong(1)])))
            await trio.sleep(0.01)
        assert ways[0].closed
        found = a.mesh.statistics()
        assert found.inbound - found.unauthenticated == 8, "all others are of that member"
        assert a.mesh.refusals["too many connections of a member"] >= 2
        await trio.sleep(1)
        assert b.log.of(a.id)[:3] == ["up", "refused", "reset"], "its link went first, and was made anew"


async def test_the_connections_of_a_peer_that_is_given_up_are_closed(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a, b, c = (fleet[name] for name in "abc")
        ways = {name: fleet[name].peer(a).link.outgoing for name in "bc"}
        a.mesh.drop(b.id, "a trial")
        await trio.sleep(0.01)
        closed = {name: isinstance(way, MemoryOutgoing) and way.closed for name, way in ways.items()}
        assert closed == {"b": True, "c": False}
        assert c.log.of(a.id) == ["up"]
        await trio.sleep(1)
        assert b.id in a.mesh.peers, "it has come back"


async def test_a_node_that_is_turned_away_each_time_comes_back_less_and_less_often(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "x", linked=False) as fleet:
        a, x = fleet["a"], fleet["x"]
        a.admission.refuse = Refusal(x.id).check
        began = trio.current_time()
        await x.mesh.connect([a.url])
        while x.mesh.peers:  # noqa: ASYNC110 -- on a virtual clock
            await trio.sleep(0.01)
        assert 1.5 < trio.current_time() - began < 2.0, "as long as membership waits for a sign of life"
        assert a.mesh.refusals["AuthenticationError"] == 6
        assert x.log.of(a.id)[-1] == "down"
        assert not a.mesh.peers


class Refusal:
    """Refusals of peers."""

    def __init__(self, node: str) -> None:
        self._node = node

    def check(self, peer: object) -> None:

        if getattr(peer, "node_id", None) == self._node:
            raise AuthenticationError("not this one")


async def test_handshakes_that_one_member_hands_on_are_under_the_limits_of_one_address(
    autojump_clock: MockClock,
) -> None:
    """Any member may say that it forwards a frame; those of gateways are under the limits of all together."""
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        frames = [first_frame(fleet, number) for number in range(1, 302)]  # each once: replays are dropped before
        for frame in frames[:200]:
            a.mesh.receive_carried(frame, kinds.Forward, "through x")
        assert a.mesh.refusals["handshake rate of one address"] == 100
        assert a.mesh.refusals["too many half-open handshakes"] == 100 - 32
        for frame in frames[200:300]:
            a.mesh.receive_carried(frame, kinds.Carry)
        assert a.mesh.refusals["handshake rate of one address"] == 100
        a.mesh.receive_carried(frames[300], kinds.Forward, "through y")
        assert a.mesh.refusals["handshake rate of one address"] == 100
