"""Events between sites: each once, in order, to the subscribers there, as far as the lists of both sites allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.mesh.peer import Peer
from iris.federation.policy import Policy
from iris.kernel.wire import kinds
from tests.support.federations import EVERYTHING, Federation, Heard, echo, open_federation


async def open_ears(federation: Federation, sites: tuple[str, ...], pattern: str, **options: str) -> list[Heard]:
    """Bring up a subscriber in each of some sites; return the lists of what they receive."""
    heard: list[Heard] = []
    for site in sites:
        await federation.listen(site, pattern, heard, **options)
    return heard


def lose_interest(monkeypatch: pytest.MonkeyPatch, federation: Federation, node: iris.Node, times: int) -> None:
    """Have the next frames in which a node says to nodes of other sites what it subscribes to be lost in flight."""
    pubsub = federation.parts[node.id].patterns.pubsub
    left = times

    def lose(say: Callable[[Peer], None], peer: Peer) -> None:
        nonlocal left
        if not peer.at_remote_site or left == 0:
            say(peer)
            return
        left -= 1
        assert peer.session is not None
        peer.session.seal(b"it never comes")

    for name in ("peer_connected", "frames_lost"):
        monkeypatch.setattr(pubsub, name, partial(lose, getattr(pubsub, name)))


@pytest.mark.parametrize("shape", ["ring", "mesh"])
async def test_each_event_reaches_each_subscriber_once_and_in_order(autojump_clock: MockClock, shape: str) -> None:
    sites = ("s0", "s1", "s2", "s3") if shape == "ring" else ("s0", "s1", "s2", "s3", "s4", "s5")
    async with open_federation() as federation:
        await (federation.ring(*sites) if shape == "ring" else federation.mesh(*sites))
        await federation.wait_for_sites(*sites)
        heard = await open_ears(federation, (*sites, *sites), "orders.>")
        publisher = await federation.node("s0", "publisher")
        await trio.sleep(1)
        for number in range(100):
            await publisher.publish(f"orders.{number % 3}", number)
        await trio.sleep(2)
        assert Counter(heard) == {
            Heard(site, f"orders.{number % 3}", number, 0): 2 for site in sites for number in range(100)
        }


async def test_a_subscriber_gets_the_events_of_a_publisher_in_order(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        heard = await open_ears(federation, ("eu",), "orders.*")
        publisher = await federation.node("us", "publisher")
        await trio.sleep(1)
        for number in range(500):
            await publisher.publish(f"orders.{number % 5}", number)
        await trio.sleep(1)
        assert [event.payload for event in heard] == list(range(500))


async def test_the_first_event_waits_for_the_link_and_is_not_lost(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        await publisher.publish("orders.new", "nobody listens yet")
        heard = await open_ears(federation, ("eu",), "orders.new")
        await trio.sleep(0.5)
        await publisher.publish("orders.new", "first")
        await trio.sleep(0.5)
        assert heard == [("eu", "orders.new", "first", 0)]


@pytest.mark.parametrize("lost", [1, 3])
async def test_the_first_event_waits_also_where_what_a_subscriber_says_first_is_lost_on_the_way(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        heard: list[Heard] = []
        ears = [await federation.listen("eu", "orders.>", heard) for _ in range(2)]
        lose_interest(monkeypatch, federation, ears[0], lost)
        await trio.sleep(1)
        for number in range(10):
            await publisher.publish("orders.new", number)
        await trio.sleep(1)
        assert Counter(heard) == {Heard("eu", "orders.new", number, 0): 2 for number in range(10)}


async def test_events_reach_a_subscriber_that_was_given_up_by_the_publisher_and_did_not_notice(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        heard: list[Heard] = []
        ear = await federation.listen("eu", "orders.new", heard)
        await trio.sleep(1)
        await publisher.publish("orders.new", 0)
        await trio.sleep(1)
        federation.parts[publisher.id].mesh.drop(ear.id, "it is removed")
        await publisher.publish("orders.new", 1)
        await trio.sleep(1)
        assert [(event.payload, event.missed) for event in heard][-1:] == [(1, 0)]


async def test_events_that_did_not_wait_for_what_a_subscriber_says_are_counted_as_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        heard: list[Heard] = []
        lose_interest(monkeypatch, federation, await federation.listen("eu", "orders.new", heard), 1_000_000)
        await trio.sleep(1)
        for number in range(10):
            await publisher.publish("orders.new", number)
        await trio.sleep(1)
        assert heard == []
        assert publisher.statistics().events.lost == {"no link to another site yet": 10}


async def test_events_of_a_group_count_as_lost_for_a_node_that_has_not_said_that_it_is_in_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        heard: list[Heard] = []
        member = await federation.listen("us", "orders.new", heard, group="billing")
        silent = await federation.listen("eu", "orders.new", heard, group="billing")
        lose_interest(monkeypatch, federation, silent, 1_000_000)
        await trio.sleep(1)
        for number in range(10):
            await publisher.publish("orders.new", number)
        books = await publisher.books("orders.new", settle=10.0)
        assert [(event.site, event.payload) for event in heard] == [("us", number) for number in range(10)]
        assert {row.receiver: (row.sent, row.received, row.lost) for row in books.rows} == {
            member.id: (10, 10, {}), None: (10, 0, {"no link to another site yet": 10})
        }  # fmt: skip


async def test_last_values_of_topics_that_a_list_leaves_out_are_not_let_in(autojump_clock: MockClock) -> None:
    narrow = Policy(exports=(">",), export_topics=(">",), import_topics=("weather.>",))
    async with open_federation() as federation:
        await federation.gateway("away", policy=EVERYTHING)
        await federation.gateway("home", to=["away-gateway"], policy=narrow)
        await federation.wait_for_sites("home", "away")
        publisher = await federation.node("away", "publisher")
        reader = await federation.node("home", "reader")
        async with reader.subscribe("weather.x") as weather, reader.subscribe("secret.x") as secret:
            await trio.sleep(2)
            await publisher.publish("weather.x", 0)
            await trio.sleep(1)
            for topic in ("weather.x", "secret.x"):
                await publisher.retain(topic, "kept")
            await trio.sleep(1)
            async with reader.subscribe("weather.*") as late, reader.subscribe("secret.*") as secret_late:
                await trio.sleep(1)
                assert weather.statistics().received >= 1
                assert late.statistics().received == 1
                assert secret.statistics().received == secret_late.statistics().received == 0


async def test_last_values_of_topics_that_a_list_leaves_out_are_given_to_no_node_of_another_site_that_asks(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(exports=("store",), export_topics=("public.>",), import_topics=("public.>",))
    async with open_federation() as federation:
        await federation.gateway("eu", policy=policy)
        await federation.gateway("us", to=["eu-gateway"], policy=policy)
        store = await federation.member("eu", echo("store"))
        shop = await federation.shop("us", "store")
        for topic in ("secret.plans", "public.news"):
            await store.retain(topic, b"kept")
        assert await shop.request("store", 1) == 1
        sent: list[str] = []
        publishing = federation.parts[store.id].patterns.pubsub.publishing

        def post(_: object, message: kinds.Retained, *_more: object) -> bool:
            sent.append(message.topic)
            return True

        monkeypatch.setattr(publishing, "post", post)
        for pattern in (">", "secret.*", "public.*"):
            federation.parts[shop.id].mesh.post(store.id, kinds.RetainedWanted(pattern), len(pattern))
        await trio.sleep(1)
        assert sent == ["public.news"]


@pytest.mark.parametrize("side", ["out", "in"])
async def test_topics_that_a_list_leaves_out_do_not_cross(autojump_clock: MockClock, side: str) -> None:
    narrow = Policy(export_topics=("orders.>",)) if side == "out" else Policy(import_topics=("orders.>",))
    wide = Policy(export_topics=(">",))
    async with open_federation() as federation:
        await federation.gateway("eu", policy=wide if side == "out" else narrow)
        await federation.gateway("us", to=["eu-gateway"], policy=narrow if side == "out" else wide)
        orders = await open_ears(federation, ("eu",), "orders.new")
        bills = await open_ears(federation, ("eu",), "bills.new")
        everything = await open_ears(federation, ("eu",), ">")
        publisher = await federation.node("us", "publisher")
        await trio.sleep(1)
        for topic in ("orders.new", "bills.new"):
            await publisher.publish(topic, 1)
        await trio.sleep(1)
        assert (len(orders), len(bills), len(everything)) == (1, 0, 0)


async def test_a_session_that_is_there_for_something_else_carries_no_other_events(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        policy = Policy(exports=("store",), export_topics=("orders.>",))
        await federation.gateway("eu", policy=policy)
        await federation.gateway("us", to=["eu-gateway"], policy=policy)
        heard: list[Heard] = []
        greedy = await federation.listen("eu", ">", heard)
        await federation.enter(greedy.join("store", iris.Service("store")))
        await federation.enter(greedy.subscribe("orders.>"))
        publisher = await federation.node("us", "publisher")
        await publisher.wait_for("store")
        await publisher.broadcast("store", b"")
        await publisher.publish("orders.new", 1)
        await publisher.publish("bills.new", 2)
        await trio.sleep(1)
        assert federation.parts[publisher.id].mesh.peer(greedy.id) is not None
        assert [event.payload for event in heard] == [1]


async def test_a_group_that_spans_sites_gets_each_event_once(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us", "ap")
        heard = await open_ears(federation, ("eu", "us", "ap"), "orders.new", group="workers")
        publisher = await federation.node("us", "publisher")
        await trio.sleep(1)
        for number in range(90):
            await publisher.publish("orders.new", number)
        await trio.sleep(1)
        assert sorted(event.payload for event in heard) == list(range(90))
        assert {event.site for event in heard} == {"eu", "us", "ap"}


async def test_a_confirmed_event_waits_for_a_durable_subscriber_of_another_site(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        store = await federation.node("eu", "store")
        kept: list[object] = []

        events = await federation.enter(store.subscribe_durable("orders.>"))

        async def keep() -> None:
            async for event in events:
                await trio.sleep(0.2)
                kept.append(event.payload)
                await events.confirm([event])

        federation.nursery.start_soon(keep)
        publisher = await federation.node("us", "publisher")
        await trio.sleep(1)
        await publisher.publish_confirmed("orders.new", "paid")
        assert kept == ["paid"]


@pytest.mark.parametrize("how", ["publish", "confirming"])
async def test_a_confirmed_event_waits_for_a_site_for_which_others_do_not(autojump_clock: MockClock, how: str) -> None:
    """Its publisher has waited for that site as long as it does in a while."""
    kept: dict[str, list[object]] = {}
    async with open_federation() as federation:
        await federation.mesh("eu", "us")

        async def keep(site: str) -> None:
            store = await federation.node(site, "store")
            events = await federation.enter(store.subscribe_durable("orders.>"))

            async def confirm() -> None:
                async for event in events:
                    kept.setdefault(site, []).append(event.payload)
                    await events.confirm([event])

            federation.nursery.start_soon(confirm)

        await keep("us")
        await keep("eu")
        publisher = await federation.node("us", "publisher")
        await trio.sleep(1)
        now = trio.current_time()
        federation.sites(publisher)._links._patience.spend("eu", now, now + 5)
        if how == "publish":
            await publisher.publish_confirmed("orders.new", "paid")
        else:
            async with publisher.confirming() as confirmed:
                await confirmed.publish("orders.new", "paid")
        assert kept == {"us": ["paid"], "eu": ["paid"]}


async def test_a_subscription_that_ends_is_withdrawn(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        ear = await federation.node("eu", "ear")
        async with ear.subscribe("orders.>"):
            await trio.sleep(1)
            subscribers = federation.sites(publisher).directory.subscribers()
            assert [found.pattern for found in subscribers] == ["orders.>"]
        await trio.sleep(1)
        assert federation.sites(publisher).directory.subscribers() == set()


async def test_a_subscriber_of_another_site_that_takes_nothing_is_waited_for_and_then_published_past(
    autojump_clock: MockClock,
) -> None:
    few = iris.SubscriptionLimits(events=10)
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        heard = await open_ears(federation, ("eu",), "orders.*")
        holder = await federation.node("eu", "holder")
        async with holder.subscribe("orders.*", overflow="wait", limits=few) as held:
            await trio.sleep(1)
            count = 0
            with trio.move_on_after(8):
                while True:
                    await publisher.publish("orders.new", count)
                    count += 1
                    await trio.sleep(0.01)
            await trio.sleep(1)
            assert 270 < count < 310
            assert [event.payload for event in heard] == list(range(count))
            waiting = held.statistics().waiting
            lost = publisher.statistics().publishing.lost["subscriber asks to wait"]
            assert lost == count - waiting > 250
            for number in range(waiting):
                assert (await anext(held)).payload == number
            await trio.sleep(1)
            await publisher.publish("orders.new", "again")
            event = await anext(held)
            assert (event.payload, event.missed) == ("again", lost)
