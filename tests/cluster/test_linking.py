"""For how long a member that is declared dead keeps its link."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

import iris
from iris.cluster.effects import Changed
from iris.cluster.records import MemberState
from iris.kernel.ids import NodeId
from iris.testing import open_network


@asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[iris.Node, iris.Node]]:
    async with open_network() as network, network.open_node("one") as one, network.open_node("two") as two:
        yield one, two


def tell(node: iris.Node, other: NodeId, state: MemberState) -> None:
    """Have a node's membership told by its machine how another one is seen."""
    record = node._membership._swim.record(other)
    assert record is not None
    node._membership._perform([Changed(node=other, state=state, record=record)])


async def test_who_was_not_heard_under_suspicion_loses_its_link_when_it_is_declared_dead(
    autojump_clock: MockClock,
) -> None:
    async with open_pair() as (one, two):
        tell(one, two.id, MemberState.SUSPECT)
        tell(one, two.id, MemberState.DEAD)
        link = one._mesh.peers[two.id].link
        await trio.testing.wait_all_tasks_blocked()
        assert one._mesh.peers.get(two.id) is None or one._mesh.peers[two.id].link is not link


async def test_who_was_heard_under_suspicion_keeps_its_link_for_time_to_refute(autojump_clock: MockClock) -> None:
    async with open_pair() as (one, two):
        tell(one, two.id, MemberState.SUSPECT)
        await two._mesh.barrier(one.id)
        tell(one, two.id, MemberState.DEAD)
        link = one._mesh.peers[two.id].link
        await trio.sleep(4.9)
        assert one._mesh.peers[two.id].link is link
        await trio.sleep(0.2)
        assert one._mesh.peers.get(two.id) is None or one._mesh.peers[two.id].link is not link


async def test_who_refutes_in_time_keeps_its_link(autojump_clock: MockClock) -> None:
    async with open_pair() as (one, two):
        tell(one, two.id, MemberState.SUSPECT)
        await two._mesh.barrier(one.id)
        tell(one, two.id, MemberState.DEAD)
        link = one._mesh.peers[two.id].link
        await trio.sleep(1)
        tell(one, two.id, MemberState.ALIVE)
        await trio.sleep(10)
        assert one._mesh.peers[two.id].link is link


async def test_a_suspicion_that_has_passed_does_not_count(autojump_clock: MockClock) -> None:
    async with open_pair() as (one, two):
        tell(one, two.id, MemberState.SUSPECT)
        await two._mesh.barrier(one.id)
        tell(one, two.id, MemberState.ALIVE)
        tell(one, two.id, MemberState.SUSPECT)
        tell(one, two.id, MemberState.DEAD)
        link = one._mesh.peers[two.id].link
        await trio.testing.wait_all_tasks_blocked()
        assert one._mesh.peers.get(two.id) is None or one._mesh.peers[two.id].link is not link
