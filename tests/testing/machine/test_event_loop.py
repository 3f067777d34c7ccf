"""Programs of asyncio on the simulation's clock, with nodes of ``iris.aio``."""

from __future__ import annotations

import asyncio

import pytest
import trio

import iris
import iris.aio
import iris.testing
from iris.testing.faults import CALM, CHAOS, Crash, Faults, Schedule
from iris.testing.running import Run, run_once

ends: list[str] = []


async def serve() -> None:
    service = iris.Service("echo")

    @service.request
    async def answer(request: iris.Request) -> object:
        await asyncio.sleep(0.01)
        return request.payload

    try:
        async with iris.aio.open_node("echo") as node, node.join("echo", service):
            await asyncio.Event().wait()
    finally:
        ends.append("served")


async def ask(world: iris.testing.World) -> None:
    """Ask from asyncio, for a minute."""
    async with iris.aio.open_node("desk") as node:
        await node.wait_for("echo", timeout=30)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + 60:
            number = world.random.randrange(1000)
            assert (
                await node.request("echo", number, timeout=30, options=iris.RequestOptions(idempotent=True)) == number
            )
            await asyncio.sleep(1)
        assert await loop.run_in_executor(None, len, "four") == 4
        world.note("all was answered")


def simulated(faults: Faults, schedule: Schedule) -> Run:
    async def body(world: iris.testing.World) -> None:
        for host in "ab":
            world.start_asyncio(host, serve)
        world.start_asyncio("client", ask, world)
        await world.wait_healed()
        await trio.sleep(60)
        assert [entry for entry in world.trace.entries if entry.text == "all was answered"]

    return run_once(body, schedule, faults if faults.kinds else None)


def test_services_of_asyncio_run_in_virtual_time_and_the_same_seed_gives_the_same_run() -> None:
    runs = [simulated(CALM, Schedule(seed=3, seconds=30)) for _ in range(2)]
    assert [run.error for run in runs] == [None, None]
    assert runs[0].trace.digest == runs[1].trace.digest


def test_they_crash_and_start_anew() -> None:
    ends.clear()
    faults = (Crash(at=5, lasting=5, host="a"), Crash(at=15, lasting=5, host="b"))
    run = simulated(CALM, Schedule(seed=3, seconds=30, faults=faults))
    assert run.error is None, run.error
    assert len(ends) == 4, "two crashes, and the end"


@pytest.mark.long
def test_they_bear_everything() -> None:
    for seed in range(20):
        run = simulated(CHAOS, Schedule(seed=seed, seconds=300))
        assert run.error is None, (seed, run.error)
