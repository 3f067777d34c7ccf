"""The mesh on a network in memory: linking and messages."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.peer import Peer
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent
from iris.kernel.wire import Message
from tests.support.mesh_cases import Marks, mark, settle
from tests.support.meshes import MeshNode, open_meshes
from tests.support.realms import TestRealm

# -- linking -----------------------------------------------------------------------------------------------


async def test_two_nodes_link_and_know_who_the_other_is(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        peer = await a.mesh.connect([b.url])
        await settle()
        assert peer is a.peer(b)
        assert (peer.node, peer.identity.cluster) == (b.id, "b")
        assert b.peer(a).identity.cluster == "a"
        assert b.peer(a).addresses == (a.url,)
        assert a.log.entries == [("up", b.id)]
        assert b.log.entries == [("up", a.id)]
        assert a.mesh.peer(a.id) is a.mesh.own
        assert "b" in repr(peer)


async def test_messages_arrive_in_order_and_counters_agree(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(b)
        before = a.peer(b).link.statistics()
        for number in range(3000):
            mark(a, b, number)
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
        await settle()
        after = a.peer(b).link.statistics()
        assert marks.received == list(range(3000))
        assert set(marks.peers) == {b.peer(a)}
        assert after.sent - before.sent == 3000 == after.posted - before.posted
        assert after.lost == after.waiting == 0


class OfLaterVersion(Message, tag=0x7E):
    """A message of a kind that this version does not have."""

    number: int


async def test_messages_of_a_later_version_are_left_out_and_that_is_said_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(b)
        for number in range(3):
            mark(a, b, number)
            a.mesh.post(b.id, OfLaterVersion(number), 0)
            mark(a, b, number + 10)
            await settle()
        assert marks.received == [0, 10, 1, 11, 2, 12]
        assert b.mesh.refusals == {"message of a kind that this version does not have": 3}
        assert a.log.entries == [("up", b.id)]
        (said,) = caplog.messages
        assert said == (
            f"node {a.id} of cluster 'a' has another version of Iris: messages of kinds that this one does not have "
            "(126) are left out, all others are taken; upgrade the older of the two"
        )


async def test_a_node_is_a_peer_of_itself(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        marks = Marks(a)
        mark(a, a, *range(5000))
        await settle()
        assert marks.received == list(range(5000))
        assert marks.peers[0].identity.cluster == "a"
        assert a.mesh.peers == {}


@pytest.mark.parametrize("seed", range(12))
async def test_both_ends_may_dial_at_the_same_time(autojump_clock: MockClock, seed: int) -> None:
    async with open_meshes("a", "b", linked=False, seed=seed, latency=(0.0, 0.01)) as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = {a.id: Marks(a), b.id: Marks(b)}

        async def dial(node: MeshNode, other: MeshNode) -> None:
            await node.mesh.connect([other.url], expected=other.id)
            for number in range(200):
                mark(node, other, number)
                await trio.sleep(0.0003)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial, a, b)
            nursery.start_soon(dial, b, a)
        await trio.sleep(10)
        for node, other in ((a, b), (b, a)):
            assert node.log.entries == [("up", other.id)]
            assert marks[node.id].received == list(range(200))
            assert node.mesh.statistics().outbound == 1
            assert node.mesh.refusals == {}


async def test_many_dials_to_one_node_make_one_link(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        found: list[Peer] = []

        async def dial() -> None:
            found.append(await a.mesh.connect([b.url]))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(dial)
        assert set(found) == {a.peer(b)}
        marks = Marks(b)
        mark(a, b, 1)
        await settle()
        assert marks.received == [1]
        assert a.log.of(b.id) == ["up"]
        assert b.log.of(a.id) == ["up"]


async def test_an_address_of_a_linked_node_leads_to_the_same_peer(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        peer, outgoing = a.peer(b), a.peer(b).link.outgoing
        assert await a.mesh.connect([b.url]) is peer
        assert await a.mesh.connect(["mem://nowhere"], expected=b.id) is peer
        assert peer.link.outgoing is outgoing
        marks = Marks(b)
        mark(a, b, 1)
        await settle()
        assert marks.received == [1]


# -- who is not linked -------------------------------------------------------------------------------------


async def test_another_node_than_expected_is_not_linked(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", linked=False) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        with pytest.raises(AuthenticationError, match=c.id):
            await a.mesh.connect([b.url], expected=c.id)
        await trio.sleep(10)
        assert not a.mesh.peers
        assert not b.mesh.peers


async def test_the_right_address_among_wrong_ones_is_found(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", linked=False) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        urls = ["mem://nobody", "no address at all", b.url, c.url, a.url]
        assert (await a.mesh.connect(urls, expected=c.id)).node == c.id


async def test_a_node_of_another_realm_is_not_linked(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet, fleet.open_node("x", realm=TestRealm(99)) as stranger:
        a = fleet["a"]
        for one, other in ((a, stranger), (stranger, a)):
            began = trio.current_time()
            with pytest.raises(NotSent, match="another realm"):
                await one.mesh.connect([other.url])
            assert trio.current_time() - began < 0.1, "the other end hung up"
            assert not other.mesh.peers
            assert other.mesh.refusals["AuthenticationError"] == other.mesh.refusals["junk from a stranger"] == 1


async def test_ones_own_address_is_no_peer(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        began = trio.current_time()
        with pytest.raises(NotSent, match="mem://a is the address of this node itself"):
            await fleet["a"].mesh.connect([fleet["a"].url])
        assert trio.current_time() - began < 1


@pytest.mark.parametrize(
    ("urls", "error", "reason"),
    [
        ([], NotSent, "no address"),
        (["mem://nobody"], NotSent, "mem://nobody: connection refused"),
        (["tcp://wrong:1"], ConfigError, "tcp://wrong:1"),
    ],
)
async def test_what_stood_in_the_way_is_said(
    autojump_clock: MockClock, urls: list[str], error: type[Exception], reason: str
) -> None:
    async with open_meshes("a") as fleet:
        with pytest.raises(error, match=reason):
            await fleet["a"].mesh.connect(urls)


async def test_somebody_who_never_answers_costs_the_handshake_timeout(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False, config=Config(handshake_timeout=3.0)) as fleet:
        fleet["b"].transport.pause()
        began = trio.current_time()
        with pytest.raises(NotSent, match="no answer from mem://b within 3 s"):
            await fleet["a"].mesh.connect([fleet["b"].url])
        assert trio.current_time() - began == pytest.approx(3.0)
        fleet["b"].transport.resume()
        await trio.sleep(10)
        assert not fleet["b"].mesh.peers


async def test_a_connection_that_breaks_during_the_handshake_is_noticed_at_once(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        fleet["b"].transport.pause()
        began = trio.current_time()

        async def kill() -> None:
            await trio.sleep(0.5)
            fleet["b"].transport.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            with pytest.raises(NotSent, match="broke during the handshake"):
                await fleet["a"].mesh.connect(["mem://b"])
        assert trio.current_time() - began == pytest.approx(0.5, abs=0.01)


async def test_a_node_that_cannot_be_reached_back_is_not_linked(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        fleet.network.partition(["b"], ["a"], one_way=True)
        with pytest.raises(NotSent, match="no answer"):
            await fleet["a"].mesh.connect([fleet["b"].url])
        await trio.sleep(10)
        assert not fleet["b"].mesh.peers


async def test_expired_certificates_link_nobody_and_end_nobody(autojump_clock: MockClock) -> None:
    clocks = {"a": 2e9, "b": 2e9}
    async with (
        open_meshes() as fleet,
        fleet.open_node("a", wall_clock=lambda: clocks["a"]) as a,
        fleet.open_node("b", wall_clock=lambda: clocks["b"]) as b,
    ):
        with pytest.raises(AuthenticationError):
            await a.mesh.connect([b.url])
        clocks["a"] = 1_800_000_000.0
        with pytest.raises(NotSent, match="no answer"):
            await a.mesh.connect([b.url])
        assert b.mesh.refusals["AuthenticationError"] == 3, "a asks three times"


# -- cancelling --------------------------------------------------------------------------------------------


async def test_a_connect_that_is_cancelled_at_any_time_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False, latency=(0.01, 0.01)) as fleet:
        a, b = fleet["a"], fleet["b"]
        outcomes: set[bool] = set()
        for step in range(0, 80, 2):
            with trio.move_on_after(step / 1000) as scope:
                await a.mesh.connect([b.url])
            outcomes.add(scope.cancelled_caught)
            await fleet.check()
            a.mesh.drop(b.id, "the next round")
            b.mesh.drop(a.id, "the next round")
        assert outcomes == {True, False}


# -- breaking ----------------------------------------------------------------------------------------------


async def test_a_link_goes_on_over_a_new_connection(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(b)
        peer = a.peer(b)
        mark(a, b, 1)
        await settle()
        a.break_connections(b)
        assert peer.link.outgoing is None
        assert a.log.of(b.id) == ["up", "refused"]
        mark(a, b, 2)
        await settle()
        assert a.peer(b) is peer
        assert a.log.of(b.id) == ["up", "refused", "reset"]
        assert marks.received == [1, 2]
        assert b.log.of(a.id)[0] == "up"
        assert "down" not in b.log.of(a.id)


async def test_both_connections_may_break_at_once(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(a), Marks(b)
        for number in range(10):
            a.break_connections()
            b.break_connections()
            mark(a, b, number)
            mark(b, a, number)
            await trio.sleep(1)
        assert marks[0].received == marks[1].received == list(range(10))
