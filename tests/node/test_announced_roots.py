"""Events in a realm of more nodes than are linked with each other: publishers announce the roots of their topics."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
import iris.node.open as opening
from iris.cluster.mesh import Mesh
from iris.cluster.swim import NodeRecord
from iris.kernel.names import NodeId
from iris.kernel.wire import Message, kinds
from iris.node.parts import NodeParts
from iris.patterns.pubsub.echo import Echo, Effect
from iris.testing import Network, inspect, open_network

NODES = 24


class Realm(list[iris.Node]):
    """Nodes, and the parts of each."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[NodeParts] = []

    def mesh(self, number: int) -> Mesh:
        return self.parts[number].mesh


@asynccontextmanager
async def open_realm(network: Network, count: int = NODES, config: iris.Config | None = None) -> AsyncIterator[Realm]:
    """Open nodes that know the first one, and wait until they know each other."""
    async with AsyncExitStack() as stack:
        nodes = Realm()
        for _ in range(count):
            seeds = ["host-1"] if nodes else []
            node, parts = await stack.enter_async_context(network.open_parts("nodes", seeds=seeds, config=config))
            nodes.append(node)
            nodes.parts.append(parts)
        for node in nodes:
            await wait_members(node, count)
        yield nodes


async def wait_until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30.0):
        while not condition():  # noqa: ASYNC110 -- virtual time
            await trio.sleep(0.01)


async def wait_members(node: iris.Node, count: int) -> None:
    await wait_until(lambda: len(node.nodes()) == count - 1)


def links_of(node: iris.Node) -> int:
    return len(node.statistics().links)


def stranger(number: int) -> bytes:
    """Return the id of a node that is not there."""
    return bytes((1,)) + number.to_bytes(15)


async def hear(subscription: iris.Subscription, count: int) -> list[object]:
    with trio.fail_after(10.0):
        heard = [(await anext(subscription)).payload for _ in range(count)]
    assert not subscription.statistics().missed
    return heard


async def test_who_publishes_on_its_own_root_is_linked_to_few(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        async with nodes[5].subscribe("root7.>") as one, nodes[5].subscribe("root9.>") as other:
            for number, node in enumerate(nodes):
                for event in range(3):
                    await node.publish(f"root{number}.a", event)
            assert await hear(one, 3) == await hear(other, 3) == [0, 1, 2]
            assert sorted(map(links_of, nodes))[-4] < NODES - 2
            for number in range(70):
                await nodes[7].publish(f"many{number}.a", number)
            await nodes[7].publish("root7.b", "last")
            assert await hear(one, 1) == ["last"]
            assert links_of(nodes[7]) < NODES - 1
        async with nodes[20].subscribe("many69.*") as one:  # of the root for all
            await nodes[7].publish("many69.b", 69)
            assert await hear(one, 1) == [69]


@pytest.mark.parametrize("first", ["subscriber", "publisher"])
async def test_the_first_event_is_heard_of_a_publisher_that_was_never_met(
    autojump_clock: MockClock, first: str
) -> None:
    patterns = ["news.weather", "news.>", "*.weather", ">"]
    async with open_network() as network, open_realm(network) as nodes, AsyncExitStack() as stack:
        if first == "publisher":
            await nodes[20].publish("news.weather", b"nobody hears this")
            await trio.sleep(45.0)
        subscribers = zip(nodes[::6], patterns, strict=True)
        subscriptions = [await stack.enter_async_context(node.subscribe(pattern)) for node, pattern in subscribers]
        for number in range(3):
            await nodes[20].publish("news.weather", number)
        for subscription in subscriptions:
            assert await hear(subscription, 3) == [0, 1, 2]
        assert links_of(nodes[20]) < NODES - 1


async def test_newcomers_and_those_that_are_away_and_come_back_miss_nothing(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes, AsyncExitStack() as stack:
        await nodes[20].publish("news.a", b"nobody hears this")
        newcomer = await stack.enter_async_context(network.open_node("nodes", seeds=["host-3"]))
        heard = await stack.enter_async_context(newcomer.subscribe("news.>"))
        of_newcomer = await stack.enter_async_context(nodes[4].subscribe("fresh.*"))
        await newcomer.publish("fresh.a", 1)
        await nodes[20].publish("news.a", 1)
        assert await hear(heard, 1) == await hear(of_newcomer, 1) == [1]
        for node in nodes:
            await wait_members(node, NODES + 1)
        # Parted, each half goes on; together again each hears the other, also on roots that are new.
        hosts = [f"host-{number}" for number in range(1, NODES + 2)]
        network.memory.partition(hosts[:12], hosts[12:])
        for node in nodes:
            await wait_members(node, 12 if node in nodes[:12] else 13)
        later = await stack.enter_async_context(nodes[2].subscribe("parted.>"))
        await nodes[20].publish("parted.a", "not heard")
        network.memory.heal()
        for node in nodes:
            await wait_members(node, NODES + 1)
        await wait_until(lambda: nodes[2].id in inspect(nodes[20]).subscribers.get("parted.>", ()))
        await nodes[20].publish("parted.a", 1)
        assert await hear(later, 1) == [1]
        assert await hear(await stack.enter_async_context(nodes[3].subscribe("news.>")), 0) == []


async def test_a_node_that_is_silent_or_dies_meanwhile_keeps_nobody_from_being_found(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes, AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(node.subscribe("news.>")) for node in nodes[10:16]]
        network.memory.partition(["host-6"], [f"host-{number}" for number in range(1, NODES + 1) if number != 6])
        began = trio.current_time()
        await nodes[20].publish("news.a", 1)
        assert trio.current_time() - began <= iris.Config().subscribe_timeout + 0.1
        await nodes[20].publish("news.a", 2)
        for subscription in subscriptions:
            assert await hear(subscription, 2) == [1, 2]


async def test_values_and_confirmed_events_and_records_of_durable_subscribers_come_as_well(
    autojump_clock: MockClock,
) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        await nodes[4].retain("state.door", "open")
        async with nodes[17].subscribe("state.>") as values:
            assert await hear(values, 1) == ["open"]
            async with nodes[17].subscribe("state.>") as again:
                assert await hear(again, 1) == ["open"]
        async with nodes[9].subscribe_durable("orders.>", name="ledger") as ledger, trio.open_nursery() as nursery:

            async def confirm() -> None:
                while True:
                    await ledger.confirm(await ledger.receive_batch())

            nursery.start_soon(confirm)
            await nodes[21].publish_confirmed("orders.a", 1)
            nursery.cancel_scope.cancel()
        # It is away, and owed what is confirmed, by those as well that never met it.
        with pytest.raises(iris.RequestTimeout, match="ledger"):
            await nodes[2].publish_confirmed("orders.b", 2, timeout=2.0)
        await nodes[12].forget_subscriber("ledger")
        for node in nodes[2], nodes[21], nodes[7]:
            with pytest.raises(iris.NotSent):
                await node.publish_confirmed("orders.c", 3, timeout=2.0)


async def test_events_go_through_others_that_are_linked_for_that(autojump_clock: MockClock) -> None:
    config = iris.Config(relay_above=5, relay_fan_out=3)
    async with open_network() as network, open_realm(network, config=config) as nodes, AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(node.subscribe("news.>")) for node in nodes[:20]]
        for number in range(40):
            await nodes[22].publish("news.a", number)
            await trio.sleep(0.1)
        assert nodes.parts[22].patterns.pubsub.publishing.trees.size == 20
        for subscription in subscriptions:
            assert await hear(subscription, 40) == list(range(40))


async def test_what_is_made_up_about_others_costs_links_and_hides_nobody(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        victim, subscriber = nodes[20], nodes[5]
        for peer in nodes.mesh(3).peers.values():
            for number in range(1000):
                peer.link.post(kinds.Announce(stranger(number), 0, 0, ("news",)), 64)
            for root in "made-up", ">":
                peer.link.post(kinds.Announce(bytes.fromhex(victim.id), 0, 0, (root,)), 64)
            peer.link.post(kinds.AnnounceReached(bytes.fromhex(victim.id), 1, bytes.fromhex(subscriber.id), b""), 64)
        await trio.sleep(1.0)
        began = trio.current_time()
        async with subscriber.subscribe("news.>") as news:
            assert trio.current_time() <= began + 1.0
            assert victim.id in inspect(subscriber).peers
            await victim.publish("news.a", 1)
            assert await hear(news, 1) == [1]
        # Also one who comes now, and is announced where there is room for nobody else who is not known.
        async with network.open_node("nodes", seeds=["host-4"]) as newcomer:
            await newcomer.publish("news.b", 1)
            await trio.sleep(2.0)
            async with nodes[15].subscribe("news.>") as news:
                await newcomer.publish("news.b", 2)
                assert await hear(news, 1) == [2]
                assert newcomer.id in inspect(nodes[11]).publishers
        for node in nodes:
            assert len(inspect(node).publishers) <= 256 * links_of(node) + NODES


async def test_who_comes_while_a_publisher_is_away_hears_it_when_it_is_back(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, 16) as nodes, AsyncExitStack() as stack:
        publisher = nodes[12]
        await publisher.publish("news.a", b"nobody hears this")
        network.memory.partition(["host-13"], [f"host-{number}" for number in range(1, 20) if number != 13])
        for node in (*nodes[:12], *nodes[13:]):
            await wait_members(node, 15)
        newcomers = [await stack.enter_async_context(network.open_node("nodes", seeds=["host-3"])) for _ in range(3)]
        network.memory.heal()
        for node in (*nodes, *newcomers):
            await wait_members(node, 19)
        await trio.sleep(1.0)
        heard = [await stack.enter_async_context(newcomer.subscribe("news.>")) for newcomer in newcomers]
        await publisher.publish("news.a", 1)
        for subscription in heard:
            assert await hear(subscription, 1) == [1]


async def test_a_subscriber_keeps_links_to_its_publishers_as_long_as_it_subscribes(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        publishers = [node for node in nodes[12:] if node.id not in inspect(nodes[5]).peers][:3]
        assert publishers
        for node in publishers:
            await node.publish("news.a", b"nobody hears this")
        before = inspect(nodes[5]).kept
        async with nodes[5].subscribe("news.>"):
            assert inspect(nodes[5]).kept - before == {node.id for node in publishers}
        assert inspect(nodes[5]).kept == before


async def test_what_a_full_link_did_not_take_is_told_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_network() as network, open_realm(network, 2) as nodes:
        publisher, other = nodes
        post = Mesh.post

        def full(self: Mesh, node: NodeId, message: Message, size: int, reserve: int = 0) -> None:
            if self is nodes.mesh(0) and isinstance(message, kinds.Announce):
                raise iris.NotSent("full")
            post(self, node, message, size, reserve)

        with monkeypatch.context() as patch:
            patch.setattr(Mesh, "post", full)
            await publisher.publish("news.a", 1)
        assert not inspect(other).publishers
        await trio.sleep(1.0)
        assert inspect(other).publishers == {publisher.id: {"news"}}


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_publisher_and_subscribers_that_come_at_once_hear_each_other(
    autojump_clock: MockClock, seed: int
) -> None:
    delays = (0.0, 0.001, 0.005, 0.02, 0.1)
    async with open_network(seed=seed) as network, open_realm(network, 19):
        for turn in range(4):
            await _come_at_once(network, turn, delays)


async def _come_at_once(network: Network, turn: int, delays: Sequence[float]) -> None:
    heard: list[list[object]] = []
    subscribed, told = trio.Event(), trio.Event()

    async def publish() -> None:
        async with network.open_node("nodes", seeds=[f"host-{turn + 1}"]) as node:
            await node.publish(f"news{turn}.a", 0)
            await subscribed.wait()
            for number in (1, 2, 3):
                await node.publish(f"news{turn}.a", number)
            await told.wait()

    async def subscribe(delay: float) -> None:
        await trio.sleep(delay)
        seeds = [f"host-{turn + 10}"]
        async with network.open_node("nodes", seeds=seeds) as node, node.subscribe(f"news{turn}.>") as news:
            mine: list[object] = []
            heard.append(mine)
            if len(heard) == len(delays):
                subscribed.set()
            with trio.move_on_after(5.0):
                while 3 not in mine:
                    mine.append((await anext(news)).payload)
            assert (mine[-3:], news.statistics().missed) == ([1, 2, 3], 0)
            if len(heard) == len(delays) and all(3 in each for each in heard):
                told.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        for delay in delays:
            nursery.start_soon(subscribe, delay)


async def test_questions_made_up_about_others_are_asked_on_by_few(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not signed, and each costs every node a moment.  A new link makes no room for more."""
    began: set[tuple[NodeId, int]] = set()
    receive = Echo.receive

    def count(self: Echo, key: tuple[NodeId, int], *given: Any, interested: bool) -> list[Effect]:
        began.add(key)
        return receive(self, key, *given, interested=interested)

    async with open_network() as network, open_realm(network, 14) as nodes:
        monkeypatch.setattr(Echo, "receive", count)
        liar, victim = nodes.mesh(3), nodes[9]
        for turn in range(3):
            for peer in list(liar.peers.values()):
                for number in range(1 + 150 * turn, 151 + 150 * turn):
                    peer.link.post(kinds.Announce(bytes.fromhex(victim.id), number, 500, ("news",)), 64)
                    peer.link.post(kinds.Announce(stranger(number), 1, 500, ("news",)), 64)
            await trio.sleep(1.0)
            for peer in list(liar.peers.values()):
                liar.drop(peer.node, "it dials again")
            await wait_until(lambda: len(liar.peers) >= 8)
        asked = Counter(key[0] == victim.id for key in began)
        assert 0 < asked[True] <= 160
        assert 0 < asked[False] <= 200, "64 by each neighbour, and each time it is linked to some others"
        async with nodes[5].subscribe("news.>") as news:
            await victim.publish("news.a", 1)
            assert await hear(news, 1) == [1]


async def test_who_names_nodes_that_are_not_there_is_waited_for_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be newcomers, so a publisher waits for them before its first event on a root.

    It waits a moment for each neighbour that passes on what the liar says.
    """
    numbers = itertools.count()
    post = Mesh.post
    async with open_network() as network, open_realm(network, 14) as nodes:
        liar = nodes.mesh(3)
        publisher = next(node for node in nodes[6:] if node.id in liar.peers)

        def lie(self: Mesh, node: NodeId, message: Message, size: int, reserve: int = 0) -> None:
            if self is liar and isinstance(message, kinds.AnnounceReached) and message.nodes:
                more = stranger(next(numbers))
                message = structs.replace(message, nodes=message.nodes + more, interested=message.interested + more)
            post(self, node, message, size, reserve)

        monkeypatch.setattr(Mesh, "post", lie)
        took: list[float] = []
        async with nodes[5].subscribe("root7.>") as events:
            for number in range(20):
                began = trio.current_time()
                await publisher.publish(f"root{number}.a", number)
                took.append(trio.current_time() - began)
            assert await hear(events, 1) == [7]
        assert next(numbers) >= 20
        assert took[0] == pytest.approx(1.25, abs=0.1)
        assert max(took[1:]) < 0.3
        assert sum(took) < 1.25 + 0.25 * links_of(publisher)


async def test_who_tells_of_publishers_that_are_not_there_is_waited_for_once(autojump_clock: MockClock) -> None:
    """So a subscriber waits for their records."""
    async with open_network() as network, open_realm(network, 14) as nodes, trio.open_nursery() as nursery:
        subscriber = next(node for node in nodes[6:] if node.id in nodes.mesh(3).peers)
        link = nodes.mesh(3).peers[subscriber.id].link

        async def lie() -> None:
            for number in itertools.count():
                link.post(kinds.Announce(stranger(number), 0, 0, ("news",)), 64)
                await trio.sleep(0.05)

        nursery.start_soon(lie)
        await trio.sleep(1.0)
        took: list[float] = []
        for _ in range(10):
            began = trio.current_time()
            async with subscriber.subscribe("news.>"):
                took.append(trio.current_time() - began)
        assert took[0] > 0.4
        assert sum(took) < 0.5 + 0.5 * links_of(subscriber)
        nursery.cancel_scope.cancel()


async def test_nodes_of_a_version_without_announcements_are_linked_and_sent_none(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    old: set[NodeId] = set()
    is_old = [False]
    told: set[NodeId] = set()
    post = Mesh.post

    def make(**fields: Any) -> NodeRecord:
        if is_old[0]:
            old.add(fields["node"])
            fields["interest_version"] = 0
        return NodeRecord(**fields)

    def tell(self: Mesh, node: NodeId, message: Message, size: int, reserve: int = 0) -> None:
        if isinstance(message, kinds.Announce | kinds.AnnounceReached | kinds.Announced):
            if self.node in old:
                return
            told.add(node)
        post(self, node, message, size, reserve)

    monkeypatch.setattr(opening, "NodeRecord", make)
    monkeypatch.setattr(Mesh, "post", tell)
    async with open_network() as network, open_realm(network, 20) as nodes, AsyncExitStack() as stack:
        is_old[0] = True
        of_old = [await stack.enter_async_context(network.open_parts("nodes", seeds=["host-2"])) for _ in range(2)]
        is_old[0] = False
        (publisher, _), (subscriber, _) = of_old
        for node in (*nodes, publisher, subscriber):
            await wait_members(node, 22)
        for _, parts in of_old:
            parts.membership.link_everybody()  # as it does before it publishes or subscribes
        heard = await stack.enter_async_context(nodes[6].subscribe("news.>"))
        await publisher.publish("news.a", 1)
        assert await hear(heard, 1) == [1]
        heard = await stack.enter_async_context(subscriber.subscribe("orders.>"))
        await nodes[13].publish("orders.a", 2)
        assert await hear(heard, 1) == [2]
        newcomer = await stack.enter_async_context(network.open_node("nodes", seeds=["host-5"]))
        heard = await stack.enter_async_context(newcomer.subscribe("news.>"))
        await publisher.publish("news.a", 3)
        assert await hear(heard, 1) == [3]
        assert old.isdisjoint(told)  # 0.9 would log that there is another version
        assert len(told) == 21
