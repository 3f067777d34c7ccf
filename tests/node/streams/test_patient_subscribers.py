"""Subscribers with ``overflow="wait"`` that take nothing, or little: the others do not wait for them for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.testing import open_network

FEW = iris.SubscriptionLimits(events=10)
PATIENCE = iris.Config().broadcast_patience


async def publish_for(node: iris.Node, seconds: float, topic: str = "t", *, key: str | None = None) -> int:
    """Publish an event each 10 ms, as far as the publisher need not wait; return how many."""
    count = 0
    with trio.move_on_after(seconds):
        while True:
            await node.publish(topic, count, key=key)
            count += 1
            await trio.sleep(0.01)
    return count


async def drain(events: iris.Subscription, taken: list[iris.Event], pause: float = 0.0) -> None:
    async for event in events:
        taken.append(event)
        await trio.sleep(pause)


@asynccontextmanager
async def open_nodes(*names: str) -> AsyncIterator[list[iris.Node]]:
    async with open_network() as network, AsyncExitStack() as stack:
        yield [await stack.enter_async_context(network.open_node(name)) for name in names]


@pytest.mark.parametrize("group", [None, "workers"])
async def test_one_that_takes_nothing_is_published_past_and_told_what_it_missed(
    autojump_clock: MockClock, group: str | None
) -> None:
    async with (
        open_nodes("holder", "reader", "publisher") as (holder, reader, publisher),
        holder.subscribe("t", overflow="wait", limits=FEW, group=group) as held,
        reader.subscribe("t") as events,
        trio.open_nursery() as nursery,
    ):
        taken: list[iris.Event] = []
        nursery.start_soon(drain, events, taken)
        count = await publish_for(publisher, 10)
        assert 470 < count < 510, "it waits for five seconds of the ten"
        await trio.sleep(1)
        assert [event.payload for event in taken] == list(range(count))
        waiting = held.statistics().waiting
        lost = publisher.statistics().publishing.lost
        assert lost == {"subscriber asks to wait": count - waiting}
        late: list[iris.Event] = []
        nursery.start_soon(drain, held, late)
        await trio.sleep(1)
        for number in range(100):  # it is waited for again
            await publisher.publish("t", number)
        await trio.sleep(1)
        assert len(late) == waiting + 100
        if group is None:
            assert sum(event.missed for event in late) == held.statistics().missed == count - waiting
        assert publisher.statistics().publishing.lost == lost
        books = await publisher.books("t")
        assert books.balanced
        assert (books.sent, books.received) == (2 * count + 200, 2 * count + 200 - lost["subscriber asks to wait"])
        nursery.cancel_scope.cancel()


async def test_one_that_takes_a_little_again_and_again_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    async with (
        open_nodes("holder", "publisher") as (holder, publisher),
        holder.subscribe("t", overflow="wait", limits=iris.SubscriptionLimits(events=1)) as held,
        trio.open_nursery() as nursery,
    ):
        late: list[iris.Event] = []
        nursery.start_soon(drain, held, late, 4.0)  # less than the patience with one that takes nothing
        count = await publish_for(publisher, 60)
        assert count > 2000
        assert publisher.statistics().publishing.lost["subscriber asks to wait"] > 1000
        assert len(late) >= 14
        nursery.cancel_scope.cancel()


async def test_one_that_is_slow_and_goes_on_is_waited_for_and_loses_nothing(autojump_clock: MockClock) -> None:
    async with (
        open_nodes("slow", "publisher") as (slow, publisher),
        slow.subscribe("t", overflow="wait", limits=FEW) as events,
        trio.open_nursery() as nursery,
    ):
        taken: list[iris.Event] = []
        nursery.start_soon(drain, events, taken, 0.5)
        count = await publish_for(publisher, 120)
        await trio.sleep(20)
        assert 230 < count < 260
        assert [event.payload for event in taken] == list(range(count))
        assert not publisher.statistics().publishing.lost
        nursery.cancel_scope.cancel()


async def test_nodes_of_one_credential_are_waited_for_as_one(autojump_clock: MockClock) -> None:
    async with open_network() as network, AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(network.open_node("publisher"))
        nodes = [await stack.enter_async_context(network.open_node("holder")) for _ in range(8)]
        waited = 0.0
        for index, node in enumerate(nodes):
            held = await stack.enter_async_context(node.subscribe("t", overflow="wait", limits=FEW))
            for number in range(10):  # it asks for a pause
                before = trio.current_time()
                await publisher.publish("t", number)
                waited += trio.current_time() - before
                await trio.sleep(0.01)
            assert held.statistics().waiting > 5, index
        assert PATIENCE <= waited < 2 * PATIENCE, "one after the other they would be waited for eight times"


async def test_a_key_whose_subscriber_takes_nothing_costs_its_own_events_only(autojump_clock: MockClock) -> None:
    async with (
        open_nodes("one", "two", "publisher") as (one, two, publisher),
        one.subscribe("t", overflow="wait", limits=FEW, group="g"),
        two.subscribe("t", overflow="wait", limits=FEW, group="g") as second,
        trio.open_nursery() as nursery,
    ):
        taken: list[iris.Event] = []
        nursery.start_soon(drain, second, taken)
        for number in range(2000):
            await publisher.publish("t", number, key=str(number % 20))
            await trio.sleep(0.001)
        await trio.sleep(1)
        theirs = {event.key for event in taken}
        assert 0 < len(theirs) < 20
        assert len(taken) == 100 * len(theirs)
        assert publisher.statistics().publishing.lost["subscriber asks to wait"] > 0
        nursery.cancel_scope.cancel()


async def test_last_values_and_confirmed_events_go_past_it_too_and_wait_for_durable_ones(
    autojump_clock: MockClock,
) -> None:
    async def confirm(events: iris.Subscription) -> None:
        async for event in events:
            await events.confirm([event])

    async with (
        open_nodes("holder", "bridge", "publisher") as (holder, bridge, publisher),
        bridge.subscribe_durable("t", overflow="wait", limits=FEW) as stored,
        trio.open_nursery() as nursery,
    ):
        async with holder.subscribe("t", overflow="wait", limits=FEW):
            nursery.start_soon(confirm, stored)
            for number in range(30):
                await publisher.publish_confirmed("t", number, timeout=7)
            for number in range(30):
                await publisher.retain("t", number)
            assert publisher.statistics().publishing.lost["subscriber asks to wait"] > 40
        nursery.cancel_scope.cancel()
    async with (
        open_nodes("bridge", "publisher") as (bridge, publisher),
        bridge.subscribe_durable("t", overflow="wait", limits=FEW) as stored,
        trio.open_nursery() as nursery,
    ):
        assert await publish_for(publisher, 10) > 450  # unconfirmed ones go past it
        with pytest.raises(iris.RequestTimeout, match="takes no more"):
            await publisher.publish_confirmed("t", "late", timeout=10)
        nursery.start_soon(confirm, stored)
        await publisher.publish_confirmed("t", "in time")
        nursery.cancel_scope.cancel()
