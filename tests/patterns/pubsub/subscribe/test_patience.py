"""A subscriber that wants publishers to wait is waited for, for as long as there is patience, and by no others."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.config import Config
from iris.patterns.pubsub.subscribe.subscription import Overflow
from tests.support.events import collect, missed, publish
from tests.support.meshes import MeshNode, open_meshes

SMALL = Config(link_bytes=2_000_000)


async def publish_many(node: MeshNode, topic: str) -> None:
    await publish(node, topic, *[bytes(1000)] * 5000)


@pytest.mark.parametrize(("overflow", "lost"), [("wait", False), ("drop_oldest", True), ("drop_newest", True)])
async def test_a_node_that_stands_still_costs_patient_subscribers_nothing(
    autojump_clock: MockClock, overflow: Overflow, lost: bool
) -> None:
    async with open_meshes("a", "b", config=SMALL) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", overflow=overflow) as events:
            b.transport.pause()
            nursery.start_soon(publish_many, a, "t")
            await trio.sleep(4)
            published = a.pubsub.publishing.published
            assert (published == 5000) == lost
            assert a.peer(b).link.waiting_bytes <= SMALL.link_bytes
            b.transport.resume()
            taken = await collect(events)
            await publish(a, "t", b"the end")
            taken += await collect(events)
            assert (len(taken) < 5001) == lost
            assert len(taken) + missed(taken) == 5001


async def test_a_node_that_stands_still_for_long_is_published_past_and_told_what_it_missed(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b", "c", config=SMALL) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with b.pubsub.subscribe("t", overflow="wait") as events, c.pubsub.subscribe("t") as healthy:
            b.transport.pause()
            began = trio.current_time()
            await publish_many(a, "t")
            assert 5 <= trio.current_time() - began < 6
            assert len(await collect(healthy)) == 5000
            lost = a.pubsub.publishing.tally.lost["subscriber stalled"]
            assert lost > 0
            b.transport.resume()
            taken = await collect(events)
            await publish(a, "t", b"the end")
            taken += await collect(events)
            assert (len(taken), missed(taken)) == (5001 - lost, lost)


async def test_publishers_of_other_topics_do_not_wait_for_it(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", config=SMALL) as fleet, trio.open_nursery() as nursery:
        a, b, c = (fleet[name] for name in "abc")
        async with (
            b.pubsub.subscribe("patient", overflow="wait"),
            b.pubsub.subscribe("other"),
            c.pubsub.subscribe("other") as healthy,
        ):
            b.transport.pause()
            nursery.start_soon(publish_many, a, "patient")
            await trio.sleep(4)
            with trio.fail_after(5):
                await publish_many(a, "other")
            assert len(await collect(healthy)) == 5000
            assert a.pubsub.publishing.tally.lost["subscriber stalled"] > 0
            b.transport.resume()


@pytest.mark.parametrize("ending", ["dropped", "unsubscribed"])
async def test_nobody_waits_for_a_node_that_is_given_up_or_does_not_want_it_any_more(
    autojump_clock: MockClock, ending: str
) -> None:
    async with open_meshes("a", "b", "c", config=SMALL) as fleet, trio.open_nursery() as nursery:
        a, b, c = (fleet[name] for name in "abc")
        async with c.pubsub.subscribe("t") as healthy:
            finished = trio.Event()

            async def publish_all() -> None:
                await publish_many(a, "t")
                finished.set()

            async with b.pubsub.subscribe("t", overflow="wait"):
                b.transport.pause()
                nursery.start_soon(publish_all)
                await trio.sleep(4)
                assert not finished.is_set()
                if ending == "dropped":
                    a.mesh.drop(b.id, "it is dead")
                b.transport.resume()
            with trio.fail_after(5):
                await finished.wait()
            assert len(await collect(healthy)) == 5000


async def test_a_publisher_that_waits_for_one_that_stands_still_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=SMALL) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", overflow="wait") as events:
            b.transport.pause()
            with trio.move_on_after(3) as scope:
                await publish_many(a, "t")
            assert scope.cancelled_caught
            published = a.pubsub.publishing.published
            b.transport.resume()
            taken = await collect(events)
            assert (len(taken), missed(taken)) == (published, 0)
