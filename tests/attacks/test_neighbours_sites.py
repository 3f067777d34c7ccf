"""Neighbours that change all the time, that leave, or whose clock differs: the others go on."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.gateway import open_gateway
from iris.kernel.names import NodeId
from tests.support.federations import EVERYTHING, echo, gateway_url, open_federation
from tests.support.two_realms import open_realms


@pytest.mark.long
async def test_members_that_come_and_go_are_exported_as_they_are_in_the_end(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        worker = await federation.node("eu", "worker")
        errors: Counter[str] = Counter()
        over = trio.Event()

        async def call() -> None:
            while not over.is_set():
                try:
                    assert await shop.request("store", 1, timeout=2) == 1
                except iris.IrisError as error:
                    errors[type(error).__name__] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            for number in range(60):
                async with worker.join(f"flap{number % 7}", echo(f"flap{number % 7}")):
                    await trio.sleep(0.025)
                async with worker.subscribe(f"flap.{number % 5}"):
                    await trio.sleep(0.025)
            async with worker.join("last", echo("last")), worker.subscribe("last.>"):
                await shop.wait_for("last")
                assert await shop.request("last", 3) == 3
                await trio.sleep(2)
                contents = federation.gateways["eu-gateway"]._advertising.exported
                assert set(contents.clusters) == {"store", "last"}
                assert set(contents.topics) == {"last.>"}
                assert [name for name in shop.clusters() if "flap" in name] == []
            over.set()
        assert not errors


@pytest.mark.parametrize("ahead", [250.0, -250.0])
async def test_a_site_whose_clock_differs_within_the_tolerance_is_as_any_other(
    autojump_clock: MockClock, ahead: float
) -> None:
    async with open_federation() as federation:
        for host in ("us-gateway", "us-shop"):
            federation.network.offsets[host] = ahead
        shop = await federation.two_sites(echo("store"))
        ear = await federation.node("eu", "ear")
        assert await shop.request("store", 1) == 1
        async with ear.subscribe("orders.>") as events, shop.open_tunnel("store") as tunnel:
            await trio.sleep(1)
            await shop.publish("orders.1", 1)
            with trio.fail_after(5):
                assert (await anext(events)).payload == 1
                await tunnel.send(b"x")
                assert await anext(tunnel) == b"x"


@pytest.mark.long
async def test_a_broadcast_reaches_each_member_once_while_a_gateway_drains(autojump_clock: MockClock) -> None:
    heard: Counter[tuple[int, int]] = Counter()
    async with open_federation() as federation:
        for site in ("us", "eu"):
            for name in ("gateway", "second"):
                others = ["us-gateway", "us-second"] if site == "eu" else []
                if (site, name) != ("us", "second"):
                    await federation.gateway(site, name=name, to=others)
        leaving = await federation.node("us", "second")
        for number in range(4):
            service = iris.Service("store")

            @service.broadcast
            async def take(message: iris.Message, number: int = number) -> None:
                heard[number, message.payload] += 1

            await federation.member("eu", service, f"store{number}")
        shop = await federation.node("us", "shop")
        async with open_gateway(leaving, listen=[gateway_url("us-second")], peers=[], policy=EVERYTHING) as gateway:
            await gateway.wait_for_site("eu")
            await shop.wait_for("store", members=4)
            await trio.sleep(1)
            async with trio.open_nursery() as nursery:

                async def say() -> None:
                    for count in range(60):
                        await shop.broadcast("store", count)
                        await trio.sleep(0.05)

                nursery.start_soon(say)
                await trio.sleep(1)
                await gateway.drain()
        await trio.sleep(3)
    assert heard == Counter({(number, count): 1 for number in range(4) for count in range(60)})


async def test_gateways_in_every_ring_bring_each_event_once(autojump_clock: MockClock) -> None:
    """Each gateway dials all, itself as well, and each twice."""
    async with open_federation() as federation:
        sites = ("eu", "us", "ap")
        hosts = [f"{site}-gateway" for site in sites]
        for site in sites:
            await federation.gateway(site, to=[*hosts, *hosts])
        await federation.wait_for_sites(*sites)
        ears = [await federation.node(site, "ear") for site in sites]
        till = await federation.node("eu", "till")
        seen: Counter[str] = Counter()

        async with trio.open_nursery() as nursery:

            async def listen(ear: iris.Node, task_status: trio.TaskStatus[None]) -> None:
                async with ear.subscribe("orders.>") as events:
                    task_status.started()
                    async for event in events:
                        seen[f"{ear.site} {event.payload}"] += 1

            for ear in ears:
                await nursery.start(listen, ear)
            await trio.sleep(3)
            for number in range(20):
                await till.publish("orders.1", number)
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
        assert seen == Counter({f"{site} {number}": 1 for site in sites for number in range(20)})


async def test_the_longest_names_cross_and_longer_ones_cost_their_owner_only(autojump_clock: MockClock) -> None:
    name = "n" * 128
    async with open_federation() as federation:
        shop = await federation.two_sites(echo(name))
        assert await shop.request(name, 1) == 1
        assert await shop.request(f"{name}@eu", 2) == 2


async def test_what_a_node_of_another_realm_subscribes_to_changes_at_the_cost_of_the_change(
    autojump_clock: MockClock,
) -> None:
    async with open_realms() as realms:
        realms.introduce(topics=("orders.>",))
        await realms.link()
        till = await realms.theirs.node("eu", "till")
        ear = await realms.ours.node("eu", "ear")
        async with ear.subscribe("acme/orders.1") as events:
            await trio.sleep(2)
            await till.publish("orders.1", 1)
            with trio.fail_after(5):
                assert (await anext(events)).payload == 1
            gateway = realms.ours.gateways["eu-gateway"]
            before = gateway._advertising.exported.version
            told = gateway.statistics().sent
            for number in range(20):
                async with ear.subscribe(f"acme/orders.{number + 2}"):
                    await trio.sleep(0.05)
            await trio.sleep(1)
            assert gateway._advertising.exported.version - before <= 40
            assert gateway.statistics().sent - told <= 60
            assert {*gateway._advertising.exported.topics} == {f"{till.realm}/orders.1"}
            assert NodeId(ear.id) in till._mesh.peers
            await till.publish("orders.1", 2)
            with trio.fail_after(5):
                assert (await anext(events)).payload == 2
