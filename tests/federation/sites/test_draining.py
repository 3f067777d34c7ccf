"""A gateway that leaves has all nodes turn to other gateways first: no message in flight is lost."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.gateway import Gateway, open_gateway, open_gateway_parts
from iris.kernel.config import Config
from iris.testing import Network, open_network
from tests.support.federations import EVERYTHING, Heard, echo, gateway_url, open_federation


async def be_gateway(
    network: Network,
    site: str,
    number: int,
    ending: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    other = {"us": "eu", "eu": "us"}[site]
    async with (
        network.open_node("gateway", host=f"{site}-{number}", site=site) as node,
        open_gateway(
            node,
            listen=[gateway_url(f"{site}-{number}")],
            peers=[gateway_url(f"{other}-{each}") for each in (1, 2)],
            policy=EVERYTHING,
        ) as gateway,
    ):
        with trio.move_on_after(2):  # there is none yet at the site that comes up later
            await gateway.wait_for_site(other)
        task_status.started()
        await ending.wait()


@pytest.mark.parametrize("site", ["us", "eu"])
async def test_no_request_fails_when_gateways_are_restarted_one_after_the_other(
    site: str, autojump_clock: MockClock
) -> None:
    outcomes: Counter[str] = Counter()
    over = trio.Event()
    async with open_network(seed=3) as network, trio.open_nursery() as nursery:
        network.memory.latency = (0.02, 0.02)
        endings = {(at, number): trio.Event() for at in ("us", "eu") for number in (1, 2)}
        for (at, number), ending in endings.items():
            await nursery.start(be_gateway, network, at, number, ending)
        async with (
            network.open_node("store", site="eu") as member,
            member.join("store", echo("store")),
            network.open_node("shop", site="us") as shop,
        ):
            await shop.wait_for("store")

            async def ask() -> None:
                while not over.is_set():
                    try:
                        await shop.request("store", b"x", timeout=20)
                    except iris.IrisError as error:
                        outcomes[str(error)] += 1
                    else:
                        outcomes["reply"] += 1

            async with trio.open_nursery() as asking:
                for _ in range(4):
                    asking.start_soon(ask)
                for number in (1, 2):
                    await trio.sleep(1)
                    endings[site, number].set()
                    await trio.sleep(1)
                    endings[site, number] = trio.Event()
                    await nursery.start(be_gateway, network, site, number, endings[site, number])
                await trio.sleep(1)
                over.set()
        for ending in endings.values():
            ending.set()
    assert set(outcomes) == {"reply"}
    assert outcomes["reply"] > 100


@pytest.mark.parametrize("site", ["us", "eu"])
async def test_no_event_is_lost_when_gateways_are_restarted_one_after_the_other(
    site: str, autojump_clock: MockClock
) -> None:
    over = trio.Event()
    heard: list[int] = []
    missed: list[int] = []
    published = 0
    async with open_network(seed=3) as network, trio.open_nursery() as nursery:
        network.memory.latency = (0.001, 0.1)
        endings = {(at, number): trio.Event() for at in ("us", "eu") for number in (1, 2)}
        for (at, number), ending in endings.items():
            await nursery.start(be_gateway, network, at, number, ending)
        async with (
            network.open_node("ear", site="eu") as ear,
            ear.subscribe("orders.>") as events,
            network.open_node("other", site="eu") as other,
            other.subscribe("orders.>") as others,
            network.open_node("till", site="us") as till,
        ):
            await trio.sleep(3)

            async def listen(subscription: iris.Subscription) -> None:
                async for event in subscription:
                    heard.append(event.payload)
                    missed.append(event.missed)

            async with trio.open_nursery() as listening:
                listening.start_soon(listen, events)
                listening.start_soon(listen, others)

                async def publish() -> None:
                    nonlocal published
                    while not over.is_set():
                        await till.publish("orders.new", published)
                        published += 1
                        await trio.sleep(0.025)

                listening.start_soon(publish)
                for number in (1, 2):
                    await trio.sleep(0.5)
                    endings[site, number].set()
                    await trio.sleep(4)
                    endings[site, number] = trio.Event()
                    await nursery.start(be_gateway, network, site, number, endings[site, number])
                await trio.sleep(1)
                over.set()
                await trio.sleep(2)
                listening.cancel_scope.cancel()
        for ending in endings.values():
            ending.set()
    counts = Counter(heard)
    lost = [number for number in range(published) if counts[number] != 2]
    assert (lost, sum(missed)) == ([], 0)


@pytest.mark.parametrize(
    ("site", "beside", "latency"),
    [
        ("us", 0, (0.001, 0.1)),
        ("eu", 0, (0.001, 0.1)),
        # Two gateways of the other site, to each of which the other one seems to lead there for a moment.
        ("eu", 1, (0.0001, 0.002)),
    ],
)
async def test_no_event_is_lost_when_the_only_gateway_of_a_site_is_replaced(
    site: str, beside: int, latency: tuple[float, float], autojump_clock: MockClock
) -> None:
    received: list[tuple[int, int]] = []
    published = 0
    over = trio.Event()
    async with open_network(seed=3) as network, trio.open_nursery() as nursery:
        network.memory.latency = latency
        endings = {at: trio.Event() for at in ("us", "eu")}
        for at, ending in endings.items():
            await nursery.start(be_gateway, network, at, 1, ending)
        if beside:
            await nursery.start(be_gateway, network, "us", 2, endings["us"])
        async with (
            network.open_node("ear", site="eu") as ear,
            ear.subscribe("orders.>") as events,
            network.open_node("till", site="us") as till,
        ):
            await trio.sleep(3)

            async def listen() -> None:
                async for event in events:
                    received.append((event.payload, event.missed))  # noqa: PERF401 -- at once

            async def publish() -> None:
                nonlocal published
                while not over.is_set():
                    await till.publish("orders.new", published)
                    published += 1
                    await trio.sleep(0.005)

            nursery.start_soon(listen)
            nursery.start_soon(publish)
            await trio.sleep(0.5)
            endings[site].set()
            await trio.sleep(2)
            endings[site] = trio.Event()
            await nursery.start(be_gateway, network, site, 1, endings[site])
            await trio.sleep(6)
            over.set()
            await trio.sleep(2)
            books = await till.books("orders.new")
        for ending in endings.values():
            ending.set()
    assert received == [(number, 0) for number in range(published)]
    assert (books.sent, books.received, books.balanced) == (published, published, True)


async def test_events_for_a_site_that_never_comes_back_are_given_up_and_hold_up_nobody(
    autojump_clock: MockClock,
) -> None:
    async with open_federation(seed=5) as federation:
        federation.network.memory.latency = (0.02, 0.02)
        heard: list[Heard] = []
        await federation.gateway("eu")
        ending, took = trio.Event(), trio.Event()
        closing = 0.0

        async def be_second_gateway() -> None:
            nonlocal closing
            async with federation.network.open_parts("gateway", host="us-gateway", site="us") as (node, _):
                async with open_gateway_parts(
                    node, listen=[gateway_url("us-gateway")], peers=[gateway_url("eu-gateway")], policy=EVERYTHING
                ) as opened:
                    gateways.append(opened.gateway)
                    await ending.wait()
                    closing = trio.current_time()
                closing = trio.current_time() - closing
            took.set()

        gateways: list[Gateway] = []
        federation.nursery.start_soon(be_second_gateway)
        await trio.sleep(3)
        await federation.listen("eu", "orders.>", heard)
        till = await federation.node("us", "till")
        await trio.sleep(3)
        await till.publish("orders.new", "warm")
        await trio.sleep(1)
        assert [event.payload for event in heard] == ["warm"]

        async def publish() -> None:
            for _ in range(1000):
                await till.publish("orders.new", bytes(100))
                await trio.sleep(0.002)

        federation.nursery.start_soon(publish)
        await trio.sleep(0.5)
        federation.crash("eu-gateway")
        federation.crash("eu-ear-1")
        await trio.sleep(20)
        waiting = gateways[0].statistics()
        assert waiting.waiting_bytes > 0
        assert "no route" not in waiting.refused
        await trio.sleep(Config().site_patience)
        given_up = gateways[0].statistics()
        assert (given_up.waiting_bytes, given_up.refused["no route"] > 0) == (0, True)
        assert till.statistics().refusals["copy for another site: no route"] > 500
        ending.set()
        await took.wait()
        assert closing < Config().drain_timeout / 2
