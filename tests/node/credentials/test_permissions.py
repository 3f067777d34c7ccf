"""Permissions: rules of a service, of a subscription, and of certificates, seen from both sides."""

from __future__ import annotations

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
import iris.testing
from iris.security.identity.certificate import issue_certificate
from iris.security.identity.signing import SigningKey
from iris.testing import Rights


def orders_service() -> iris.Service:
    service = iris.Service("orders", allow=["shop"])

    @service.request
    async def take(request: iris.Request) -> object:
        return request.sender.cluster

    @service.tunnel
    async def stream(tunnel: iris.Tunnel) -> None:
        await tunnel.send(b"welcome")

    return service


async def test_a_service_serves_only_the_clusters_that_it_allows(autojump_clock: MockClock) -> None:
    heard: list[object] = []
    service = orders_service()

    @service.broadcast
    async def hear(message: iris.Message) -> None:
        heard.append((message.sender.cluster, message.payload))

    async with (
        iris.testing.open_network() as network,
        network.open_node("orders") as member,
        member.join("orders", service),
        network.open_node("shop") as shop,
        network.open_node("stranger") as stranger,
    ):
        for node in (shop, stranger):
            await node.wait_for("orders")
        assert await shop.request("orders") == "shop"
        async with shop.open_tunnel("orders") as tunnel:
            assert await tunnel.receive() == b"welcome"
        with pytest.raises(iris.NotAllowed, match=r"'orders' does not serve cluster 'stranger'"):
            async with stranger.open_tunnel("orders"):
                pass
        await stranger.broadcast("orders", 1)
        await shop.broadcast("orders", 2)
        # The requests follow the broadcasts on each link: when they are answered, the broadcasts have arrived.
        assert await shop.request("orders") == "shop"
        with pytest.raises(iris.NotAllowed, match=r"'orders' does not serve cluster 'stranger'"):
            await stranger.request("orders")
        assert heard == [("shop", 2)]
        assert member.statistics().refusals["broadcast not allowed"] == 1


async def test_a_subscription_takes_only_the_publishers_that_it_allows(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network() as network,
        network.open_node("shop") as shop,
        network.open_node("stranger") as stranger,
        network.open_parts("reader") as (reader, parts),
        reader.subscribe("orders.>", allow=["shop"]) as events,
    ):
        await stranger.publish("orders.new", 1)
        await shop.publish("orders.new", 2)
        event = await anext(events)
        assert (event.payload, event.sender.cluster, event.missed) == (2, "shop", 0)
        await parts.patterns.pubsub.wait_interest_exchanged()
        assert events.statistics().refused == 1


async def test_a_certificate_says_which_topics_its_nodes_may_use(autojump_clock: MockClock) -> None:
    rights = Rights(publishes=("orders.>",), subscribes=("orders.new",))
    async with (
        iris.testing.open_network(rights=rights) as network,
        network.open_node("shop") as shop,
        network.open_node("reader") as reader,
    ):
        with pytest.raises(iris.NotAllowed, match=r"'shop' does not permit to publish on 'prices'"):
            await shop.publish("prices", 1)
        with pytest.raises(iris.NotAllowed, match=r"'reader' does not permit to subscribe to 'orders.>'"):
            async with reader.subscribe("orders.>"):
                pass
        async with reader.subscribe("orders.new") as events:
            await shop.publish("orders.new", 1)
            assert (await anext(events)).payload == 1


async def test_a_narrower_certificate_counts_for_what_was_subscribed_to_before(autojump_clock: MockClock) -> None:
    """The publisher sees to it by itself: what the subscriber does about it does not matter."""
    wide = Rights(subscribes=("orders.>", "prices.>"))
    async with (
        iris.testing.open_network(rights=wide) as network,
        network.open_node("shop") as shop,
        network.open_parts("reader") as (reader, reader_parts),
        reader.subscribe("prices.>") as prices,
        reader.subscribe("orders.>") as orders,
    ):
        await shop.publish("prices.a", 1)
        assert (await anext(prices)).payload == 1
        held = network.credential("reader")
        assert isinstance(held.keys, SigningKey)
        narrow = structs.replace(
            held,
            certificate=issue_certificate(
                network.root,
                name="reader",
                public_key=held.keys.public,
                generation=1,
                not_before=network.wall_clock() - 300,
                not_after=network.wall_clock() + 86_400,
                rights=Rights(subscribes=("orders.>",)),
            ),
        )
        reader_parts.mesh.renew_identity(narrow.renew_identity(reader_parts.mesh.identity, network.wall_clock()))
        await trio.sleep(5)
        await shop.publish("prices.a", 2)
        await shop.publish("orders.a", 3)
        assert (await anext(orders)).payload == 3
        await trio.sleep(1)
        assert prices.statistics().received == 1
