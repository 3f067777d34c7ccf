"""Pauses that nodes ask publishers for: who subscribes with ``overflow="wait"`` gets one, for as long as it does."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from iris.kernel import kinds
from iris.kernel.wire import Message
from tests.support.events import publish
from tests.support.meshes import MeshNode, open_meshes

HOLD_ALL: Message = (kinds.HOLD, ">", True)


async def publish_in_time(node: MeshNode, topic: str) -> bool:
    """Tell whether an event can be published within a second."""
    with trio.move_on_after(1):
        await publish(node, topic, b"")
        return True
    return False


async def test_a_node_that_publishers_do_not_wait_for_cannot_have_them_pause(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "villain") as fleet:
        a, villain = fleet["a"], fleet["villain"]
        async with villain.pubsub.subscribe("t"), villain.pubsub.subscribe("other", overflow="wait"):
            for number in range(100):
                villain.mesh.post(a.id, (kinds.HOLD, f"x{number}", True), 0)
            villain.mesh.post(a.id, HOLD_ALL, 0)
            villain.mesh.post(a.id, (kinds.HOLD, "t", True), 0)
            await trio.sleep(0.1)
            assert await publish_in_time(a, "t")
            assert a.mesh.refusals["message of kind 0x44"] == 102


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
