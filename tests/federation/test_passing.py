"""Frames that travel alone pass a gateway without being decoded, unless something speaks against it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.routes.envelope import BEGIN, Envelope, begin_batch, end_batch
from iris.federation.gateway import Gateway
from iris.federation.policy import Policy
from iris.kernel import wire
from iris.kernel.link.link import Link
from iris.kernel.wire import kinds
from tests.support.federations import Federation, echo, open_federation
from tests.support.links import PlainSession, Way
from tests.support.messages import raw

FRAME = bytes((wire.DATA,)) + bytes(63)
"""Like a frame of a session; no session opens it."""


def count_decoded(federation: Federation, gateway: Gateway) -> Callable[[], int]:
    """Return how to learn how many frames a gateway has decoded before it forwarded them."""
    decoded = 0

    def count(message: kinds.Carry | kinds.Copy, was_decoded: bool) -> None:
        nonlocal decoded
        decoded += was_decoded and isinstance(message, kinds.Carry)

    federation.watch_frames(gateway, count)
    return lambda: decoded


async def two_sites(federation: Federation) -> tuple[iris.Node, iris.Node]:
    """Bring up a store in eu and a shop in us, which has asked it already."""
    shop = await federation.two_sites(echo("store"))
    assert await shop.request("store", 0) == 0
    await trio.sleep(1)
    return federation.nodes["eu-store"], shop


async def test_requests_one_at_a_time_pass_without_being_decoded(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        _, shop = await two_sites(federation)
        decoded = [count_decoded(federation, gateway) for gateway in federation.gateways.values()]
        before = [gateway.statistics() for gateway in federation.gateways.values()]
        for number in range(20):
            assert await shop.request("store", number) == number
            await trio.sleep(0.01)
        after = [gateway.statistics() for gateway in federation.gateways.values()]
        assert [count() for count in decoded] == [0, 0]
        for one, two in zip(before, after, strict=True):
            assert two.carried - one.carried >= 40
            assert two.received - one.received == two.carried - one.carried
            assert two.carried_bytes - one.carried_bytes > 40 * 32


async def test_what_passes_keeps_its_order_whether_it_was_decoded_or_not(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        store, shop = await two_sites(federation)
        heard: list[object] = []
        events = await federation.enter(store.subscribe("orders.>", group="all"))

        async def listen() -> None:
            async for event in events:
                heard.append(event.payload)  # noqa: PERF401 -- at once

        federation.nursery.start_soon(listen)
        await trio.sleep(1)
        for number in range(300):
            await shop.publish("orders.new", [number] * (number % 7 * 50))
            if number % 5 == 0:
                await trio.sleep(0.001)
        await trio.sleep(1)
        assert heard == [[number] * (number % 7 * 50) for number in range(300)]
        refused = [gateway.statistics().refused for gateway in federation.gateways.values()]
        assert refused == [{}, {}]


async def test_a_flow_is_found_out_anew_when_a_member_comes_back(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        _, shop = await two_sites(federation)
        for number in range(2):
            federation.network.memory.partition(["eu-store"], ["eu-gateway"])
            await trio.sleep(60)
            with pytest.raises(iris.IrisError):
                await shop.request("store", number, timeout=1)
            federation.network.memory.heal()
            await shop.wait_for("store", timeout=60)
            for step in range(5):
                await trio.sleep(0.01)
                assert await shop.request("store", step, timeout=10) == step


async def post_frame(federation: Federation, sender: iris.Node, envelope: Envelope, hops: int = 8) -> Gateway:
    """Hand a frame to the gateway of us as a node of it; return that gateway."""
    await trio.sleep(1)
    link = federation.parts[sender.id].mesh.peers[federation.nodes["us-gateway"].id].link
    assert link.send_alone(end_batch(begin_batch(envelope, hops), FRAME), len(FRAME))
    await trio.sleep(1)
    return federation.gateways["us-gateway"]


def node_bytes(node: iris.Node) -> bytes:
    return bytes.fromhex(node.id)


async def test_nobody_speaks_for_others_though_their_flow_is_known(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        store, shop = await two_sites(federation)
        stranger = await federation.node("us", "stranger")
        envelope = Envelope("eu", node_bytes(store), "us", node_bytes(shop))
        gateway = await post_frame(federation, shop, envelope)
        before = gateway.statistics()
        await post_frame(federation, shop, envelope)
        assert gateway.statistics().carried == before.carried + 1
        await post_frame(federation, stranger, envelope)
        assert gateway.statistics().carried == before.carried + 1
        refusals = federation.parts[federation.nodes["us-gateway"].id].mesh.refusals
        assert refusals["message of kind Carry"] == 1
        await post_frame(federation, shop, envelope)
        assert gateway.statistics().carried == before.carried + 2


async def test_a_frame_without_hops_left_goes_no_further(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        store, shop = await two_sites(federation)
        envelope = Envelope("eu", node_bytes(store), "us", node_bytes(shop))
        gateway = await post_frame(federation, shop, envelope, hops=0)
        assert gateway.statistics().refused == {"too many hops": 1}
        await post_frame(federation, shop, envelope, hops=1)
        assert federation.gateways["eu-gateway"].statistics().refused == {"too many hops": 1}


async def test_frames_that_need_a_look_are_looked_at(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"], policy=Policy(exports=(">",), transit=False))
        await federation.gateway("ap", to=["us-gateway"], rate=1_000_000.0)
        for site in ("eu", "us"):
            await federation.member(site, echo(f"store-{site}"))
        shop = await federation.node("ap", "shop")
        await shop.wait_for("store-us")
        assert await shop.request("store-us", 1) == 1
        await trio.sleep(1)
        us, ap = (federation.gateways[host] for host in ("us-gateway", "ap-gateway"))
        decoded = count_decoded(federation, ap)
        for number in range(5):
            assert await shop.request("store-us", number) == number
            await trio.sleep(0.01)
        assert decoded() == 5, "replies, each of which counts towards the rate; requests are under none"
        link = federation.between[ap].peers[federation.nodes["us-gateway"].id].link
        store = federation.nodes["eu-store-eu"]
        for envelope, reason in (
            (Envelope("eu", node_bytes(store), "ap", node_bytes(shop)), "no transit"),
            (Envelope("eu", node_bytes(store), "us", node_bytes(shop)), "comes from this site and from outside"),
        ):
            batch = end_batch(begin_batch(envelope, 8), FRAME)
            assert batch[BEGIN:]
            for _ in range(2):
                assert link.send_alone(batch, len(FRAME))
                await trio.sleep(1)
            assert us.statistics().refused[reason] == 2


def stop_link(federation: Federation, gateway: Gateway, to: iris.Node) -> tuple[Link, Way]:
    """Have the link between two gateways lead to a way that takes nothing."""
    link = federation.between[gateway].peers[to.id].link
    way = Way(room=0)
    link.use(PlainSession())
    link.attach(way)
    return link, way


async def test_large_frames_wait_for_a_busy_link_without_being_decoded_and_keep_their_order(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        store, shop = await two_sites(federation)
        gateway = federation.gateways["us-gateway"]
        decoded = count_decoded(federation, gateway)
        before = gateway.statistics()
        _, way = stop_link(federation, gateway, federation.nodes["eu-gateway"])
        beginning = begin_batch(Envelope("eu", node_bytes(store), "us", node_bytes(shop)), 8)
        link = federation.parts[shop.id].mesh.peers[federation.nodes["us-gateway"].id].link
        frames = [FRAME + bytes((number,)) + bytes(40_000) for number in range(6)]
        frames.insert(3, FRAME + b"small")
        for frame in frames:
            link.post_encoded(end_batch(beginning, frame), len(frame))
        await trio.sleep(0.2)
        after = gateway.statistics()
        assert way.frames == []
        assert decoded() == 1, "the small one, which gathers with others"
        assert (after.received - before.received, after.carried - before.carried) == (7, 7)
        assert after.carried_bytes - before.carried_bytes == sum(map(len, frames))
        way.make_room(100)
        await trio.sleep(0.2)
        sent = [message for message in way.messages if message[0] == raw(kinds.Carry)[0]]
        assert [message[-1] for message in sent] == frames
        assert {message[1] for message in sent} == {7}


async def test_large_frames_beyond_the_bound_of_a_link_are_dropped_and_counted_and_their_sender_told(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        store, shop = await two_sites(federation)
        gateway = federation.gateways["us-gateway"]
        before = gateway.statistics()
        busy, _ = stop_link(federation, gateway, federation.nodes["eu-gateway"])
        beginning = begin_batch(Envelope("eu", node_bytes(store), "us", node_bytes(shop)), 8)
        link = federation.parts[shop.id].mesh.peers[federation.nodes["us-gateway"].id].link
        frame = FRAME + bytes(2**20 - 64)
        for _ in range(20):
            assert link.send_alone(end_batch(beginning, frame), len(frame))
            await trio.sleep(0.01)
        after = gateway.statistics()
        assert after.refused == {"next link full": 4}
        assert after.received - before.received - federation.gateway_parts[gateway].carrying.pressure.held == 20
        assert after.carried_bytes - before.carried_bytes == 16 * len(frame)
        assert 15 * 2**20 < busy.waiting_bytes <= 16 * 2**20
        assert federation.gateway_parts[gateway].carrying.pressure.held >= 1
        way = federation.parts[shop.id].mesh.outgoing_to(store.id)
        assert way is not None
        assert not way.send_nowait(FRAME), "it pauses"
