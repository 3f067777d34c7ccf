"""Publish and subscribe between nodes: who gets what, in which order."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.config import KIB, Config
from iris.kernel.errors import ConfigError, LocalProtocolError, NotAllowed, PayloadTooLarge
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest.table import Terms
from iris.patterns.pubsub.subscribe.events import MAX_SHARED, Event, labels_size
from iris.patterns.pubsub.subscribe.subscription import Subscription
from iris.patterns.service.service import Service
from iris.security.identity.permissions import Rights
from tests.support.events import collect, missed, publish, take_all
from tests.support.meshes import check_tally, open_meshes

# -- who gets what -----------------------------------------------------------------------------------------


async def test_an_event_reaches_every_subscriber_as_it_was_published(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with b.pubsub.subscribe("orders.*") as one, c.pubsub.subscribe(">") as two, c.pubsub.subscribe("x"):
            headers = {"trace": "1"}
            await a.pubsub.publishing.publish("orders.created", {"id": 7}, key="k", headers=headers)
            for subscription in (one, two):
                event = await subscription.__anext__()
                assert (event.topic, event.payload, event.key) == ("orders.created", {"id": 7}, "k")
                assert (event.headers, event.missed, event.sequence) == (headers, 0, 0)
                assert (event.sender.cluster, event.sender.node) == ("a", a.id)
        assert check_tally(a.pubsub.publishing.tally).handed_over == 2
        assert a.pubsub.publishing.without_subscriber == 0


async def test_a_node_hears_itself(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        async with a.pubsub.subscribe("t", overflow="wait", max_events=10) as events, trio.open_nursery() as nursery:
            nursery.start_soon(publish, a, "t", *range(100))
            taken = [await events.__anext__() for _ in range(100)]
        assert [event.payload for event in taken] == list(range(100))
        assert taken[0].sender.node == a.id


async def test_subscriptions_of_one_node_with_the_same_pattern_are_apart(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as one:
            async with b.pubsub.subscribe("t") as two:
                await publish(a, "t", 1)
                assert (await one.__anext__()).payload == (await two.__anext__()).payload == 1
            await publish(a, "t", 2)
            assert (await one.__anext__()).payload == 2
        assert two.statistics().received == 1
        assert check_tally(a.pubsub.publishing.tally).sent == 2  # one for each event and node


async def test_what_nobody_wants_is_counted_and_sent_nowhere(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t"):
            await publish(a, "u", 1, 2)
        await trio.sleep(0.1)
        await publish(a, "t", 3)
        assert (a.pubsub.publishing.published, a.pubsub.publishing.without_subscriber) == (3, 3)
        assert check_tally(a.pubsub.publishing.tally).sent == 0


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 20))])
async def test_what_is_published_right_after_subscribing_arrives(autojump_clock: MockClock, seed: int) -> None:
    async with open_meshes("a", "b", "c", "d", seed=seed, latency=(0.0, 0.05)) as fleet:
        nodes = list(fleet.nodes.values())
        for number in range(10):
            subscriber = nodes[number % 4]
            async with subscriber.pubsub.subscribe(f"t.{number}") as events:
                for node in nodes:
                    await publish(node, f"t.{number}", node.name)
                taken = [await events.__anext__() for _ in nodes]
                assert {event.payload for event in taken} == {"a", "b", "c", "d"}


async def test_a_node_that_joins_later_knows_what_is_wanted(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        async with a.pubsub.subscribe("t.*") as events, fleet.open_node("b") as b:
            await b.mesh.connect([a.url])
            await b.pubsub.wait_interest_exchanged()
            await publish(b, "t.x", 1)
            assert (await events.__anext__()).payload == 1
            await b.mesh.disconnect_all("over", 1)
            await publish(a, "t.x", 2)
            assert (await events.__anext__()).payload == 2


# -- order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_events_of_one_publisher_keep_their_order_across_topics(autojump_clock: MockClock, seed: int) -> None:
    chance = random.Random(seed)
    async with open_meshes("a", "b", "c", seed=seed, capacity=3) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with (
            b.pubsub.subscribe(">", durable=True) as mine,
            c.pubsub.subscribe("t.*", overflow="wait") as some,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(confirm_all, mine, received := list[Event]())
            nursery.start_soon(take_all, some, others := list[Event]())
            for number in range(3000):
                topic = chance.choice(["t.0", "t.0", "t.0", "t.1", "u"])
                payload = [number, bytes(chance.choice([0, 10, 100, 20_000 if number % 50 == 0 else 0]))]
                kind = chance.random()
                if kind < 0.01:
                    await a.pubsub.confirming.publish(topic, payload, key=None, timeout=60, headers=None)
                else:
                    headers = {"h": "x"} if kind < 0.1 else None
                    key = "k" if 0.1 < kind < 0.2 else None
                    await a.pubsub.publishing.publish(topic, payload, headers=headers, key=key)
            await trio.sleep(5)
            assert [event.payload[0] for event in received] == list(range(3000))
            assert missed(received) == 0
            numbers = [event.payload[0] for event in others]
            assert numbers == sorted(numbers)
            assert len(others) == sum(event.topic != "u" for event in received)
            nursery.cancel_scope.cancel()


async def confirm_all(subscription: Subscription, received: list[Event]) -> None:
    while True:
        batch = await subscription.receive_batch()
        received += batch
        await subscription.confirm(batch)


async def test_many_small_events_travel_as_runs(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            before = a.peer(b).link.statistics()
            await publish(a, "t", *range(5000))
            assert [event.payload for event in await collect(events)] == list(range(5000))
            after = a.peer(b).link.statistics()
            assert after.posted - before.posted < 30


# -- frames ------------------------------------------------------------------------------------------------


async def test_no_mixture_of_sizes_makes_a_frame_that_is_too_large(autojump_clock: MockClock) -> None:
    """The receiving side would end the connection: that is reported as reset or refused."""
    config = Config(max_payload=80 * KIB, batch_bytes=64 * KIB, link_bytes=64 * 1024 * KIB)
    async with open_meshes("a", "b", config=config, capacity=10_000) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            link = a.peer(b).link
            link.post(kinds.Pong(0), 0)  # not alone: what follows waits for the flusher
            link.post(kinds.Pong(0), 0)
            await publish(a, "t", *[bytes(1000)] * 60, bytes(80 * KIB))
            await publish(a, "t", *[b"x"] * 40_000)
            headers = {"h": "x" * 8000}
            for _ in range(200):
                await a.pubsub.publishing.publish("t", b"", headers=headers)
            for number in range(1000):
                await a.pubsub.publishing.publish("t", b"", key=f"{number}" + "k" * 250)
            taken = await collect(events)
            assert len(taken) == 61 + 40_000 + 1200
            assert missed(taken) == 0
        assert a.log.of(b.id) == ["up"]


# -- groups ------------------------------------------------------------------------------------------------


async def test_each_event_goes_to_one_of_a_group(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with (
            a.pubsub.subscribe("t", group="g") as one,
            b.pubsub.subscribe("t", group="g") as two,
            b.pubsub.subscribe("t", group="g") as three,
            c.pubsub.subscribe("t", group="h") as other,
            c.pubsub.subscribe("t") as plain,
        ):
            await publish(a, "t", *range(90))
            taken = [await collect(events) for events in (one, two, three, other, plain)]
            assert sorted(event.payload for events in taken[:3] for event in events) == list(range(90))
            assert min(len(events) for events in taken[:3]) > 10
            assert [event.payload for event in taken[3]] == [event.payload for event in taken[4]] == list(range(90))
            assert all(missed(events) == 0 for events in taken)
        assert check_tally(a.pubsub.publishing.tally).sent == 270


async def test_a_key_stays_with_its_member(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", "d") as fleet:
        a, b, c, d = (fleet[name] for name in "abcd")

        async def publish_keys() -> None:
            for number in range(300):
                await a.pubsub.publishing.publish("t", b"", key=f"key {number % 30}")

        async with b.pubsub.subscribe("t", group="g") as one, c.pubsub.subscribe("t", group="g") as two:
            async with d.pubsub.subscribe("t", group="g") as three:
                await publish_keys()
                first = [{event.key for event in await collect(events)} for events in (one, two, three)]
            await trio.sleep(0.1)  # until the publisher knows that one has left
            await publish_keys()
            second = [{event.key for event in await collect(events)} for events in (one, two)]
        assert [len(keys) > 3 for keys in first] == [True] * 3
        assert sum(len(keys) for keys in first) == sum(len(keys) for keys in second) == 30
        assert first[0] < second[0]  # when a member goes, only its keys move
        assert first[1] < second[1]


async def test_a_key_stays_with_its_subscription_within_a_node(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", group="g") as one, b.pubsub.subscribe("t", group="g") as two:
            for number in range(100):
                await a.pubsub.publishing.publish("t", b"", key=f"key {number % 10}")
            keys = [{event.key for event in await collect(events)} for events in (one, two)]
        assert len(keys[0]) + len(keys[1]) == 10
        assert keys[0]
        assert keys[1]


async def test_an_event_for_a_group_that_has_left_is_counted(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", latency=(0.1, 0.1)) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", group="g"):
            pass
        await publish(a, "t", 1, 2)
        await trio.sleep(1)
        assert b.mesh.refusals == {"event for a group without members here": 2}


# -- cancelling --------------------------------------------------------------------------------------------


async def test_subscribing_can_be_cancelled_at_any_time(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", latency=(0.01, 0.01)) as fleet:
        a, b = fleet["a"], fleet["b"]
        outcomes: set[bool] = set()
        for step in range(0, 40, 2):
            with trio.move_on_after(step / 1000) as scope:
                async with b.pubsub.subscribe("t", overflow="wait"):
                    outcomes.add(True)
            outcomes.add(not scope.cancelled_caught)
            await trio.sleep(1)
            assert b.pubsub.subscriptions == ()
            assert [*a.pubsub.wanted(), *b.pubsub.wanted()] == []
        assert outcomes == {True, False}


# -- permissions and bad input -----------------------------------------------------------------------------


async def test_a_certificate_limits_topics_on_both_sides(autojump_clock: MockClock) -> None:
    rights = Rights(publishes=("a.>",), subscribes=("b.>",))
    async with open_meshes("free") as fleet, fleet.open_node("bound", rights=rights) as bound:
        free = fleet["free"]
        await free.mesh.connect([bound.url])
        with pytest.raises(NotAllowed, match=r"'bound' does not permit to publish on 'b\.x'"):
            await publish(bound, "b.x", 1)
        with pytest.raises(NotAllowed, match=r"'bound' does not permit to subscribe to 'a\.x'"):
            async with bound.pubsub.subscribe("a.x"):
                pass
        async with free.pubsub.subscribe(">") as events:
            await publish(bound, "a.x", 1)
            assert (await events.__anext__()).payload == 1
            bound.peer(free).link.post(kinds.Events("b.x", 1, 0, None, None, None, (b"forged",), ()), 10)
            await trio.sleep(0.1)
            assert free.mesh.refusals == {"message of kind Events": 1}
            assert events.statistics().received == 1
        bound.mesh.drop(free.id, "over")
        free.mesh.drop(bound.id, "over")


async def test_events_of_a_run_share_so_many_bytes_of_headers_and_key_and_no_more(autojump_clock: MockClock) -> None:
    headers = ("h", "x" * 4000)
    most = MAX_SHARED // labels_size(headers, "k")
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe(">") as events:
            await trio.sleep(0.1)
            for topic, count in (("few", most), ("many", most + 1)):
                a.peer(b).link.post(kinds.Events(topic, 1, 0, None, headers, "k", (b"",) * count, ()), 10_000)
            await trio.sleep(0.1)
            topics = [(await events.__anext__()).topic for _ in range(most)]
            assert topics == ["few"] * most
            assert events.statistics().waiting == 0
            assert b.mesh.refusals == {"message of kind Events": 1}


async def test_bad_input_is_the_callers_error_and_publishes_nothing(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe(">") as events:
            send = a.pubsub.publishing.publish
            for topic in ("", "a..b", "*", "a.>", "\ud800", "x" * 300):
                with pytest.raises(ConfigError, match="is not a topic"):
                    await send(topic, b"")
            with pytest.raises(PayloadTooLarge):
                await send("t", bytes(2_000_000))
            with pytest.raises(LocalProtocolError):
                await send("t", object())
            with pytest.raises(LocalProtocolError):
                await send("t", b"", headers={"a": "\ud800"})
            for key in ("\udfff", "x" * 257, 5):
                with pytest.raises(ConfigError, match="is not a key"):
                    await send("t", b"", key=key)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            await send("t", b"good")
            (event,) = await collect(events)
            assert (event.payload, event.missed) == (b"good", 0)


@pytest.mark.parametrize("pattern", ["", "a..b", ">.a", "x" * 300])
async def test_a_malformed_pattern_is_the_callers_error(autojump_clock: MockClock, pattern: str) -> None:
    async with open_meshes("a") as fleet:
        with pytest.raises(ConfigError, match="pattern"):
            async with fleet["a"].pubsub.subscribe(pattern):
                pass
        with pytest.raises(ConfigError, match="group"):
            async with fleet["a"].pubsub.subscribe("t", group="no name"):
                pass


EACH = Terms("t.0", None, False).size
"""Size of such a pattern at a publisher."""


async def test_more_patterns_than_others_take_are_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=Config(interest_bytes=4 * EACH)) as fleet, AsyncExitStack() as stack:
        a, b = fleet["a"], fleet["b"]
        for number in range(4):
            await stack.enter_async_context(b.pubsub.subscribe(f"t.{number}"))
        with pytest.raises(ConfigError, match=r"cannot subscribe to 't\.4'"):
            await stack.enter_async_context(b.pubsub.subscribe("t.4"))
        events = await stack.enter_async_context(b.pubsub.subscribe("t.3"))
        assert len(b.pubsub.subscriptions) == 5
        await publish(a, "t.3", 1)
        assert len(await collect(events)) == 1
        assert a.mesh.refusals == {}
        assert b.pubsub.unconfirmed_subscriptions == 0


async def test_an_error_in_the_subscribers_block_ends_the_subscription_only(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]

        async def fail() -> None:
            async with b.pubsub.subscribe("t"):
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await fail()
        await trio.sleep(0.1)
        await publish(a, "t", 1)
        async with b.pubsub.subscribe("t") as events:
            await publish(a, "t", 2)
            assert (await events.__anext__()).payload == 2


async def test_one_cluster_to_allow_is_not_taken_letter_by_letter() -> None:
    with pytest.raises(ConfigError, match=r"use a list of clusters, \['orders'\]"):
        Service("store", allow="orders")
    async with open_meshes("a") as fleet:
        with pytest.raises(ConfigError, match=r"use a list of clusters, \['orders'\]"):
            async with fleet["a"].pubsub.subscribe("t", allow="orders"):
                pass
