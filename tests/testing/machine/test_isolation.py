"""Programs get the simulation's machine, also where they do not know of it."""

from __future__ import annotations

import time

import trio

import iris
import iris.testing
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing.faults import Schedule
from iris.testing.network import EPOCH
from iris.testing.running import run_once


def test_a_bridge_stores_events_with_the_date_of_the_simulation() -> None:
    dates: list[float] = []

    async def bridge(world: iris.testing.World) -> None:
        async with (
            iris.open_node("bridge") as node,
            open_bridge(node, topics=["jobs"], directory=world.directory() / "log"),
        ):
            await trio.sleep_forever()

    async def body(world: iris.testing.World) -> None:
        world.start("a", bridge, world)
        async with iris.open_node("desk") as node:
            await node.wait_for("bridge", timeout=30)
            await trio.sleep_until(100)
            async with node.bridge().queue("jobs") as jobs:
                await jobs.put("one")
                async with await anext(jobs.receive()) as job:
                    dates.extend((job.timestamp, time.time()))  # noqa: TID251 -- as programs do

    run = run_once(body, Schedule(seed=1, seconds=1.0))
    assert run.error is None, run.error
    stored, now = dates
    assert EPOCH + 100 < stored < now < EPOCH + 110
