"""The publisher of the demo, with a bridge on a network in memory: what counts as published, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.demo import publisher
from iris.demo.control import Report, parse_report
from iris.demo.publisher import _publish_all, _publish_first
from tests.support.stages import Stage, open_stage

Captured = pytest.CaptureFixture[str]

EVENTS = [(f"flights.JFK.{'AB'[number % 2]}", str(number).encode()) for number in range(600)]


class Bridge:
    """A durable subscriber that keeps what it confirms."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, bytes]] = []

    async def store(self, node: iris.Node) -> None:
        async with node.subscribe("flights.>", durable=True, overflow="wait") as events:
            async for event in events:
                self.kept.append((event.topic, event.payload))
                await events.confirm([event])


@pytest.fixture
def airport(monkeypatch: pytest.MonkeyPatch) -> trio.MemorySendChannel[str]:
    """The other end of the publisher's orders; its flights are ``EVENTS``."""
    sender, receiver = trio.open_memory_channel[str](10)

    async def orders() -> AsyncGenerator[str]:
        async for order in receiver:
            yield order

    monkeypatch.setattr(publisher, "receive_orders", orders)
    monkeypatch.setattr(publisher, "read_flights", first_events)
    monkeypatch.setattr(publisher, "flight_events", iter)
    return sender


def first_events(rows: int) -> list[tuple[str, bytes]]:
    return EVENTS[:rows]


def on_stage(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``iris.open_node`` open nodes on this stage."""

    @asynccontextmanager
    async def open_node(name: str) -> AsyncGenerator[iris.Node]:
        async with stage.network.open_node(name) as node:
            yield node

    monkeypatch.setattr(iris, "open_node", open_node)


def reports(capsys: Captured) -> list[Report]:
    return [parse_report(line.encode()) for line in capsys.readouterr().out.splitlines()]


async def publish(rows: int, airport: trio.MemorySendChannel[str], bridge: Bridge, stage: Stage) -> None:
    """Run the publisher until it has nothing more to say, beside a bridge that starts a second later."""
    member = await stage.member(iris.Service("bridge"))
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as publishing:
            publishing.start_soon(_publish_all, rows)
            await airport.send("publish")
            await trio.sleep(1)
            nursery.start_soon(bridge.store, member)
            await trio.sleep(60)
            await airport.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("rows", [1, 2, 511, 600])
async def test_every_flight_is_on_the_bridge_once_and_confirmed(
    rows: int,
    airport: trio.MemorySendChannel[str],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    capsys: Captured,
) -> None:
    bridge = Bridge()
    async with open_stage() as stage:
        on_stage(stage, monkeypatch)
        await publish(rows, airport, bridge, stage)
    assert Counter(bridge.kept) == Counter(EVENTS[:rows])
    said = reports(capsys)
    assert said[0] == Report("news", "ready")
    result: dict[str, Any] = said[-1].value
    assert result["confirmed"] == rows
    counters = result["counters"]
    assert counters["sent"] == counters["handed_over"] == rows


async def test_without_the_order_nothing_is_published(
    airport: trio.MemorySendChannel[str], monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, capsys: Captured
) -> None:
    bridge = Bridge()
    async with trio.open_nursery() as nursery, open_stage() as stage:
        on_stage(stage, monkeypatch)
        member = await stage.member(iris.Service("bridge"))
        nursery.start_soon(bridge.store, member)
        await airport.aclose()
        await _publish_all(5)
        nursery.cancel_scope.cancel()
    assert reports(capsys) == [Report("news", "ready")]
    assert bridge.kept == []


async def test_a_bridge_that_never_subscribes_is_given_up_after_twenty_seconds(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await stage.member(iris.Service("bridge"))
        node = await stage.node("publisher")
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await _publish_first(node, *EVENTS[0])
        assert trio.current_time() - began == pytest.approx(20, abs=0.1)


async def test_without_a_bridge_the_publisher_says_what_is_missing(
    airport: trio.MemorySendChannel[str], monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with open_stage() as stage:
        on_stage(stage, monkeypatch)
        with pytest.raises(iris.RequestTimeout, match="cluster 'bridge' has 0 of 1 members after 20 s"):
            await _publish_all(5)
