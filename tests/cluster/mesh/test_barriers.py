"""Barriers: a wait ends when the peer has answered, or is given up, and at no other time."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.cluster.mesh.control import PingBarrier
from iris.cluster.mesh.peer import Peer, PeerTable
from iris.kernel import wire
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.messages import arrived
from tests.support.realms import seeded_entropy

ONE, TWO = NodeId("1" * 32), NodeId("2" * 32)


class Line:
    """A link that keeps what is posted, or is full."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.room = trio.Event()
        self.room.set()

    def post(self, message: wire.Message, size: int, reserve: int) -> None:
        if not self.room.is_set():
            raise NotSent("the link is full")
        self.posted.append(message)

    async def wait_room(self) -> None:
        await self.room.wait()


@dataclasses.dataclass(eq=False)
class Linked:
    """A peer, as far as barriers know one."""

    node: NodeId
    link: Line


class Bench:
    """Barriers between this node and two peers."""

    def __init__(self) -> None:
        self.peers = {node: Linked(node, Line()) for node in (ONE, TWO)}
        self.barriers = PingBarrier(cast("PeerTable", self.peers), seeded_entropy(1))
        self.done: list[NodeId] = []

    async def wait(self, node: NodeId) -> None:
        await self.barriers.wait(node)
        self.done.append(node)

    def answer(self, node: NodeId, token: int, sender: NodeId | None = None) -> None:
        self.barriers.receive_pong(cast("Peer", self.peers[sender or node]), kinds.Pong(token))

    def tokens(self, node: NodeId) -> list[int]:
        posted = self.peers[node].link.posted
        assert {type(message) for message in posted} <= {kinds.Ping}
        return [message.token for message in posted]


async def test_a_wait_ends_with_the_answer_of_its_peer_and_not_with_that_of_another(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.wait, ONE)
        nursery.start_soon(bench.wait, TWO)
        await wait_all_tasks_blocked()
        (one,), (two,) = bench.tokens(ONE), bench.tokens(TWO)
        assert one != two
        bench.answer(ONE, one, sender=TWO)
        bench.answer(TWO, one + two)
        await wait_all_tasks_blocked()
        assert bench.done == []
        bench.answer(TWO, two)
        await wait_all_tasks_blocked()
        assert bench.done == [TWO]
        bench.answer(ONE, one)
    assert bench.done == [TWO, ONE]
    bench.answer(ONE, one)


async def test_a_question_that_was_lost_is_asked_again_with_the_same_number(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.wait, ONE)
        await trio.sleep(0.9)
        first, *again = bench.tokens(ONE)
        assert again == [first] * 3
        bench.answer(ONE, first)
    assert bench.done == [ONE]


async def test_a_full_link_is_waited_for_and_not_asked_again_and_again(autojump_clock: MockClock) -> None:
    bench = Bench()
    link = bench.peers[ONE].link
    link.room = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.wait, ONE)
        await trio.sleep(10)
        assert bench.tokens(ONE) == []
        link.room.set()
        await wait_all_tasks_blocked()
        bench.answer(ONE, bench.tokens(ONE)[0])
    assert bench.done == [ONE]


async def test_nobody_waits_for_a_node_that_is_not_there_or_is_given_up(autojump_clock: MockClock) -> None:
    bench = Bench()
    await bench.wait(NodeId("3" * 32))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.wait, ONE)
        nursery.start_soon(bench.wait, TWO)
        await wait_all_tasks_blocked()
        bench.barriers.release(ONE)
        await wait_all_tasks_blocked()
        assert bench.done[1:] == [ONE]
        bench.answer(TWO, bench.tokens(TWO)[0])


async def test_a_peer_that_was_replaced_by_a_new_session_is_not_waited_for(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.wait, ONE)
        await wait_all_tasks_blocked()
        bench.peers[ONE] = Linked(ONE, Line())
    assert bench.done == [ONE]
    assert bench.tokens(ONE) == []


async def test_a_cancelled_wait_leaves_nothing_that_an_answer_could_find(autojump_clock: MockClock) -> None:
    bench = Bench()
    with trio.move_on_after(0.1) as scope:
        await bench.wait(ONE)
    assert scope.cancelled_caught
    bench.answer(ONE, bench.tokens(ONE)[0])
    assert bench.done == []


async def test_a_question_is_answered_with_its_number_and_anything_else_is_refused() -> None:
    bench = Bench()
    peer = cast("Peer", bench.peers[ONE])
    bench.barriers.receive_ping(peer, kinds.Ping(7))
    assert bench.peers[ONE].link.posted == [kinds.Pong(7)]
    for token in (None, "7", b"7", 7.0, True, (7,), -1, 2**64 - 1):
        with pytest.raises(RemoteProtocolError):
            arrived(kinds.Ping, token)
