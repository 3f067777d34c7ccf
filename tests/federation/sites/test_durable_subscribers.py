"""Durable subscribers at other sites: waited for as those at home, by the nodes of a site of which one was linked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.policy import Policy
from tests.support.federations import Federation, open_federation


@asynccontextmanager
async def storing(federation: Federation, site: str, pattern: str) -> AsyncIterator[iris.Node]:
    """A durable subscriber ``archive`` at a site, which may go away again."""
    async with (
        federation.network.open_node("archive", site=site) as node,
        node.subscribe_durable(pattern, name="archive") as events,
        trio.open_nursery() as nursery,
    ):

        async def confirm() -> None:
            async for event in events:
                await events.confirm([event])

        nursery.start_soon(confirm)
        yield node
        nursery.cancel_scope.cancel()


def away(node: iris.Node) -> list[str]:
    return [one.name for one in node.durable_subscribers() if not one.present]


async def test_an_event_waits_for_a_subscriber_of_another_site_that_is_away(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        async with storing(federation, "eu", "orders.>"):
            await trio.sleep(1)
            await publisher.publish_confirmed("orders.new", 1)
        await trio.sleep(1)
        with pytest.raises(iris.RequestTimeout, match="'archive' of cluster 'archive'"):
            await publisher.publish_confirmed("orders.new", 2)
        later = await federation.node("us", "later")
        assert away(later) == ["archive"], "the nodes of a site tell each other"
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                await later.publish_confirmed("orders.new", 3, timeout=30)
                nursery.cancel_scope.cancel()

            nursery.start_soon(publish)
            await trio.sleep(3)
            async with storing(federation, "eu", "orders.>"):
                with trio.fail_after(10):
                    await trio.sleep_forever()


async def test_forgetting_crosses_the_border(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        publisher = await federation.node("us", "publisher")
        bystander = await federation.node("us", "bystander")
        async with storing(federation, "eu", "orders.>"):
            await trio.sleep(1)
            await publisher.publish_confirmed("orders.new", 1)
        eu = await federation.node("eu", "eu")
        ear = await federation.enter(eu.subscribe("orders.>"))
        await trio.sleep(1)
        await publisher.publish("orders.new", 2)  # so that the two are linked
        assert (await anext(ear)).payload == 2
        late = await federation.node("us", "late")
        assert away(late) == away(publisher) == away(bystander) + ["archive"] * (not away(bystander))
        async with federation.network.open_node("archive", site="eu") as owner:
            await owner.forget_subscriber("archive")
        await trio.sleep(1)
        assert away(publisher) == away(bystander) == away(late) == []


async def test_topics_that_do_not_leave_a_site_do_not_wait(autojump_clock: MockClock) -> None:
    policy = Policy(exports=(">",), export_topics=("orders.>",))
    async with open_federation() as federation, AsyncExitStack() as stack:
        await federation.gateway("eu", policy=policy)
        await federation.gateway("us", to=["eu-gateway"], policy=policy)
        publisher = await federation.node("us", "publisher")
        home = await federation.node("us", "home")
        events = await federation.enter(home.subscribe_durable(">", name="home"))

        async def confirm() -> None:
            async for event in events:
                await events.confirm([event])

        federation.nursery.start_soon(confirm)
        await stack.enter_async_context(storing(federation, "eu", "orders.>"))
        async with storing_more(federation, "eu"):
            await trio.sleep(1)
            await publisher.publish_confirmed("orders.new", 1)
        await trio.sleep(1)
        assert away(publisher) == ["wide"]
        await publisher.publish_confirmed("orders.new", 2)
        await publisher.publish_confirmed("bills.new", 3)


@asynccontextmanager
async def storing_more(federation: Federation, site: str) -> AsyncIterator[None]:
    """One that wants topics of which not all may leave: it gets none of the other site."""
    async with (
        federation.network.open_node("wide", site=site) as node,
        node.subscribe_durable(">", name="wide"),
        node.subscribe("orders.>"),
    ):
        yield
