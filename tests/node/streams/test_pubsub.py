"""Publish and subscribe between whole nodes: who gets what, in which order, and what is said of losses."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.patterns.pubsub.subscribe.subscription import Overflow
from tests.support.stages import IN_FLIGHT, open_stage


async def take_waiting(events: iris.Subscription) -> list[iris.Event]:
    """Return what waits after everything in flight has arrived."""
    await trio.sleep(IN_FLIGHT)
    waiting = events.statistics().waiting
    return [await anext(events) for _ in range(waiting)]


@pytest.mark.parametrize(
    ("pattern", "heard"),
    [
        ("orders.created", ["orders.created"]),
        ("orders.*", ["orders.created", "orders.paid"]),
        ("*.created", ["orders.created", "users.created"]),
        ("orders.>", ["orders.created", "orders.paid", "orders.paid.twice"]),
        (">", ["orders.created", "orders.paid", "orders.paid.twice", "users.created"]),
        ("orders.*.twice", ["orders.paid.twice"]),
        ("order", []),
    ],
)
async def test_a_subscriber_hears_the_topics_of_its_pattern(
    autojump_clock: MockClock, pattern: str, heard: list[str]
) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        async with reader.subscribe(pattern) as events:
            for topic in ("orders.created", "orders.paid", "orders.paid.twice", "users.created"):
                await writer.publish(topic, {"of": topic}, headers={"h": topic})
            taken = await take_waiting(events)
        assert [event.topic for event in taken] == heard
        for event in taken:
            assert (event.payload, event.headers["h"], event.sender.cluster) == (
                {"of": event.topic},
                event.topic,
                "writer",
            )
        statistics = writer.statistics()
        assert (statistics.published, statistics.without_subscriber) == (4, 4 - len(heard))


@pytest.mark.parametrize(
    ("overflow", "kept", "missed"), [("drop_oldest", range(90, 100), 90), ("drop_newest", range(10), 0)]
)
@pytest.mark.parametrize("burst", [100, 7, 1])
async def test_what_a_slow_subscriber_loses_is_counted_and_shown(
    autojump_clock: MockClock, overflow: Overflow, kept: range, missed: int, burst: int
) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        limits = iris.SubscriptionLimits(events=10)
        async with reader.subscribe("t", overflow=overflow, limits=limits) as events:
            for number in range(100):
                await writer.publish("t", number)
                if number % burst == 0:
                    await trio.sleep(0.01)
            taken = await take_waiting(events)
            assert [event.payload for event in taken] == list(kept)
            assert [event.missed for event in taken] == [missed] + [0] * 9
            await writer.publish("t", 100)
            last = await anext(events)
            assert (last.payload, last.missed) == (100, 90 - missed)
            statistics = events.statistics()
            assert (statistics.received, statistics.delivered, statistics.dropped) == (101, 11, 90)


async def test_a_subscription_that_fails_leaves_others_and_can_begin_anew(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        limits = iris.SubscriptionLimits(events=10)
        async with reader.subscribe("t") as other:
            with pytest.raises(iris.SubscriberTooSlow, match="'t' was too slow"):  # noqa: PT012
                async with reader.subscribe("t", overflow="fail", limits=limits) as events:
                    for number in range(12):
                        await writer.publish("t", number)
                    await trio.sleep(1)
                    async for _ in events:
                        pytest.fail("an event after the end")
            ended = reader.statistics().subscriptions_ended
            assert ended is not None
            assert (ended.too_slow, ended.delivered, ended.waiting + ended.dropped) == (1, 0, 12)
            assert writer.statistics().publishing.dropped == ended.dropped > 0
            async with reader.subscribe("t", overflow="fail", limits=limits) as events:
                await writer.publish("t", 12)
                assert (await anext(events)).payload == 12
            assert [event.payload for event in await take_waiting(other)] == list(range(13))


async def test_a_member_of_a_group_at_its_limits_is_passed_over_for_another_one(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        limits = iris.SubscriptionLimits(events=10)
        async with (
            reader.subscribe("t", group="g") as other,
            reader.subscribe("t", group="g", overflow="fail", limits=limits) as events,
        ):
            for number in range(60):
                await writer.publish("t", number)
            await trio.sleep(1)
            assert (len(await take_waiting(events)), len(await take_waiting(other))) == (10, 50)
            assert not writer.statistics().publishing.dropped


@pytest.mark.parametrize("hosts", [("one", "one"), ("one", "two")])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_failed_member_of_a_group_gets_no_turn_before_its_consumer_knows(
    autojump_clock: MockClock, hosts: tuple[str, str], key: str | None
) -> None:
    async with open_stage() as stage:
        nodes = {host: await stage.node("reader", host) for host in sorted({*hosts})}
        writer = await stage.node("writer")
        limits = iris.SubscriptionLimits(events=5)
        staying, failing = (nodes[host] for host in hosts)
        async with failing.subscribe("t", group="g", overflow="fail", limits=limits) as busy:
            for number in range(6):
                await writer.publish("t", number)
            await trio.sleep(IN_FLIGHT)
            async with staying.subscribe("t", group="g") as other:
                await trio.sleep(IN_FLIGHT)
                before = writer.statistics().publishing.dropped
                for number in range(100):
                    await writer.publish("t", number, key=key)
                await trio.sleep(1)
                assert len(await take_waiting(other)) == 100
                assert writer.statistics().publishing.dropped == before == 1
                assert busy.statistics().too_slow == 1
                with pytest.raises(iris.SubscriberTooSlow):
                    await anext(busy)
        await trio.sleep(1)
        assert writer.statistics().publishing.dropped == 6, "nobody else was left of the group"


async def test_a_member_of_a_group_on_the_publishers_own_node_can_fail(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        node = await stage.node("shop")
        limits = iris.SubscriptionLimits(events=5)
        async with (
            node.subscribe("t", group="g", overflow="fail", limits=limits) as one,
            node.subscribe("t", group="g", overflow="fail", limits=limits) as two,
        ):
            for number in range(40):
                await node.publish("t", number)
                await trio.sleep(0.001)
            await trio.sleep(1)
            for events in (one, two):
                with pytest.raises(iris.SubscriberTooSlow):
                    await anext(events)
        await trio.sleep(1)
        published = node.statistics().publishing
        assert (published.published, published.dropped) == (40, published.sent)
        assert published.without_subscriber == 40 - published.sent > 0


@pytest.mark.parametrize("seconds", [0.2, 60])
async def test_what_a_partition_swallows_is_shown_as_missed(autojump_clock: MockClock, seconds: float) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        async with reader.subscribe("t") as events:
            await writer.publish("t", 0)
            assert (await anext(events)).payload == 0
            stage.network.memory.partition(["reader"], ["writer"])
            for number in range(1, 11):
                await writer.publish("t", number)
                await trio.sleep(seconds / 10)
            stage.network.memory.heal()
            taken: list[iris.Event] = []
            number = 11
            while not taken:
                await writer.publish("t", number)
                number += 1
                taken += await take_waiting(events)
            taken += await take_waiting(events)
            assert sum(event.missed for event in taken) + len(taken) == number - 1
            payloads = [event.payload for event in taken]
            assert payloads == sorted(set(payloads))
            assert events.statistics().missed == sum(event.missed for event in taken)


async def test_a_publisher_that_crashes_and_comes_again_begins_anew(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader = await stage.node("reader")
        writer = await stage.node("writer", "first")
        async with reader.subscribe("t") as events:
            for number in range(5):
                await writer.publish("t", number)
            taken = await take_waiting(events)
            stage.crash("first")
            await trio.sleep(5)
            async with stage.network.open_node("writer", host="second") as again:
                await again.publish("t", 5)
                taken += await take_waiting(events)
            assert [event.payload for event in taken] == list(range(6))
            assert len({event.publisher for event in taken}) == 2
            assert sum(event.missed for event in taken) == 0


async def test_each_event_goes_to_one_of_a_group_and_each_key_to_the_same_one(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        first, second, third = [await stage.node("worker", f"worker-{index}") for index in range(3)]
        writer = await stage.node("writer")
        async with (
            first.subscribe("work.*", group="workers") as one,
            second.subscribe("work.*", group="workers") as two,
            third.subscribe("work.*", group="workers") as three,
            first.subscribe("work.*") as everything,
        ):
            for number in range(90):
                await writer.publish("work.a", number)
            shares = [[event.payload for event in await take_waiting(events)] for events in (one, two, three)]
            assert sorted(itertools.chain(*shares)) == list(range(90))
            assert all(len(share) == 30 for share in shares)
            homes: dict[str, set[int]] = defaultdict(set)
            for number in range(90):
                await writer.publish(f"work.{number % 2}", number, key=f"key {number % 30}")
            for index, events in enumerate((one, two, three)):
                for event in await take_waiting(events):
                    homes[str(event.key)].add(index)
            assert len(homes) == 30
            assert all(len(places) == 1 for places in homes.values())
            assert {place for places in homes.values() for place in places} == {0, 1, 2}
            assert len(await take_waiting(everything)) == 180


async def test_a_group_shares_fairly_whatever_is_published_in_between(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        workers = [await stage.node("worker", f"worker-{index}") for index in range(2)]
        writer = await stage.node("writer")
        async with (
            workers[0].subscribe("work", group="workers") as one,
            workers[1].subscribe("work", group="workers") as two,
        ):
            for number in range(40):
                await writer.publish("work", number)
                await writer.publish("log", number)
            assert [len(await take_waiting(events)) for events in (one, two)] == [20, 20]
        assert writer.statistics().without_subscriber == 40


async def test_a_worker_that_stands_still_gets_no_more_of_its_groups_events(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        workers = [await stage.node("worker", f"worker-{index}") for index in range(3)]
        writer = await stage.node("writer")
        async with (
            workers[0].subscribe("work", group="workers") as one,
            workers[1].subscribe("work", group="workers") as two,
            workers[2].subscribe("work", group="workers") as three,
        ):
            stage.network.memory.pause("worker-2")
            for number in range(400):
                await writer.publish("work", number)
                await trio.sleep(0.01)
            shares = [{event.payload for event in await take_waiting(events)} for events in (one, two)]
            lost = set(range(400)).difference(*shares)
            rounds = range(min(lost) // 3, max(lost) // 3 + 1)
            assert {number // 3 for number in lost} == set(rounds), "one in each round, as long as nobody could know"
            assert len(lost) == len(rounds)
            assert len(lost) < 100, "that was for less than three seconds"
            assert abs(len(shares[0]) - len(shares[1])) < 10, "the others share what would have been its part"
            stage.network.memory.resume("worker-2")
            assert {event.payload for event in await take_waiting(three)} == lost
            await trio.sleep(2)
            for number in range(90):
                await writer.publish("work", number)
            counts = [len(await take_waiting(events)) for events in (one, two, three)]
            assert sum(counts) == 90
            assert max(counts) - min(counts) <= 2, "rounds begin where they were"


async def test_what_a_crashed_bridge_had_not_confirmed_goes_to_the_next_one(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        bridge = await stage.node("bridge", "bridge-1")
        again = await stage.node("bridge", "bridge-2")
        writer = await stage.node("writer")
        async with bridge.subscribe_durable("t") as lost, trio.open_nursery() as nursery:

            async def write() -> None:
                await writer.publish_confirmed("t", "precious", timeout=60)

            nursery.start_soon(write)
            assert [event.payload for event in await lost.receive_batch()] == ["precious"]
            stage.crash("bridge-1")
            await trio.sleep(5)
            async with again.subscribe_durable("t") as events:
                batch = await events.receive_batch()
                assert [event.payload for event in batch] == ["precious"]
                await events.confirm(batch)
                with trio.fail_after(1):
                    await trio.sleep(0.1)
            assert not nursery.child_tasks
