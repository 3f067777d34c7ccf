"""The publisher of the demo, with a bridge on a network in memory: what counts as published, and how often."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.demo.progress import Progress
from iris.demo.publisher import _publish_first, publish_all
from tests.support.stages import open_stage

EVENTS = [(f"flights.JFK.{'AB'[number % 2]}", str(number).encode()) for number in range(600)]


class Bridge:
    """A durable subscriber that keeps what it confirms."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, bytes]] = []

    async def store(self, node: iris.Node) -> None:
        async with node.subscribe_durable("flights.>", overflow="wait") as events:
            async for event in events:
                self.kept.append((event.topic, event.payload))
                await events.confirm([event])


@pytest.mark.parametrize("rows", [1, 2, 511, 600])
async def test_every_flight_is_on_the_bridge_once_and_confirmed(rows: int, autojump_clock: MockClock) -> None:
    """Also if the bridge subscribes only a second later."""
    bridge, progress = Bridge(), Progress()
    async with open_stage() as stage:
        member = await stage.member(iris.Service("bridge"))
        node = await stage.node("publisher")

        async def subscribe_later() -> None:
            await trio.sleep(1)
            await bridge.store(member)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscribe_later)
            result = await publish_all(node, iter(EVENTS[:rows]), progress)
            nursery.cancel_scope.cancel()
    assert Counter(bridge.kept) == Counter(EVENTS[:rows])
    assert result["confirmed"] == progress.done == rows
    counters = result["counters"]
    assert counters["sent"] == counters["handed_over"] == rows


async def test_a_bridge_that_never_subscribes_is_given_up_after_twenty_seconds(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await stage.member(iris.Service("bridge"))
        node = await stage.node("publisher")
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await _publish_first(node, *EVENTS[0])
        assert trio.current_time() - began == pytest.approx(20, abs=0.1)
