"""Pauses that nodes ask publishers for: who subscribes with ``overflow="wait"`` gets one, for as long as it does."""

from __future__ import annotations

import contextlib

import trio
from trio.testing import MockClock

from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.link.link import CONTROL_RESERVE
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from iris.patterns.books.columns import NOTHING
from tests.support.events import collect, publish
from tests.support.meshes import MeshNode, open_meshes

HOLD_ALL: Message = kinds.Hold(">", True)


async def publish_in_time(node: MeshNode, topic: str) -> bool:
    """Return whether an event can be published within a second."""
    with trio.move_on_after(1):
        await publish(node, topic, b"")
        return True
    return False


async def test_a_node_that_publishers_do_not_wait_for_cannot_have_them_pause(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "villain") as fleet:
        a, villain = fleet["a"], fleet["villain"]
        async with villain.pubsub.subscribe("t"), villain.pubsub.subscribe("other", overflow="wait"):
            for number in range(100):
                villain.mesh.post(a.id, kinds.Hold(f"x{number}", True), 0)
            villain.mesh.post(a.id, HOLD_ALL, 0)
            villain.mesh.post(a.id, kinds.Hold("t", True), 0)
            await trio.sleep(0.1)
            assert await publish_in_time(a, "t")
            assert a.mesh.refusals["message of kind Hold"] == 102


async def test_a_pause_ends_with_the_subscription_that_it_was_for(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "villain") as fleet:
        a, villain = fleet["a"], fleet["villain"]
        async with villain.pubsub.subscribe(">", overflow="wait"):
            villain.mesh.post(a.id, HOLD_ALL, 0)
            await trio.sleep(0.1)
            assert not await publish_in_time(a, "t")
            async with villain.pubsub.subscribe("u"):
                pass
            assert not await publish_in_time(a, "t")
        assert await publish_in_time(a, "t")
        assert not a.mesh.refusals


SMALL = Config(link_bytes=2_000_000, subscribe_timeout=1.0)


def fill_link(node: MeshNode, to: MeshNode) -> None:
    """Leave no room on a link, not even what is reserved."""
    for size in (10_000, 0):
        with contextlib.suppress(NotSent):
            while True:
                node.mesh.post(to.id, kinds.Received(0, 0, False, NOTHING, ()), size, CONTROL_RESERVE)


async def test_interest_that_finds_no_room_on_a_link_is_told_as_soon_as_there_is(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=SMALL) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        nursery.start_soon(b.pubsub.run)
        fill_link(b, a)
        async with b.pubsub.subscribe("t") as events:
            assert b.mesh.refusals["interest without room on the link"] == 1
            await publish(a, "t", 1)
            assert len(await collect(events)) == 1
            assert not b.pubsub.unconfirmed_subscriptions
            fill_link(b, a)
        await trio.sleep(1)
        assert list(a.pubsub.wanted()) == []
        nursery.cancel_scope.cancel()


async def test_the_end_of_a_pause_that_finds_no_room_on_a_link_is_told_as_soon_as_there_is(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b", config=SMALL) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        nursery.start_soon(b.pubsub.run)
        async with b.pubsub.subscribe("t", overflow="wait", max_events=2) as events:
            await publish(a, "t", 0, 1)
            await trio.sleep(0.1)
            assert not await publish_in_time(a, "t")
            fill_link(b, a)
            assert len(await events.receive_batch()) == 2
            assert b.mesh.refusals["hold without room on the link"] == 1
            assert await publish_in_time(a, "t")
        nursery.cancel_scope.cancel()
