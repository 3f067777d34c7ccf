"""Events over a tree: in order at every subscriber, with members that come, go, die or stall; each loss is reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.wire import kinds
from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.tree.trees import GOES_ON, HELD, EventTrees
from tests.support.events import collect, publish
from tests.support.meshes import open_meshes
from tests.support.stages import Stage, open_stage

NARROW = iris.Config(relay_above=4, relay_fan_out=2)
"""Trees of three hops with a dozen nodes."""


def trees(stage: Stage, node: iris.Node) -> EventTrees:
    return stage.parts[node.id].patterns.pubsub.publishing.trees


class Readers:
    """Nodes with a subscription each, and what they got."""

    def __init__(self, stage: Stage, nursery: trio.Nursery) -> None:
        self.nodes: dict[str, iris.Node] = {}
        self.taken: dict[str, list[Event]] = defaultdict(list)
        self.scopes: dict[str, trio.CancelScope] = {}
        self._reading: set[trio.CancelScope] = set()
        self._ended = trio.Event()
        self._stage = stage
        self._nursery = nursery

    async def bring_up(self, *hosts: str) -> None:
        for host in hosts:
            self.nodes[host] = await self._stage.node("reader", host, config=NARROW)

    async def add(self, *hosts: str, pattern: str = "news.>", **options: object) -> None:
        for host in hosts:
            await self._nursery.start(self._read, host, pattern, options)

    async def _read(
        self, host: str, pattern: str, options: dict[str, object], task_status: trio.TaskStatus[None]
    ) -> None:
        with trio.CancelScope() as scope:
            self.scopes[host] = scope
            self._reading.add(scope)
            async with self.nodes[host].subscribe(pattern, **options) as events:  # type: ignore[arg-type]
                task_status.started()
                async for event in events:
                    self.taken[host].append(event)
        self._reading.discard(scope)
        if not self._reading:
            self._ended.set()

    async def stop(self) -> None:
        for scope in self._reading:
            scope.cancel()
        await self._ended.wait()

    def numbers(self, host: str) -> list[int]:
        return [event.payload for event in self.taken[host]]

    def check(self, published: int, *hosts: str) -> None:
        """Assert that these received events in order, and a report of those that they did not receive."""
        for host in hosts or self.nodes:
            numbers = self.numbers(host)
            assert numbers == sorted(set(numbers)), f"{host} got events out of order or twice"
            missed = sum(event.missed for event in self.taken[host])
            assert len(numbers) + missed == published, f"{host} got {len(numbers)} and was told of {missed}"

    def relays(self) -> dict[str, int]:
        """Return how many copies each node was to forward."""
        return {host: node.statistics().relayed.sent for host, node in self.nodes.items()}


@asynccontextmanager
async def open_readers(count: int, **options: object) -> AsyncIterator[tuple[Stage, Readers, iris.Node]]:
    # The nursery is around the stage, whose nodes come and go within; readers have ended before their nodes do.
    async with trio.open_nursery() as nursery, open_stage(**options) as stage:  # type: ignore[arg-type]
        readers = Readers(stage, nursery)
        shop = await stage.node("shop", config=NARROW)
        hosts = [f"reader-{index}" for index in range(count)]
        await readers.bring_up(*hosts)
        await readers.add(*hosts)
        yield stage, readers, shop
        await readers.stop()


async def start(tree: EventTrees, shop: iris.Node, topic: str = "news.start") -> int:
    """Publish one event, which begins a tree, and give its nodes the time to get ready."""
    await shop.publish(topic, 0)
    await trio.sleep(0.5)
    assert tree.size
    return 1


async def test_above_the_limit_events_go_over_others_and_everybody_gets_each_once_in_order(
    autojump_clock: MockClock,
) -> None:
    async with open_readers(9) as (stage, readers, shop):
        await start(trees(stage, shop), shop)
        before = {node: link.sent for node, link in shop.statistics().links.items()}
        for number in range(1, 100):
            await shop.publish(f"news.{number % 3}", number)
            if number % 7 == 0:
                await trio.sleep(0.001)
        await trio.sleep(1)
        assert {host: readers.numbers(host) for host in readers.nodes} == {
            host: list(range(100)) for host in readers.nodes
        }
        assert all(event.sender.cluster == "shop" and not event.missed for event in readers.taken["reader-3"])
        links = shop.statistics().links
        told = [host for host, node in readers.nodes.items() if links[node.id].sent > before[node.id] + 3]
        assert len(told) == 2, "the publisher told more than the two at the top"
        assert shop.statistics().events.handed_over == 100 * 9
        assert sum(readers.relays().values()) > 0


async def test_up_to_the_limit_events_go_directly(autojump_clock: MockClock) -> None:
    async with open_readers(4) as (stage, readers, shop):
        for number in range(50):
            await shop.publish("news.a", number)
            await trio.sleep(0.05)
        assert trees(stage, shop).size == 0
        assert set(readers.relays().values()) == {0}
        readers.check(50)


async def test_the_change_from_direct_ways_to_a_tree_and_back_loses_and_swaps_nothing(
    autojump_clock: MockClock,
) -> None:
    """Readers come and go all the time while events are published at every moment."""
    async with open_readers(3) as (stage, readers, shop):
        await readers.bring_up(*(f"reader-{index}" for index in range(3, 10)))
        published = 0
        going = True

        async def publish_on() -> None:
            nonlocal published
            while going:
                for _ in range(3):
                    await shop.publish(f"news.{published % 2}", published)
                    published += 1
                await trio.sleep(0.01)

        sizes: set[bool] = set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_on)
            for index in range(3, 10):
                await readers.add(f"reader-{index}")
                await trio.sleep(0.2)
                sizes.add(trees(stage, shop).size > 0)
            for index in range(1, 10):
                readers.scopes[f"reader-{index}"].cancel()
                await trio.sleep(0.2)
            await trio.sleep(2)
            going = False
        sizes.add(trees(stage, shop).size > 0)
        await trio.sleep(1)
        assert sizes == {True, False}
        assert trees(stage, shop).size == 0, "a tree for one reader"
        assert readers.numbers("reader-0") == list(range(published))
        for host in readers.nodes:
            numbers = readers.numbers(host)
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"{host} missed something"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_who_subscribes_while_a_tree_is_in_use_misses_nothing_that_comes_after(
    autojump_clock: MockClock, seed: int
) -> None:
    async with open_readers(8, seed=seed) as (stage, readers, shop):
        await readers.bring_up("reader-8")
        await start(trees(stage, shop), shop)
        for late in range(30):
            topic = f"late.{late}"
            host = f"reader-{late % 9}"  # the last one is in no tree
            await readers.add(host, pattern=topic)
            await shop.publish(topic, 1000 + late)
            await trio.sleep(0.01)
        await trio.sleep(1)
        for late in range(30):
            assert 1000 + late in readers.numbers(f"reader-{late % 9}")


async def test_a_relay_that_dies_costs_those_behind_it_a_gap_that_they_are_told_of(autojump_clock: MockClock) -> None:
    async with open_readers(9) as (stage, readers, shop):
        await start(trees(stage, shop), shop)
        feed = trees(stage, shop).feed
        assert feed is not None
        relay = next(host for host, node in readers.nodes.items() if node.id == feed.shape.top[0].node)
        for number in range(1, 150):
            await shop.publish("news.start", number)
            await trio.sleep(0.01)
            if number == 30:
                stage.crash(relay)
        await trio.sleep(1)
        await shop.publish("news.start", 150)
        await trio.sleep(1)
        alive = [host for host in readers.nodes if host != relay]
        readers.check(151, *alive)
        gaps = {host: sum(event.missed for event in readers.taken[host]) for host in alive}
        assert sum(1 for gap in gaps.values() if gap) <= 5, "more than those behind it lost events"
        assert trees(stage, shop).size == 8, "there is another tree, without it"


async def test_a_relay_that_leaves_costs_nobody_an_event(autojump_clock: MockClock) -> None:
    taken: dict[str, list[int]] = defaultdict(list)
    nodes: dict[str, iris.Node] = {}
    leaving: dict[str, trio.CancelScope] = {}
    async with (
        iris.testing.open_network(seed=3) as network,
        network.open_parts("shop", config=NARROW) as (shop, parts),
    ):
        tree = parts.patterns.pubsub.publishing.trees

        async def stay(host: str, task_status: trio.TaskStatus[None]) -> None:
            with trio.CancelScope() as leaving[host]:
                async with (
                    network.open_node("reader", host=host, config=NARROW) as nodes[host],
                    nodes[host].subscribe("news.>") as events,
                ):
                    task_status.started()
                    async for event in events:
                        taken[host].append(event.payload)

        async with trio.open_nursery() as nursery:
            hosts = [f"reader-{index}" for index in range(9)]
            for host in hosts:
                await nursery.start(stay, host)
            await start(tree, shop)
            for number in range(1, 60):
                await shop.publish("news.start", number)
                await trio.sleep(0.002)
                if number % 20 == 10:
                    feed = tree.feed
                    assert feed is not None, "a tree is made anew within a second"
                    relays = [host for host in hosts if (it := feed.places.get(nodes[host].id)) and it.children]
                    leaving[relays[0]].cancel()
                    await trio.sleep(1.5)
            await trio.sleep(2)
            stayed = [host for host in hosts if not leaving[host].cancel_called]
            assert len(stayed) == 6
            assert {host: taken[host] for host in stayed} == {host: list(range(60)) for host in stayed}
            nursery.cancel_scope.cancel()


async def test_a_relay_that_stands_still_is_passed_by(autojump_clock: MockClock) -> None:
    async with open_readers(9) as (stage, readers, shop):
        await start(trees(stage, shop), shop)
        feed = trees(stage, shop).feed
        assert feed is not None
        relay = next(host for host, node in readers.nodes.items() if node.id == feed.shape.top[0].node)
        count = 1
        for _ in range(30):
            await shop.publish("news.start", count)
            count += 1
            await trio.sleep(0.2)  # nobody is found silent in the first five seconds
        stage.network.memory.partition({relay}, {"shop", *readers.nodes} - {relay})
        for _ in range(150):
            await shop.publish("news.start", count)
            count += 1
            await trio.sleep(0.04)
        others = [host for host in readers.nodes if host != relay]
        assert {host: readers.numbers(host)[-50:] for host in others} == {
            host: list(range(count - 50, count)) for host in others
        }
        readers.check(count, *others)
        stage.network.memory.heal()
        await trio.sleep(20)
        await shop.publish("news.start", count)
        await trio.sleep(1)
        assert readers.numbers(relay)[-1] == count
        assert readers.numbers(relay) == sorted(set(readers.numbers(relay)))


async def test_a_tree_that_lacks_one_who_rests_is_made_when_that_one_may_be_in_it_again(
    autojump_clock: MockClock,
) -> None:
    async with open_readers(5) as (stage, readers, shop):
        await start(trees(stage, shop), shop)
        feed = trees(stage, shop).feed
        assert feed is not None
        trees(stage, shop)._cannot_reach(feed.tree, readers.nodes["reader-0"].id)
        sizes: list[int] = []
        for number in range(1, 15):
            await shop.publish("news.start", number)
            await trio.sleep(1)
            sizes.append(trees(stage, shop).size)
        assert sizes[:9] == [0] * 9, "it rests for ten seconds, and four are too few for a tree"
        assert sizes[-1] == 5
        readers.check(15)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
async def test_order_holds_and_every_gap_is_told_whatever_breaks(autojump_clock: MockClock, seed: int) -> None:
    async with open_readers(10, seed=seed) as (stage, readers, shop):
        stage.harmless = ("relayed events of a tree that was not announced",)  # the announcement was lost
        await start(trees(stage, shop), shop)
        stage.network.memory.loss = 0.01
        count = 1
        for step in range(600):
            await shop.publish("news.start", count)
            count += 1
            if step % 5 == 0:
                await trio.sleep(0.01)
            if step % 150 == 100:
                host = f"reader-{(seed + step // 150) % 10}"
                stage.network.memory.partition({host}, {"shop"})
            if step % 150 == 130:
                stage.network.memory.heal()
        stage.network.memory.heal()
        stage.network.memory.loss = 0.0
        await trio.sleep(30)
        for _ in range(2):
            await shop.publish("news.start", count)
            count += 1
            await trio.sleep(3)
        readers.check(count)


async def test_a_subscriber_that_publishers_wait_for_gets_its_events_directly_and_in_order(
    autojump_clock: MockClock,
) -> None:
    async with open_readers(8) as (stage, readers, shop):
        count = await start(trees(stage, shop), shop)
        await readers.add("reader-1", pattern="other", overflow="wait")
        for number in range(count, 100):
            await shop.publish("news.start", number)
            await trio.sleep(0.015)
        await trio.sleep(1)
        assert trees(stage, shop).size == 7
        assert readers.nodes["reader-1"].id not in trees(stage, shop).feed.places  # type: ignore[union-attr]
        assert {host: readers.numbers(host) for host in readers.nodes} == {
            host: list(range(100)) for host in readers.nodes
        }


async def test_a_subscriber_that_publishers_begin_to_wait_for_while_a_tree_is_made_is_not_in_it(
    autojump_clock: MockClock,
) -> None:
    async with open_readers(8) as (stage, readers, shop):
        await shop.publish("news.start", 0)
        await readers.add("reader-1", pattern="other", overflow="wait")
        count = 1
        with trio.fail_after(30):
            while trees(stage, shop).size != 7:
                await shop.publish("news.start", count)
                count += 1
                await trio.sleep(0.5)
        for number in range(count, 50):
            await shop.publish("news.start", number)
            await trio.sleep(0.05)
        assert trees(stage, shop).size == 7
        assert readers.nodes["reader-1"].id not in trees(stage, shop).feed.places  # type: ignore[union-attr]
        assert [len(readers.taken[host]) for host in readers.nodes] == [50] * 8


async def test_what_nodes_were_told_of_a_coming_tree_is_told_again_when_frames_were_lost(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("shop", *"abcdef", config=NARROW) as fleet, trio.open_nursery() as nursery:
        for node in fleet.nodes.values():
            nursery.start_soon(node.pubsub.run)
        async with AsyncExitStack() as stack:
            subscriptions = [await stack.enter_async_context(fleet[name].pubsub.subscribe("t")) for name in "abcdef"]
            await trio.sleep(1)
            fleet["shop"].break_connections()  # the proposal goes out over connections that are just being made
            for number in range(100):
                await publish(fleet["shop"], "t", number)
                await trio.sleep(0.02)
            assert fleet["shop"].pubsub.publishing.trees.size == 6
            for subscription in subscriptions:
                taken = await collect(subscription)
                assert [event.payload for event in taken] == sorted(event.payload for event in taken)
                assert taken[-1].payload == 99
                assert taken[0].payload + len(taken) + sum(event.missed for event in taken) == 100
            nursery.cancel_scope.cancel()


async def test_last_values_come_once_before_subscribe_returns_and_in_order_over_a_tree(
    autojump_clock: MockClock,
) -> None:
    async with open_readers(8) as (stage, readers, shop):
        await start(trees(stage, shop), shop)
        await shop.retain("state", "kept")
        got: list[tuple[object, bool]] = []
        for index in (2, 7):
            reader = readers.nodes[f"reader-{index}"]
            async with reader.subscribe("state") as events:
                first = await events.__anext__()
                async with reader.subscribe("state") as another:
                    assert (events.statistics().waiting, another.statistics().waiting) == (0, 1)
                got.append((first.payload, first.retained))
                await shop.publish("state", index)
                second = await events.__anext__()
                got.append((second.payload, second.retained))
                assert second.missed == 0
        assert got == [("kept", True), (2, False), ("kept", True), (7, False)]


async def test_publishers_and_subscribers_are_who_they_are_however_their_events_come(
    autojump_clock: MockClock,
) -> None:
    async with open_readers(8) as (stage, readers, shop):
        await start(trees(stage, shop), shop)
        await readers.add("reader-5", pattern="allowed.a", allow=["shop"])
        await readers.add("reader-6", pattern="allowed.b", allow=["office"])
        await shop.publish("allowed.a", 1)
        await shop.publish("allowed.b", 2)
        await trio.sleep(4)  # what comes over a tree is reported every 2 s
        assert 1 in readers.numbers("reader-5")
        assert 2 not in readers.numbers("reader-6")
        assert shop.statistics().publishing.refused == 1


async def test_a_publisher_that_closes_at_once_has_published_everything(autojump_clock: MockClock) -> None:
    async with open_readers(9) as (stage, readers, shop):
        del shop
        async with stage.network.open_parts("office", config=NARROW) as (office, parts):
            await start(parts.patterns.pubsub.publishing.trees, office, "news.office")
            for number in range(1, 100):
                await office.publish("news.office", number)
        await trio.sleep(0.1)
        assert {host: readers.numbers(host) for host in readers.nodes} == {
            host: list(range(100)) for host in readers.nodes
        }


async def test_links_with_little_room_slow_the_publisher_down_and_lose_nothing(autojump_clock: MockClock) -> None:
    """Links that carry little at a time: behind the first nodes as much waits as before them."""
    tight = iris.Config(relay_above=4, relay_fan_out=2, max_payload=30_000, link_bytes=1_000_000)
    names = [f"reader-{index}" for index in range(8)]
    async with (
        open_meshes("shop", *names, config=tight, latency=(0.01, 0.02), capacity=2) as fleet,
        trio.open_nursery() as nursery,
        AsyncExitStack() as stack,
    ):
        for node in fleet.nodes.values():
            nursery.start_soon(node.pubsub.run)
        publishing = fleet["shop"].pubsub.publishing
        subscriptions = [await stack.enter_async_context(fleet[name].pubsub.subscribe("news")) for name in names]
        await publish(fleet["shop"], "news", b"first")
        await trio.sleep(1)
        feed = publishing.trees.feed
        assert feed is not None
        began = trio.current_time()
        await publish(fleet["shop"], "news", *[bytes(20_000)] * 300)
        assert trio.current_time() > began + 0.1, "it never waited: the test shows nothing"
        await trio.sleep(5)
        assert {(it.received, it.missed) for one in subscriptions for it in [one.statistics()]} == {(301, 0)}
        assert publishing.trees.feed is feed, "the tree was left"
        assert not feed.held
        nursery.cancel_scope.cancel()


async def test_a_node_of_the_tree_that_asks_for_a_pause_gets_it_but_not_for_ever(autojump_clock: MockClock) -> None:
    async with open_readers(8) as (stage, readers, shop):
        await start(trees(stage, shop), shop)
        feed = trees(stage, shop).feed
        assert feed is not None
        relay = next(node for node in readers.nodes.values() if feed.places[node.id].children)
        leaf = next(node for node in readers.nodes.values() if not feed.places[node.id].children)

        async def publish_some() -> float:
            began = trio.current_time()
            for _ in range(3):
                await shop.publish("news.start", b"x")
                await trio.sleep(0.01)
            return trio.current_time() - began

        def say(node: iris.Node, state: int) -> None:
            stage.parts[node.id].mesh.post(shop.id, kinds.EventRelay(feed.tree, state, b""), 0)

        say(leaf, HELD)
        await trio.sleep(0.1)
        assert await publish_some() < 0.1, "a node with nobody behind it has no say"
        say(relay, HELD)
        await trio.sleep(0.1)
        with trio.move_on_after(0.5) as scope:
            await publish_some()
        assert scope.cancelled_caught, "the publisher goes on while it is asked to wait"
        say(relay, GOES_ON)
        await trio.sleep(0.1)
        assert await publish_some() < 0.1
        say(relay, HELD)
        await trio.sleep(0.1)
        assert 0.5 < await publish_some() < 1.5, "a pause without an end ends when the tree is left"
        await trio.sleep(1)
        await start(trees(stage, shop), shop)
        assert feed is not trees(stage, shop).feed
        assert relay.id not in trees(stage, shop).feed.places  # type: ignore[union-attr]
