"""A world for tests of the simulation: three members that echo, and one who asks.

``python -m tests.support.simulated 20 180`` prints the digest of the run of each of 20 seeds, of 180 s each.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import trio

import iris
import iris.testing
from iris.testing.faults import CHAOS, Schedule
from iris.testing.running import run_once


async def member() -> None:
    """A member of ``echo``."""
    service = iris.Service("echo")

    @service.request
    async def answer(request: iris.Request) -> object:
        await trio.sleep(0.01)
        return request.payload

    async with iris.open_node("echo") as node, node.join("echo", service), node.subscribe("news.>") as news:
        async for event in news:
            assert event.payload is not None


async def echoes(world: iris.testing.World) -> None:
    """Ask and publish until the faults are over, and see that everybody answers."""
    for host in "abc":
        world.start(host, member)
    async with iris.open_node("desk") as node:
        async for number in world.every(2.0):
            await node.publish("news.number", number)
            with suppress(iris.DeliveryError):
                await node.request("echo", number, timeout=5.0, options=iris.RequestOptions(idempotent=True))
        await world.wait_healed()
        await iris.testing.check_answers(node, "echo")


def main(seeds: int, seconds: float) -> None:
    """Print the digests."""
    for seed in range(seeds):
        run = run_once(echoes, Schedule(seed=seed, seconds=seconds), CHAOS)
        assert run.error is None, run.error
        sys.stdout.write(f"{run.trace.digest}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
