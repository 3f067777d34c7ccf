"""Shares of a member's queue: what one caller has waiting does not keep the others out."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.config import Config
from iris.kernel.errors import Overloaded
from iris.node.node import Node
from iris.node.open import OpenNode
from iris.testing import Network, open_network
from tests.support.request_arguments import request_arguments


class Desk:
    """A member that serves one request at a time, and four that wait; it begins to work on demand."""

    def __init__(self, network: Network, opened: OpenNode) -> None:
        self.network = network
        self.member, self.parts = opened
        self.served: list[Any] = []
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.go = trio.Event()
        self.seconds = 0.0

    async def ask(self, caller: Node, name: str, payload: Any = b"", **options: Any) -> None:
        try:
            await caller.request("desk", [name, payload], timeout=60, **request_arguments(**options))
        except Overloaded:
            self.outcomes[name, "Overloaded"] += 1
        else:
            self.outcomes[name, "reply"] += 1

    @property
    def waiting(self) -> int:
        return self.member.statistics().services["desk"].queued

    async def settle(self) -> None:
        with trio.fail_after(20):
            await trio.sleep(0.05)


@asynccontextmanager
async def open_desk(*, target: float = 60.0, **limits: Any) -> AsyncIterator[Desk]:
    async with (
        open_network() as network,
        network.open_parts("desk-node", config=Config(queue_delay_target=target)) as opened,
    ):
        desk = Desk(network, opened)
        service = iris.Service("desk")

        @service.request
        async def work(request: iris.Request) -> None:
            await desk.go.wait()
            await trio.sleep(desk.seconds)
            desk.served.append(request.payload[0])

        given: dict[str, Any] = {"concurrency": 1, "queue": 4, **limits}
        async with desk.member.join("desk", service, limits=iris.Limits(**given)):
            yield desk


@pytest.mark.parametrize("priority", ["low", "normal", "high"])
async def test_a_caller_that_fills_the_queue_leaves_the_others_their_share(
    autojump_clock: MockClock, priority: str
) -> None:
    async with open_desk() as desk:
        async with (
            desk.network.open_node("flood") as flood,
            desk.network.open_node("flood") as other,
            desk.network.open_node("shop") as shop,
            trio.open_nursery() as nursery,
        ):
            for node in (flood, other, shop):
                await node.wait_for("desk")
            for _ in range(10):
                nursery.start_soon(lambda: desk.ask(flood, "flood", priority=priority))
                nursery.start_soon(lambda: desk.ask(other, "flood", priority=priority))
            await desk.settle()
            assert desk.waiting == 4
            for _ in range(2):
                nursery.start_soon(lambda: desk.ask(shop, "shop"))
            await desk.settle()
            assert ("shop", "Overloaded") not in desk.outcomes
            for _ in range(5):  # and what it has waiting stays, whatever they go on to send
                nursery.start_soon(lambda: desk.ask(flood, "flood", priority=priority))
            await desk.settle()
            desk.go.set()
        assert Counter(desk.served) == {"flood": 3, "shop": 2}
        assert desk.outcomes["shop", "reply"] == 2
        statistics = desk.member.statistics().services["desk"]
        assert statistics.received == statistics.served + statistics.refused == 27


async def test_a_flood_of_important_requests_leaves_the_others_every_second_turn(autojump_clock: MockClock) -> None:
    async with open_desk(queue=100) as desk:
        desk.seconds = 0.01

        async def flood_on(caller: Node) -> None:
            for _ in range(30):
                await desk.ask(caller, "flood", priority="high")

        async with (
            desk.network.open_node("flood") as flood,
            desk.network.open_node("shop") as shop,
            trio.open_nursery() as nursery,
        ):
            for node in (flood, shop):
                await node.wait_for("desk")
            for _ in range(3):
                nursery.start_soon(flood_on, flood)
            nursery.start_soon(partial(desk.ask, flood, "normal"))  # which nobody has to wait for longer
            for _ in range(10):
                nursery.start_soon(partial(desk.ask, shop, "shop"))
            await desk.settle()
            desk.go.set()
        assert Counter(desk.served[:24])["shop"] == 10, desk.served
        assert Counter(desk.served) == {"flood": 90, "shop": 10, "normal": 1}


async def test_important_requests_of_one_caller_alone_all_go_first(autojump_clock: MockClock) -> None:
    async with open_desk(queue=100) as desk, desk.network.open_node("shop") as shop, trio.open_nursery() as nursery:
        await shop.wait_for("desk")
        for name in ("first", *["normal"] * 5, *["high"] * 5):
            nursery.start_soon(partial(desk.ask, shop, name, priority="high" if name == "high" else None))
            await desk.settle()
        desk.go.set()
    assert desk.served == ["first", *["high"] * 5, *["normal"] * 5]


async def test_shares_are_counted_in_bytes_as_well(autojump_clock: MockClock) -> None:
    async with open_desk(queue=100, queue_bytes=100_000) as desk:
        async with (
            desk.network.open_node("large") as large,
            desk.network.open_node("small") as small,
            trio.open_nursery() as nursery,
        ):
            for node in (large, small):
                await node.wait_for("desk")
            for _ in range(6):
                nursery.start_soon(lambda: desk.ask(large, "large", bytes(30_000)))
            await desk.settle()
            for _ in range(10):
                nursery.start_soon(lambda: desk.ask(small, "small", bytes(2_000)))
            await desk.settle()
            desk.go.set()
        assert desk.outcomes["small", "reply"] == 10
        assert Counter(desk.served)["large"] >= 3


async def test_one_caller_alone_has_the_whole_queue_and_several_share_it_evenly(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        async with desk.network.open_node("a") as a, desk.network.open_node("b") as b, trio.open_nursery() as nursery:
            for node in (a, b):
                await node.wait_for("desk")
            for _ in range(5):
                nursery.start_soon(lambda: desk.ask(a, "a"))
            await desk.settle()
            assert (desk.waiting, desk.outcomes) == (4, {})
            for _ in range(10):
                nursery.start_soon(lambda: desk.ask(b, "b"))
            await desk.settle()
            desk.go.set()
        assert Counter(desk.served) == {"a": 3, "b": 2}


async def test_under_overload_a_caller_with_little_is_served(autojump_clock: MockClock) -> None:
    async with open_desk(target=0.02, queue=1000) as desk:
        desk.seconds = 0.01
        desk.go.set()
        async with desk.network.open_node("flood") as flood, desk.network.open_node("shop") as shop:
            for node in (flood, shop):
                await node.wait_for("desk")
            async with trio.open_nursery() as nursery:
                for turn in range(600):  # five times what there is, and a fifth of it
                    for _ in range(2):
                        nursery.start_soon(lambda: desk.ask(flood, "flood"))
                    if turn % 12 == 0:
                        nursery.start_soon(lambda: desk.ask(shop, "shop"))
                    await trio.sleep(0.004)
        assert desk.outcomes["shop", "reply"] >= 48, desk.outcomes
        assert sum(desk.outcomes[name, "reply"] for name in ("flood", "shop")) >= 0.9 * 240


async def test_what_waits_is_counted_as_long_as_it_waits(autojump_clock: MockClock) -> None:
    async with open_desk() as desk:
        pool = desk.parts.patterns.serving.memberships["desk"]
        async with desk.network.open_node("a") as a, desk.network.open_node("b") as b:
            async with trio.open_nursery() as nursery:
                for node in (a, b):
                    await node.wait_for("desk")
                    for _ in range(3):
                        nursery.start_soon(partial(desk.ask, node, "x", priority="high"))
                await desk.settle()
                assert sum(pool._waiting.values()) > 0
                nursery.start_soon(trio.sleep, 1)
                desk.go.set()
            assert (pool._waiting, pool._bytes) == ({}, 0)
