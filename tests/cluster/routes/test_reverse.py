"""A node that can only dial out: what it sends, receives and refuses; and what nodes forward for each other."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.cluster.mesh.mesh import Mesh
from iris.cluster.mesh.outbound import OutboundConnections
from iris.cluster.mesh.peer import Peer
from iris.cluster.routes.relayed import RelayedConnection, parse_via_url, via_url
from iris.cluster.routes.reverse import ReverseConnection, is_two_way, reverse_url, token_untrusted
from iris.kernel import wire
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport.memory import MemoryNetwork, MemoryTransport, _Arrival
from iris.kernel.transport.port import ConnectionUser, OutgoingConnection, Permit, Transport
from iris.kernel.wire import kinds
from iris.node.parts import NodeParts
from tests.support.messages import raw
from tests.support.stages import Stage, open_stage
from tests.support.transports import ignore

NODE = NodeId("ab" * 16)


class Line:
    """One direction, which can be cut."""

    def __init__(self, user: ConnectionUser) -> None:
        self.snap = user.connection_broken
        self.sent: list[bytes] = []
        self.room = True
        self.closed = 0

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        if self.room:
            self.sent.append(bytes(frame))
        return self.room

    def close(self) -> None:
        self.closed += 1


class Exchange:
    """A transport that makes lines and writes down what it was asked."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.asked: list[tuple[str, ...]] = []

    async def dial(self, url: str, user: ConnectionUser, _: Permit | None = None) -> Line:
        await trio.lowlevel.checkpoint()
        return self._line(user, "dial", url)

    def dial_reverse(self, url: str, token: str, user: ConnectionUser) -> Line:
        return self._line(user, "reverse", url, token)

    async def accept_reverse(self, token: str, user: ConnectionUser) -> Line:
        await trio.lowlevel.checkpoint()
        return self._line(user, "accept", token)

    def _line(self, user: ConnectionUser, *asked: str) -> Line:
        self.asked.append(asked)
        self.lines.append(Line(user))
        return self.lines[-1]


class Broken:
    """Writes down which connections broke."""

    def __init__(self, connections: list[object]) -> None:
        self._connections = connections

    def connection_broke(self, outgoing: OutgoingConnection, peer: Peer | None) -> None:
        self._connections.append(outgoing)


def ways_of(exchange: Exchange, broken: list[object], *, dial_only: bool) -> OutboundConnections:
    tokens = os.urandom if dial_only else None
    return OutboundConnections(cast("Transport", exchange), Broken(broken), tokens)


async def test_the_way_back_is_dialled_when_the_first_frame_has_left() -> None:
    exchange = Exchange()
    way = await ways_of(exchange, [], dial_only=True).dial("ws://office:1/x")
    assert exchange.asked == [("dial", "ws://office:1/x")]
    exchange.lines[0].room = False
    assert not way.send_nowait(b"early")
    assert len(exchange.asked) == 1
    exchange.lines[0].room = True
    for frame in (b"first", b"second"):
        assert way.send_nowait(frame)
    assert isinstance(way, ReverseConnection)
    assert exchange.asked[1:] == [("reverse", "ws://office:1/x", token_untrusted(way.address))]
    assert exchange.lines[0].sent == [b"first", b"second"]


@pytest.mark.parametrize("first", [0, 1])
async def test_if_one_directiusers_both_end_and_it_is_told_once(first: int) -> None:
    exchange, broken = Exchange(), cast("list[object]", [])
    ways = ways_of(exchange, broken, dial_only=True)
    way = await ways.dial("ws://office:1")
    way.send_nowait(b"x")
    for line in (exchange.lines[first], exchange.lines[1 - first]):
        line.snap()
    assert broken == [way]
    assert [line.closed for line in exchange.lines] == [1, 1]
    assert way not in ways


async def test_each_way_has_a_token_of_its_own() -> None:
    ways = ways_of(Exchange(), [], dial_only=True)
    told = {ways.own_address(await ways.dial("ws://office:1")) for _ in range(50)}
    assert len(told) == 50
    assert None not in told


async def test_by_ipc_one_direction_is_dialled() -> None:
    exchange = Exchange()
    ways = ways_of(exchange, [], dial_only=True)
    way = await ways.dial("ipc:///run/office")
    assert not is_two_way("ipc:///run/office")
    assert ways.own_address(way) is None
    assert way.send_nowait(b"first")
    await ways.answer(["ipc:///run/office"])
    assert exchange.asked == [("dial", "ipc:///run/office")] * 2


async def test_a_node_that_dials_in_is_waited_for_and_never_dialled() -> None:
    exchange = Exchange()
    ways = ways_of(exchange, [], dial_only=False)
    url = reverse_url(bytes(16))
    outgoing = await ways.answer([url])
    assert exchange.asked == [("accept", "00" * 16)]
    assert ways.returning(outgoing) == url
    ways.close(outgoing)
    assert ways.returning(outgoing) is None
    with pytest.raises(NotSent, match="is not dialled"):
        await ways.dial_any([url])


async def test_a_node_that_only_dials_out_answers_nobody_by_dialling() -> None:
    exchange = Exchange()
    with pytest.raises(NotSent, match="begins the handshakes over its connections"):
        await ways_of(exchange, [], dial_only=True).answer(["ws://office:1"])
    assert exchange.asked == []


async def test_one_that_listens_by_now_answers_in_one_direction_and_begins_in_both() -> None:
    exchange = Exchange()
    ways = ways_of(exchange, [], dial_only=True)
    ways.begin_answering()
    assert ways.own_address(await ways.answer(["tcp://office:1"])) is None
    assert ways.own_address(await ways.dial("tcp://office:1")) is not None


@pytest.mark.parametrize("token", ["", "..", "a" * 31, "a" * 33, "A" * 32, "../" + "a" * 29, "%2e" + "a" * 29])
def test_what_is_no_token_makes_nobody_listen(token: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a reverse connection"):
        token_untrusted(f"reverse://{token}")


def test_an_address_through_others_names_a_node() -> None:
    assert parse_via_url(via_url(NODE)) == NODE
    for url in ("via://", "via://me", f"ws://{NODE}"):
        with pytest.raises(ConfigError, match="reached through others"):
            parse_via_url(url)


# -- handing on --------------------------------------------------------------------------------------------


async def open_four(stage: Stage) -> dict[str, Mesh]:
    """Bring up two nodes that listen, and two that only dial out; return their meshes."""
    nodes = {name: await stage.node(name) for name in ("left", "right")}
    nodes |= {name: await stage.node(name, dial_only=True) for name in ("one", "two")}
    return {name: stage.parts[node.id].mesh for name, node in nodes.items()}


def helper_of(mesh: Mesh, other: Mesh) -> NodeId:
    way = mesh.outgoing_to(other.node)
    assert isinstance(way, RelayedConnection)
    return way.helper


async def test_what_cannot_be_handed_on_is_refused_and_counted(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        meshes = await open_four(stage)
        one, left = meshes["one"], meshes["left"]
        one.post(left.node, kinds.Forward(bytes.fromhex(NODE), b"frame"), 5)
        await trio.sleep(0.1)
        assert left.refusals["not handed on: no link"] == 1


@pytest.mark.parametrize(
    "message",
    [raw(kinds.Forward, b"short", b"frame"), raw(kinds.Forward, bytes(16), "text"), raw(kinds.ForwardRefused, 7)],
)
async def test_what_has_another_form_is_refused_and_harms_nobody(message: Any, autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        meshes = await open_four(stage)
        one, left = meshes["one"], meshes["left"]
        one.post(left.node, message, 5)
        await trio.sleep(1)
        assert left.refusals.pop("RemoteProtocolError") == 1
        assert len(left.peers) == len(one.peers) == 3


async def test_a_frame_is_handed_on_once_and_over_direct_links_only(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        meshes = await open_four(stage)
        one, two = meshes["one"], meshes["two"]
        left, right = meshes["left"], meshes["right"]
        one.post(left.node, kinds.Forward(bytes.fromhex(right.node), b"frame"), 5)
        left.post(one.node, kinds.Forward(bytes.fromhex(two.node), b"frame"), 5)
        one.post(two.node, kinds.Forward(bytes.fromhex(left.node), b"frame"), 5)
        await trio.sleep(0.1)
        assert right.refusals.pop("RemoteProtocolError") == 1, "it has come, and is no frame"
        assert one.refusals["not handed on: no link"] == 1
        assert two.refusals.pop("message of kind Forward") == 1, "it would go through two nodes"
        assert left.refusals["RemoteProtocolError"] == 0


async def test_a_helper_that_refuses_is_passed_over_for_a_while(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        meshes = await open_four(stage)
        names = {mesh.node: name for name, mesh in meshes.items()}
        one, two = meshes["one"], meshes["two"]
        used = [names[helper_of(one, two)]]
        helper = meshes[used[0]]
        helper.post(one.node, kinds.ForwardRefused(bytes.fromhex(two.node)), 5)
        await trio.sleep(1)
        used.append(names[helper_of(one, two)])
        assert sorted(used) == ["left", "right"]


# -- unauthenticated peers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [False, True], ids=["while it is linked", "when it is gone"])
async def test_who_repeats_what_such_a_node_has_said_gains_nothing_and_is_sent_away(
    gone: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bytes] = []

    def listen(transport: MemoryTransport, arrival: _Arrival) -> None:
        if arrival.frame[0] == wire.HANDSHAKE_INIT:
            said.append(arrival.frame)
        deliver(transport, arrival)

    deliver = MemoryTransport.deliver
    monkeypatch.setattr(MemoryTransport, "deliver", listen)
    async with iris.testing.open_network() as network, network.open_parts("office", host="office") as (_, office):
        memory = network.memory
        async with network.open_node("home", dial_only=True) as home:
            assert office.mesh.node in home.statistics().links
            first = said[-1]
            if not gone:
                await repeat(memory, first, office)
                assert home.id in office.mesh.peers
                assert office.mesh.node in home.statistics().links
        if gone:
            await repeat(memory, first, office)
            assert office.mesh.peers == {}


async def repeat(memory: MemoryNetwork, frame: bytes, office: NodeParts) -> None:
    """Send a first frame a hundred times, and wait for the node that answers by the token in it."""
    stranger = memory.transport("stranger")
    way = await stranger.dial("mem://office", ignore)
    for _ in range(100):
        while not way.send_nowait(frame):
            await way.wait_writable()
    await trio.sleep(0.1)
    assert len(memory.accepting) <= 1, "one waits for a token; who comes after it is refused"
    assert office.mesh.statistics().half_open <= office.config.half_open_per_address
    await trio.sleep(2 * office.config.handshake_timeout)
    assert memory.accepting == {}
    assert office.mesh.statistics().half_open == 0
    assert way.closed, "no genuine frame has come by this connection"
    stranger.close()
