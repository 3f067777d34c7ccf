"""Events that another node brings: whose they are is the publisher's word only, and what it may do is its own right."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel import wire
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books import Tally
from iris.patterns.pubsub.tree.reorder import LATE
from iris.patterns.pubsub.tree.topology import Child, RelayedEvents, TreeRole, claim
from iris.security.identity.permissions import Rights
from tests.support.events import collect, publish
from tests.support.meshes import MeshNode, open_meshes


@pytest.mark.parametrize("lie", ["body", "number", "mask", "tree", "publisher", "unknown", "own", "again", "junk"])
async def test_a_relay_that_lies_is_refused_and_counted(autojump_clock: MockClock, lie: str) -> None:
    async with open_meshes("shop", "liar", "reader") as fleet:
        shop, liar, reader = fleet["shop"], fleet["liar"], fleet["reader"]
        async with reader.pubsub.subscribe("t") as events:

            def relayed(sender: MeshNode, number: int, payload: bytes) -> RelayedEvents:
                body = wire.encode_batch([kinds.Events("t", number, 0, None, None, None, (payload,), ())])
                signature = sender.mesh.identity.sign(claim(sender.id, 1, number, 1, body))
                return RelayedEvents(sender.id, 1, number, 1, body, signature)

            shop.mesh.post(reader.id, *TreeRole(1, 1, ()).message())
            shop.mesh.post(reader.id, kinds.EventRoute(1, 1, wait=False), 0)
            await trio.sleep(0.1)
            genuine = relayed(shop, 1, b"genuine")
            wrong = "relayed events with a wrong signature"
            stranger = "relayed events of a node that is not linked"
            publisher, tree, number, mask, body, signature = genuine
            match lie:
                case "body":
                    other = relayed(shop, 1, b"forged").body
                    forged, refusal = RelayedEvents(publisher, tree, number, mask, other, signature), wrong
                case "number":
                    forged, refusal = RelayedEvents(publisher, tree, 2, mask, body, signature), wrong
                case "mask":
                    forged, refusal = RelayedEvents(publisher, tree, number, 3, body, signature), wrong
                case "tree":
                    forged, refusal = RelayedEvents(publisher, 2, number, mask, body, signature), wrong
                case "publisher":
                    forged, refusal = RelayedEvents(liar.id, tree, number, mask, body, signature), wrong
                case "unknown":
                    nobody = NodeId(shop.id[::-1])
                    forged, refusal = RelayedEvents(nobody, tree, number, mask, body, signature), stranger
                case "own":
                    forged, refusal = relayed(reader, 1, b"forged"), stranger
                case "again":
                    liar.mesh.post(reader.id, *genuine.message())
                    forged, refusal = genuine, LATE
                case _:
                    signature = shop.mesh.identity.sign(claim(shop.id, 1, 1, 1, b"\x01"))
                    forged = RelayedEvents(shop.id, 1, 1, 1, b"\x01", signature)
                    refusal = "relayed events that are malformed"
            liar.mesh.post(reader.id, *forged.message())
            await trio.sleep(0.1)
            assert reader.mesh.refusals == {refusal: 1}
            liar.mesh.post(reader.id, *relayed(shop, 9, b"last").message())
            taken = [(event.payload, event.sender.cluster) for event in await collect(events)]
            assert taken == [(b"genuine", "shop")] * (lie == "again") + [(b"last", "shop")]


async def test_events_that_their_publisher_may_not_publish_are_refused_though_another_node_brings_them(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("reader") as fleet:
        reader = fleet["reader"]
        rights = Rights(publishes=("own.>",))
        async with fleet.open_node("villain", rights=rights) as villain, reader.pubsub.subscribe(">") as events:
            await fleet.link()
            reader_role = TreeRole(1, 1, ())
            villain.mesh.post(reader.id, *reader_role.message())
            villain.mesh.post(reader.id, kinds.EventRoute(1, 1, wait=False), 0)
            for number, topic in enumerate(["others.a", "own.a"], start=1):
                body = wire.encode_batch([kinds.Events(topic, 1, 0, None, None, None, (b"x",), ())])
                signature = villain.mesh.identity.sign(claim(villain.id, 1, number, 1, body))
                villain.mesh.post(reader.id, *RelayedEvents(villain.id, 1, number, 1, body, signature).message())
            assert [event.topic for event in await collect(events)] == ["own.a"]
            assert reader.mesh.refusals == {"message of kind Events": 1}


async def test_events_are_handed_on_to_nobody_who_subscribes_to_nothing(autojump_clock: MockClock) -> None:
    tally = Tally()
    async with open_meshes("villain", "victim", "reader") as fleet:
        villain, victim, reader = fleet["villain"], fleet["victim"], fleet["reader"]
        victim.pubsub._relays._tally = tally

        async def relay(number: int) -> None:
            body = wire.encode_batch([kinds.Events("t", number, 0, None, None, None, (b"x",), ())])
            signature = villain.mesh.identity.sign(claim(villain.id, 1, number, 2, body))
            villain.mesh.post(victim.id, *RelayedEvents(villain.id, 1, number, 2, body, signature).message())
            await trio.sleep(0.1)

        villain.mesh.post(victim.id, *TreeRole(1, 1, (Child(reader.id, 2),)).message())
        villain.mesh.post(victim.id, kinds.EventRoute(1, 1, wait=False), 0)
        await relay(1)
        assert (tally.handed_over, tally.lost) == (0, {"a node that subscribes to nothing": 1})
        async with reader.pubsub.subscribe("t"):
            await trio.sleep(0.1)
            await relay(2)
        await trio.sleep(0.1)
        await relay(3)
        assert tally.handed_over == 2, "who has just left may still stand above others"


async def test_nodes_hand_on_only_what_they_may_hear_themselves(autojump_clock: MockClock) -> None:
    """Two clusters with different rights to subscribe, in one tree: no node is above one of the other cluster."""
    narrow = iris.Config(relay_above=4, relay_fan_out=2)
    async with open_meshes("shop", config=narrow) as fleet, AsyncExitStack() as stack:
        ranks: dict[NodeId, str] = {}
        for index in range(12):
            topics = ("news.>",) if index % 2 else ("news.>", "secret.>")
            node = await stack.enter_async_context(fleet.open_node(f"n-{index}", rights=Rights(subscribes=topics)))
            ranks[node.id] = topics[-1]
        await fleet.link()
        tasks = await stack.enter_async_context(trio.open_nursery())
        tasks.start_soon(fleet["shop"].pubsub.run)
        for name, node in fleet.nodes.items():
            if name != "shop":
                tasks.start_soon(node.pubsub.run)
                await stack.enter_async_context(node.pubsub.subscribe("news.>"))
        await publish(fleet["shop"], "news.a", 1)
        await trio.sleep(1)
        feed = fleet["shop"].pubsub.publishing.trees.feed
        assert feed is not None
        assert len(feed.places) == 12
        for node_id, place in feed.places.items():
            assert {ranks[child.node] for child in place.children} <= {ranks[node_id]}
        tasks.cancel_scope.cancel()
