"""Events in a realm of more nodes than are linked with each other: publishers announce the roots of their topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
import iris.node.open as opening
from iris.cluster.mesh import Peer
from iris.cluster.swim import NodeRecord
from iris.kernel.names import NodeId
from iris.kernel.wire import Message, kinds
from iris.patterns.pubsub.announcements import Announcements
from iris.patterns.pubsub.echo import Echo, Effect
from iris.security.identity import NodeIdentity
from iris.testing import Network, inspect, open_network

NODES = 24


@asynccontextmanager
async def open_realm(
    network: Network, count: int = NODES, config: iris.Config | None = None
) -> AsyncIterator[list[iris.Node]]:
    """Open nodes that know the first one, and wait until they know each other."""
    async with AsyncExitStack() as stack:
        nodes: list[iris.Node] = []
        for _ in range(count):
            seeds = ["host-1"] if nodes else []
            nodes.append(await stack.enter_async_context(network.open_node("nodes", seeds=seeds, config=config)))
        for node in nodes:
            await wait_members(node, count)
        yield nodes


async def wait_members(node: iris.Node, count: int) -> None:
    with trio.fail_after(30.0):
        while len(node.nodes()) != count - 1:
            await node._parts.membership.wait_news()


def links_of(node: iris.Node) -> int:
    return len(node.statistics().links)


def always(_self: object, _node: NodeId) -> bool:
    return True


def never(_self: object, _sender: NodeId, _cost: float) -> bool:
    return False


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
        with trio.fail_after(10.0):
            while nodes[2].id not in inspect(nodes[20]).subscribers.get("parted.>", ()):
                await nodes[20]._parts.membership.wait_news()
        await nodes[20].publish("parted.a", 1)
        assert await hear(later, 1) == [1]
        assert await hear(await stack.enter_async_context(nodes[3].subscribe("news.>")), 0) == []


async def test_a_node_that_is_silent_or_dies_meanwhile_keeps_nobody_from_being_found(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes, AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(node.subscribe("news.>")) for node in nodes[10:16]]
        network.memory.partition(["host-6"], [f"host-{number}" for number in range(1, NODES + 1) if number != 6])
        began = trio.current_time()
        await nodes[20].publish("news.a", 1)
        assert trio.current_time() - began <= nodes[20]._config.subscribe_timeout + 0.1
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
        assert nodes[22]._pubsub.publishing.trees.size == 20
        for subscription in subscriptions:
            assert await hear(subscription, 40) == list(range(40))


async def test_what_is_made_up_about_others_costs_links_and_hides_nobody(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        liar, victim, subscriber = nodes[3], nodes[20], nodes[5]
        for peer in liar._parts.mesh.peers.values():
            for number in range(1000):
                stranger = bytes((1,)) + number.to_bytes(15)
                peer.link.post(kinds.Announce(stranger, 0, 0, ("news",)), 64)
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
                assert newcomer.id in nodes[11]._pubsub._announcements.publishers()
        for node in nodes:
            announcements = node._pubsub._announcements
            assert len(announcements.publishers()) <= 256 * links_of(node) + NODES


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


async def test_what_a_full_link_did_not_take_is_told_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_network() as network, open_realm(network, 2) as nodes:
        publisher, other = nodes
        mesh = publisher._parts.mesh
        post = type(mesh).post

        def full(self: object, node: NodeId, message: Message, size: int, reserve: int = 0) -> None:
            if self is mesh and isinstance(message, kinds.Announce):
                raise iris.NotSent("full")
            post(mesh if self is mesh else self, node, message, size, reserve)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(type(mesh), "post", full)
            await publisher.publish("news.a", 1)
        await trio.sleep(1.0)
        assert other._pubsub._announcements.publishers() == [publisher.id]


async def test_what_there_was_no_room_for_is_asked_for_again_when_its_record_comes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_network() as network, open_realm(network, 2) as nodes:
        other, own = (node._pubsub._announcements for node in nodes)
        newcomer = NodeId("02" * 16)
        peer = nodes[1]._parts.mesh.peers[nodes[0].id]
        for number in range(5000):
            own._receive(peer, kinds.Announce(bytes((1,)) + number.to_bytes(15), 0, 0, ("news",)))
        own._receive(peer, kinds.Announce(bytes.fromhex(newcomer), 0, 0, ("news",)))
        assert newcomer not in own.publishers()
        membership = type(nodes[0]._parts.membership)
        for known in "knows", "is_known":
            monkeypatch.setattr(membership, known, always)
        other._table.add(newcomer, ("news",))
        own._placed(newcomer)
        await trio.sleep(1.0)
        assert newcomer in own.publishers()


async def test_who_asks_on_for_nobody_for_now_passes_on_what_is_news(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Announcements, "_may", never)
    async with open_network() as network, open_realm(network, 14) as nodes:
        await nodes[9].publish("news.a", 1)
        await trio.sleep(1.0)
        assert all(nodes[9].id in node._pubsub._announcements._table for node in nodes)


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
    """They are not signed, and each costs every node a moment."""
    began: list[tuple[NodeId, int]] = []
    receive = Echo.receive

    def count(self: Echo, key: tuple[NodeId, int], *given: Any, interested: bool) -> list[Effect]:
        began.append(key)
        return receive(self, key, *given, interested=interested)

    async with open_network() as network, open_realm(network, 14) as nodes:
        monkeypatch.setattr(Echo, "receive", count)
        liar, victim = nodes[3], nodes[9]
        for peer in liar._parts.mesh.peers.values():
            for number in range(1, 501):
                peer.link.post(kinds.Announce(bytes.fromhex(victim.id), number, 500, ("news",)), 64)
                peer.link.post(kinds.Announce(bytes((1,)) + number.to_bytes(15), 1, 500, ("news",)), 64)
        await trio.sleep(1.0)
        asked = Counter(key[0] == victim.id for key in set(began))
        assert 0 < asked[True] <= 140
        assert 0 < asked[False] <= 80
        async with nodes[5].subscribe("news.>") as news:
            await victim.publish("news.a", 1)
            assert await hear(news, 1) == [1]


async def test_nodes_of_a_version_without_announcements_are_linked_and_sent_none(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    old: set[NodeId] = set()
    is_old = [False]
    make, hears = opening._record, Announcements._hears

    def record(identity: NodeIdentity, site: str, addresses: tuple[str, ...]) -> NodeRecord:
        made = make(identity, site, addresses)
        if is_old[0]:
            old.add(made.node)
        return structs.replace(made, interest_version=0) if is_old[0] else made

    monkeypatch.setattr(opening, "_record", record)

    def speaks(self: Announcements, peer: Peer) -> bool:
        return self._mesh.node not in old and hears(self, peer)

    monkeypatch.setattr(Announcements, "_hears", speaks)

    def receive(self: Announcements, peer: Peer, message: kinds.Announced) -> None:
        told.append(self._mesh.node)
        receive_announced(self, peer, message)

    told: list[NodeId] = []
    receive_announced = Announcements._receive_announced
    monkeypatch.setattr(Announcements, "_receive_announced", receive)
    async with open_network() as network, open_realm(network, 20) as nodes, AsyncExitStack() as stack:
        is_old[0] = True
        of_old = [await stack.enter_async_context(network.open_node("nodes", seeds=["host-2"])) for _ in range(2)]
        is_old[0] = False
        for node in (*nodes, *of_old):
            await wait_members(node, 22)
        publisher, subscriber = of_old
        for node in of_old:
            node._parts.membership.link_everybody()  # as it does before it publishes or subscribes
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
        assert len(set(told)) == 21
