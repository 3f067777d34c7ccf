"""The mesh on a network in memory: what breaks and what ends."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.errors import NotSent
from tests.support.mesh_cases import MARK, Marks, mark, settle
from tests.support.meshes import open_meshes


async def test_a_listener_that_comes_back_within_a_moment_is_found_again(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(b)
        listening = fleet.network._listening
        transport = listening.pop("mem://b")
        a.break_connections(b)
        mark(a, b, 1)
        await trio.sleep(0.4)
        assert a.peer(b).link.outgoing is None
        listening["mem://b"] = transport
        await trio.sleep(0.5)
        assert marks.received == [1]


async def test_a_node_that_is_gone_is_given_up_within_a_second(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        link = a.peer(b).link
        fleet.network.crash("b")
        assert a.log.of(b.id) == ["up", "refused"]
        mark(a, b, 1, 2, 3)
        await trio.sleep(1)
        assert a.log.of(b.id) == ["up", "refused", "down"]
        assert "cannot be reached" in a.log.reasons[0]
        assert a.mesh.peers == {}
        assert link.statistics().lost == 3
        with pytest.raises(NotSent, match="no link"):
            mark(a, b, 4)


async def test_another_node_at_the_address_is_not_taken_for_the_first(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        fleet.network.crash("b")
        async with fleet.open_node("c", url="mem://b") as other:
            marks = Marks(other)
            mark(a, b, 1)
            await trio.sleep(2)
            assert a.log.of(b.id)[-1] == "down"
            assert other.id in a.log.reasons[0]
            assert marks.received == []
            assert (await a.mesh.connect(["mem://b"])).node == other.id
            mark(a, other, 2)
            await settle()
            assert marks.received == [2]
            a.mesh.drop(other.id, "over")
            other.mesh.drop(a.id, "over")


async def test_a_peer_that_was_dropped_sees_it_and_links_again(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks, answers = Marks(b), Marks(a)
        first = a.peer(b)
        a.mesh.drop(b.id, "a trial")
        a.mesh.drop(b.id, "a trial")
        assert (a.log.of(b.id), a.log.reasons) == (["up", "down"], ["a trial"])
        with pytest.raises(NotSent, match="a trial"):
            first.link.post(MARK(0), 0)
        mark(b, a, 1)  # b has no report of it
        await settle()
        assert a.mesh.refusals == {"unknown session": 1}
        assert a.peer(b) is not first
        assert b.log.of(a.id) == ["up", "refused", "reset"]
        mark(a, b, 2)
        mark(b, a, 3)
        await settle()
        assert marks.received == [2]
        assert answers.received == [3]
        assert a.log.of(b.id) == ["up", "down", "up", "reset"]


async def test_who_dropped_a_peer_is_found_again_by_it(autojump_clock: MockClock) -> None:
    """One end has given up, the other end notices that its connection breaks: the link is whole again, with news."""
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(a), Marks(b)
        a.mesh.drop(b.id, "a trial")
        b.break_connections(a)
        await settle()
        mark(a, b, 1)
        mark(b, a, 2)
        await settle()
        assert (marks[0].received, marks[1].received) == ([2], [1])
        assert a.log.of(b.id)[:3] == ["up", "down", "up"]


async def test_frames_that_vanish_are_noticed_at_both_ends(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(b)
        fleet.network.loss = 1.0
        mark(a, b, 1)
        await settle()
        fleet.network.loss = 0.0
        mark(a, b, 2)
        await settle()
        assert marks.received == [2]
        assert b.log.of(a.id) == ["up", "reset"]
        assert a.log.of(b.id) == ["up", "reset"]


# -- ending ------------------------------------------------------------------------------------------------


async def test_a_node_that_leaves_says_so_after_everything_else(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a = fleet["a"]
        marks = Marks(a)
        async with fleet.open_node("c") as c:
            await c.mesh.connect([a.url])
            mark(c, a, *range(2000))
            await c.mesh.disconnect_all("the end", 1.0)
        await settle()
        assert marks.received == list(range(2000))
        assert a.log.of(c.id) == ["up", "down"]
        assert "goodbye: the end" in a.log.reasons[0]
        assert c.log.of(a.id) == ["up", "down"]
        assert a.mesh.refusals == c.mesh.refusals == {}


async def test_two_nodes_may_leave_at_the_same_time(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for node in fleet.nodes.values():
                nursery.start_soon(node.mesh.disconnect_all, "the end", 5.0)
        assert trio.current_time() - began < 1
        assert all(not node.mesh.peers for node in fleet.nodes.values())


async def test_a_goodbye_waits_for_nobody_longer_than_it_may(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        b.transport.pause()
        began = trio.current_time()
        await a.mesh.disconnect_all("the end", 0.5)
        assert trio.current_time() - began == pytest.approx(0.5)
        a.mesh.close()
        b.transport.resume()
        await trio.sleep(2)
        assert b.mesh.peers == {}


async def test_a_node_that_closes_without_a_word_is_given_up(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        async with fleet.open_node("c") as c:
            await c.mesh.connect([a.url])
            await settle()
        await trio.sleep(1)
        assert a.log.of(c.id) == ["up", "refused", "down"]
        assert c.log.of(a.id) == ["up", "down"]
        c.mesh.close()


async def test_an_error_in_the_block_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    async def block() -> None:
        async with open_meshes("a", "b"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await block()


# -- barriers ----------------------------------------------------------------------------------------------


async def test_a_barrier_comes_after_everything_posted_before(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", capacity=2) as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(b)
        mark(a, b, *range(20_000))
        await a.mesh.barrier(b.id)
        assert len(marks.received) == 20_000
        await a.mesh.barrier(a.id)


async def test_a_barrier_ends_with_its_peer(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        b.transport.pause()
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(a.mesh.barrier, b.id)
                await trio.sleep(0.01)
                a.mesh.drop(b.id, "a trial")
        b.transport.resume()
