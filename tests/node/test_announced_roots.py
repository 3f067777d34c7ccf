"""Events in a realm of more nodes than are linked with each other: publishers announce the roots of their topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.testing import Network, open_network

NODES = 32


@asynccontextmanager
async def open_realm(network: Network, count: int = NODES) -> AsyncIterator[list[iris.Node]]:
    """Open nodes that know the first one, and wait until they know each other."""
    async with AsyncExitStack() as stack:
        nodes: list[iris.Node] = []
        for _ in range(count):
            nodes.append(await stack.enter_async_context(network.open_node("nodes", seeds=["host-1"] if nodes else [])))
        await settled(nodes)
        yield nodes


async def settled(nodes: list[iris.Node]) -> None:
    with trio.fail_after(20.0):
        while not all(len(node.nodes()) == len(nodes) - 1 for node in nodes):
            await trio.sleep(0.1)


def links_of(node: iris.Node) -> int:
    return len(node.statistics().links)


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
            assert sorted(map(links_of, nodes))[-4] < NODES - 4
        await trio.sleep(90.0)
        assert max(map(links_of, nodes)) < NODES - 1


@pytest.mark.parametrize("pattern", ["news.weather", "news.>", "*.weather", ">"])
@pytest.mark.parametrize("first", ["subscriber", "publisher"])
async def test_the_first_event_is_heard_of_a_publisher_that_was_never_met(
    autojump_clock: MockClock, pattern: str, first: str
) -> None:
    async with open_network() as network, open_realm(network) as nodes, AsyncExitStack() as stack:
        if first == "publisher":
            await nodes[20].publish("news.weather", b"nobody hears this")
            await trio.sleep(100.0)
        subscriptions = [await stack.enter_async_context(node.subscribe(pattern)) for node in nodes[::6]]
        for number in range(3):
            await nodes[20].publish("news.weather", number)
        for subscription in subscriptions:
            assert await hear(subscription, 3) == [0, 1, 2]
