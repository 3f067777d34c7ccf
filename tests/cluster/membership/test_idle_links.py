"""A link that is to end because nobody uses it, and a peer that does not keep to what it said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import MockClock

from iris.cluster.membership import Membership
from iris.cluster.membership.idle_links import AGREE, KEEP, PROPOSE, IdleLinks
from iris.cluster.mesh import Mesh, Peer
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.membership import node


class Ends:
    """The parts of a mesh and of a membership that idle links need, with one peer that nobody uses."""

    node = node(1)

    def __init__(self) -> None:
        self.posted: list[int] = []
        self.withdrawn = False
        self.used: tuple[NodeId, ...] = ()
        link = SimpleNamespace(is_up=True, post=self.post)
        self.peer = SimpleNamespace(
            node=node(2), link=link, other_realm=False, at_remote_site=False, leaving=False, parting=False
        )
        self.peers: dict[NodeId, Any] = {node(2): self.peer}

    def post(self, message: kinds.Unused, *_: object) -> None:
        self.posted.append(message.step)

    def register(self, *_: object) -> None:
        pass

    def is_between_members(self, _peer: object) -> bool:
        return True

    def is_held(self, _peer: object) -> bool:
        return False

    def knows(self, _node: NodeId) -> bool:
        return True

    def wants(self, _node: NodeId) -> bool:
        return False

    def withdraw(self, _node: NodeId) -> None:
        self.withdrawn = True

    def restore(self, _node: NodeId) -> None:
        self.withdrawn = False

    def used_since(self, _time: float) -> tuple[NodeId, ...]:
        return self.used


@asynccontextmanager
async def open_idle(ends: Ends) -> AsyncIterator[IdleLinks]:
    idle = IdleLinks(cast("Mesh", ends), cast("Membership", ends), ends)
    idle.peer_connected(cast("Peer", ends.peer))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(idle.run)
        yield idle
        nursery.cancel_scope.cancel()


async def test_who_proposes_again_and_again_is_asked_in_between(autojump_clock: MockClock) -> None:
    ends = Ends()
    asked = 0
    async with open_idle(ends) as idle:
        for _ in range(240):
            idle._receive(cast("Peer", ends.peer), kinds.Unused(PROPOSE))
            await trio.sleep(0.5)
            asked += not ends.withdrawn
    assert asked > 140
    assert ends.posted.count(AGREE) <= 4


async def test_who_proposes_and_keeps_by_turns_is_agreed_with_now_and_then(autojump_clock: MockClock) -> None:
    ends = Ends()
    async with open_idle(ends) as idle:
        for _ in range(1200):
            idle._receive(cast("Peer", ends.peer), kinds.Unused(PROPOSE))
            idle._receive(cast("Peer", ends.peer), kinds.Unused(KEEP))
            await trio.sleep(0.1)
    assert ends.posted.count(AGREE) <= 5


async def test_what_is_asked_until_the_other_end_agrees_keeps_the_link(autojump_clock: MockClock) -> None:
    """In the moment after it was proposed: what goes over others would come when this node is gone there."""
    ends = Ends()
    async with open_idle(ends) as idle:
        await trio.sleep(30.5)
        assert ends.posted == [PROPOSE]
        ends.used = (node(2),)
        idle._receive(cast("Peer", ends.peer), kinds.Unused(AGREE))
        assert ends.posted == [PROPOSE, KEEP]
        assert not ends.withdrawn
