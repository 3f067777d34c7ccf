"""Publish and subscribe when things go wrong: losses, overflow, slow and stalled subscribers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.peer import Peer
from iris.kernel.config import Config
from iris.kernel.wire import kinds
from iris.patterns.pubsub.subscribe.events import Event
from tests.support.events import collect, missed, publish, take_all
from tests.support.meshes import MeshNode, check_tally, open_meshes

# -- losses ------------------------------------------------------------------------------------------------


async def test_what_the_network_loses_is_shown_before_the_next_event(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            await publish(a, "t", 0, 1)
            await trio.sleep(0.1)
            fleet.network.loss = 1.0
            await publish(a, "t", 2, 3, 4)
            await trio.sleep(0.1)
            fleet.network.loss = 0.0
            await publish(a, "t", 5)
            taken = await collect(events)
            assert [(event.payload, event.missed) for event in taken] == [(0, 0), (1, 0), (5, 3)]
            assert events.statistics().missed == 3


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
async def test_whatever_breaks_nothing_is_lost_without_a_trace(autojump_clock: MockClock, seed: int) -> None:
    chance = random.Random(seed)
    async with open_meshes("a", "b", seed=seed) as fleet:
        a, b = fleet["a"], fleet["b"]

        async def trouble() -> None:
            for _ in range(20):
                await trio.sleep(chance.uniform(0.1, 1.0))
                match chance.randrange(3):
                    case 0:
                        a.break_connections()
                    case 1:
                        b.break_connections()
                    case _:
                        fleet.network.loss = 1.0
                        await trio.sleep(chance.uniform(0, 0.2))
                        fleet.network.loss = 0.0

        async with b.pubsub.subscribe("t") as events, b.pubsub.subscribe("u") as late, trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            for number in range(4000):
                await publish(a, "t", number)
                if number % 10 == 0:
                    await trio.sleep(0.05)
            await trio.sleep(10)
            await publish(a, "t", 4000)  # shows what was lost at the end
            await publish(a, "u", 0)
            taken = await collect(events)
            numbers = [event.payload for event in taken]
            assert numbers == sorted(set(numbers))
            assert len(taken) + missed(taken) == 4001
            assert len(await collect(late)) == 1  # interest has come through it all
            assert missed(taken) == events.statistics().missed


async def test_interest_that_was_lost_is_told_again(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=Config(subscribe_timeout=1.0)) as fleet:
        a, b = fleet["a"], fleet["b"]
        fleet.network.loss = 1.0
        async with b.pubsub.subscribe("t") as events:
            assert b.pubsub.unconfirmed_subscriptions == 1
            fleet.network.loss = 0.0
            await b.mesh.barrier(a.id)
            await trio.sleep(0.1)
            await publish(a, "t", 1)
            assert (await events.__anext__()).payload == 1


async def test_a_node_that_comes_knows_of_subscriptions_that_were_lost_on_the_way_at_first(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            a.mesh.drop(b.id, "a partition")
            b.mesh.drop(a.id, "a partition")

            def lose(peer: Peer) -> None:
                assert peer.session is not None
                peer.session.seal(b"it never comes")

            monkeypatch.setattr(b.pubsub, "peer_connected", lose)
            await a.mesh.connect([b.url])
            await a.pubsub.wait_interest_exchanged()
            await publish(a, "t", 1)
            assert (await events.__anext__()).payload == 1


# -- overflow ----------------------------------------------------------------------------------------------


async def test_a_subscriber_that_asks_for_it_slows_its_publishers_and_loses_nothing(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with (
            b.pubsub.subscribe("slow.*", overflow="wait", max_events=20) as slow,
            c.pubsub.subscribe("fast") as fast,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(publish_in_time, a, "slow.a", 2000)
            nursery.start_soon(publish_in_time, c, "slow.c", 2000)
            await trio.sleep(1)
            published = a.pubsub.publishing.published
            assert published < 200
            await trio.sleep(1)
            assert a.pubsub.publishing.published == published
            await publish(a, "fast", *range(100))  # only the publishers of these topics wait
            assert len(await collect(fast)) == 100
            taken: Counter[str] = Counter()
            for _ in range(4000):
                event = await slow.__anext__()
                assert event.missed == 0
                assert event.payload == taken[event.topic]
                taken[event.topic] += 1
            assert taken == {"slow.a": 2000, "slow.c": 2000}
            assert slow.statistics().dropped == 0


async def publish_in_time(node: MeshNode, topic: str, count: int) -> None:
    """Publish so slowly that a virtual clock moves."""
    for number in range(count):
        await publish(node, topic, number)
        if number % 10 == 0:
            await trio.sleep(0.001)


async def test_a_publisher_that_is_held_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", overflow="wait", max_events=2) as events:
            await publish(a, "t", 0, 1)
            await trio.sleep(0.1)
            with trio.move_on_after(1) as scope:
                await publish(a, "t", 2)
            assert scope.cancelled_caught
            assert [event.payload for event in await collect(events)] == [0, 1]
            await publish(a, "t", 3)
            assert [(event.payload, event.missed) for event in await collect(events)] == [(3, 0)]


@pytest.mark.parametrize("ending", ["leaves the block", "crashes", "says goodbye"])
async def test_a_subscriber_that_ends_holds_nobody(autojump_clock: MockClock, ending: str) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]

        async def subscribe() -> None:
            async with b.pubsub.subscribe("t", overflow="wait", max_events=2):
                await publish(a, "t", 0, 1)
                await trio.sleep(1)
                with trio.move_on_after(0.1) as scope:
                    await publish(a, "t", 3)
                assert scope.cancelled_caught
                if ending == "crashes":
                    fleet.network.crash("b")
                elif ending == "says goodbye":
                    await b.mesh.disconnect_all("over", 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscribe)
            await trio.sleep(0.5)
            with trio.fail_after(5):
                await publish(a, "t", 2, 4, 5, 6)


async def test_the_end_of_a_pause_may_be_lost(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", overflow="wait", max_events=2) as events:
            await publish(a, "t", 0, 1)
            await trio.sleep(0.1)
            fleet.network.loss = 1.0
            assert len(await collect(events)) == 2
            fleet.network.loss = 0.0
            with trio.move_on_after(1) as scope:
                await publish(a, "t", 2)
            assert scope.cancelled_caught
            await b.mesh.barrier(a.id)  # any frame shows the gap
            with trio.fail_after(1):
                await publish(a, "t", 2)
            assert len(await collect(events)) == 1


async def test_the_beginning_of_a_pause_may_be_lost(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", overflow="wait", max_events=10) as events:
            await publish(a, "t", *range(4))
            await trio.sleep(0.1)
            fleet.network.partition(["b"], ["a"], one_way=True)
            await publish(a, "t", *range(4, 10))
            await trio.sleep(0.1)
            fleet.network.heal()
            assert a.pubsub.publishing.holding == 0
            await b.mesh.barrier(a.id)
            await trio.sleep(0.1)
            assert a.pubsub.publishing.holding == 1
            assert len(await collect(events)) == 10
            assert a.pubsub.publishing.holding == 0


async def test_a_pause_is_told_to_nodes_that_come_later(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        b = fleet["b"]
        async with b.pubsub.subscribe("t", overflow="wait", max_events=2) as events:
            await publish(fleet["a"], "t", 0, 1)
            await trio.sleep(0.1)
            async with fleet.open_node("c") as c:
                await c.mesh.connect([b.url])
                await c.pubsub.wait_interest_exchanged()
                with trio.move_on_after(1) as scope:
                    await publish(c, "t", 0)
                assert scope.cancelled_caught
                await collect(events)
                await publish(c, "t", 0)
                await c.mesh.disconnect_all("over", 1)


# -- slow and stalled subscribers --------------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_slow_link_slows_its_publisher_and_loses_nothing(autojump_clock: MockClock, group: str | None) -> None:
    async with open_meshes("a", "b", capacity=2, latency=(0.01, 0.01)) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", group=group, max_bytes=1 << 30) as events, trio.open_nursery() as nursery:
            nursery.start_soon(publish, a, "t", *[bytes(50_000)] * 1000)
            await trio.sleep(0.1)
            assert a.peer(b).link.waiting_bytes < fleet.config.link_bytes * 0.6
            taken = await collect(events)
            assert len(taken) == 1000
            assert missed(taken) == 0
        assert check_tally(a.pubsub.publishing.tally).lost == {}


async def test_two_publishers_on_one_node_both_wait(autojump_clock: MockClock) -> None:
    """They share the count of events after which a publisher looks for room."""
    async with open_meshes("a", "b", "c", capacity=2, latency=(0.01, 0.01)) as fleet:
        a, b, c = (fleet[name] for name in "abc")

        async def publish_slowly(topic: str) -> None:
            for _ in range(1000):
                await publish(a, topic, bytes(40_000))
                await trio.lowlevel.checkpoint()

        async with b.pubsub.subscribe("t") as one, c.pubsub.subscribe("u") as two, trio.open_nursery() as nursery:
            nursery.start_soon(publish_slowly, "t")
            nursery.start_soon(publish_slowly, "u")
            nursery.start_soon(take_all, one, first := list[Event]())
            assert len(await collect(two)) == 1000
            await trio.sleep(10)
            assert len(first) == 1000
            nursery.cancel_scope.cancel()
        assert check_tally(a.pubsub.publishing.tally).lost == {}


async def test_a_stalled_subscriber_is_dropped_for_and_the_others_go_on(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", config=Config(link_bytes=2_000_000)) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with b.pubsub.subscribe("t") as stalled, c.pubsub.subscribe("t") as healthy:
            b.transport.pause()
            began = trio.current_time()
            posted = a.peer(c).link.statistics().posted
            await publish(a, "t", *[bytes(1000)] * 20_000)
            assert trio.current_time() - began < 1  # it waited once, for a moment
            assert a.peer(b).link.waiting_bytes < 2_000_000
            taken = await collect(healthy)
            assert len(taken) == 20_000
            assert missed(taken) == 0
            assert a.peer(c).link.statistics().posted - posted < 1000  # still in runs
            tally = check_tally(a.pubsub.publishing.tally)
            assert set(tally.lost) == {"subscriber stalled"}
            b.transport.resume()
            await trio.sleep(1)
            await publish(a, "t", b"the end")
            late = await collect(stalled)
            assert len(late) + missed(late) == 20_001
            assert missed(late) == tally.lost["subscriber stalled"]


async def test_subscribing_finds_room_on_a_full_link(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=Config(link_bytes=2_000_000)) as fleet:
        a, b = fleet["a"], fleet["b"]
        a.transport.pause()
        link = b.peer(a).link
        while link.waiting_bytes < 2_000_000 - 2000:
            link.post(kinds.Pong(0), 1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume_later, a)
            async with b.pubsub.subscribe("t") as events:
                assert b.pubsub.unconfirmed_subscriptions == 0
                await publish(a, "t", 1)
                assert (await events.__anext__()).payload == 1


async def resume_later(node: MeshNode) -> None:
    await trio.sleep(1)
    node.transport.resume()


async def test_a_peer_that_does_not_confirm_is_passed_over_and_counted(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", config=Config(subscribe_timeout=2.0)) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        a.transport.pause()
        began = trio.current_time()
        async with b.pubsub.subscribe("t") as events:
            assert trio.current_time() - began == pytest.approx(2.0)
            assert b.pubsub.unconfirmed_subscriptions == 1
            await publish(c, "t", 1)
            assert (await events.__anext__()).payload == 1
            await b.pubsub.wait_interest_exchanged()
        a.transport.resume()
