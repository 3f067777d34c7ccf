"""Order over connections that break: what the former one still carries does not come after what the next one brings."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from tests.support.events import collect, missed, publish
from tests.support.meshes import Fleet, open_meshes

LATE = "late frame of a former session"


async def test_what_a_former_connection_still_carries_does_not_come_after_what_the_next_one_brings(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            await publish(a, "t", 0)
            await trio.sleep(1)
            fleet.network.latency = (1.0, 1.0)
            for number in range(1, 6):
                await publish(a, "t", number)
                await trio.sleep(0.01)
            fleet.network.latency = (0.001, 0.001)
            a.break_connections(b)
            await trio.sleep(0.1)
            for number in range(6, 11):
                await publish(a, "t", number)
                await trio.sleep(0.3)
            taken = await collect(events)
            assert [(event.payload, event.missed) for event in taken] == [
                (0, 0), (6, 5), (7, 0), (8, 0), (9, 0), (10, 0),
            ]  # fmt: skip
            assert b.mesh.refusals[LATE] == 5


async def change_the_network(fleet: Fleet, rng: random.Random) -> None:
    """Break connections, and make the next ones slower or faster."""
    while True:
        await trio.sleep(rng.expovariate(10))
        slowest = rng.choice([0.001, 0.03, 0.2])
        fleet.network.latency = (slowest / 2, slowest)
        fleet.nodes[rng.choice("abc")].break_connections()


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 25))])
async def test_order_holds_over_all_topics_and_every_gap_is_told_whatever_breaks(
    autojump_clock: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    async with open_meshes("a", "b", "c", seed=seed) as fleet:
        a = fleet["a"]
        async with fleet["b"].pubsub.subscribe(">") as one, fleet["c"].pubsub.subscribe(">") as two:
            for topic in "xy":
                await publish(a, topic, 0)
            await trio.sleep(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(change_the_network, fleet, rng)
                for number in range(1, 500):
                    await publish(a, rng.choice("xy"), number)
                    if rng.random() < 0.3:
                        await trio.sleep(rng.uniform(0, 0.02))
                nursery.cancel_scope.cancel()
            fleet.network.latency = (0.001, 0.001)
            await trio.sleep(5)
            for topic in "xy":
                await publish(a, topic, 500)
            for subscription in (one, two):
                taken = await collect(subscription)
                numbers = [event.payload for event in taken]
                assert numbers == sorted(numbers)
                assert len(taken) + missed(taken) == a.pubsub.publishing.published
