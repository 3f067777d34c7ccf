"""Every public operation that needs a bridge, for a test that cancels it at each step."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

import iris
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network

LONG = 600.0
"""Seconds of a lease: what is left behind is not gone by itself while a test runs."""


@dataclass
class BridgeCast:
    """A bridge, and a node that uses it and is a member of the cluster ``workers``."""

    bridge: iris.Node
    shop: iris.Node


_numbers = itertools.count()


def _paid() -> iris.Service:
    service = iris.Service("paid", outcomes=iris.Outcomes(rerun=True))

    @service.request("undo")
    @service.request
    async def pay(request: iris.Request) -> object:
        await trio.lowlevel.checkpoint()
        return request.payload

    return service


@asynccontextmanager
async def open_bridge_cast(directory: Path) -> AsyncIterator[BridgeCast]:
    """Bring both up, on the real clock: the bridge's log works in threads."""
    async with (
        open_network() as network,
        network.open_node("bridge") as bridge,
        open_bridge(bridge, topics=["jobs", "orders"], directory=directory),
        network.open_node("shop") as shop,
        shop.join("workers", iris.Service("workers")),
        shop.join("paid", _paid()),
    ):
        await shop.wait_for("bridge", timeout=60)
        yield BridgeCast(bridge, shop)


async def wait_given_back(cast: BridgeCast) -> None:
    """Wait until no worker has a job in hand, as the bridge has it."""
    while (await cast.shop.request("bridge", {"group": "queue/jobs"}, operation="queue"))["in_hand"]:  # noqa: ASYNC110
        await trio.sleep(0.001)


async def queue(cast: BridgeCast) -> None:
    async with cast.shop.bridge().queue("jobs", lease=LONG) as jobs:
        await jobs.put(b"x", timeout=60)
        job = await anext(jobs.receive())
        async with job:
            await job.commit()


async def consume(cast: BridgeCast) -> None:
    await cast.shop.publish_confirmed("orders", b"x", timeout=60)
    async with cast.shop.bridge().consume("orders", group="billing") as orders, await anext(orders) as batch:
        await batch.commit()


async def look(cast: BridgeCast) -> None:
    async with cast.shop.bridge().consume("orders", until="now") as orders:
        async for batch in orders:
            assert len(batch)


async def drop_group(cast: BridgeCast) -> None:
    with suppress(iris.ConfigError):  # it is gone
        await cast.bridge.bridge().drop_group("audit")


async def lease(cast: BridgeCast) -> None:
    async with cast.shop.bridge().lease("scheduler", ttl=LONG, timeout=5):
        pass


async def leader(cast: BridgeCast) -> None:
    async with cast.shop.bridge().lease("leader", cluster="workers", ttl=LONG, timeout=5):
        pass


async def keyed(cast: BridgeCast) -> None:
    assert (
        await cast.shop.request(
            "paid", 7, timeout=60, options=iris.RequestOptions(idempotency_key=f"key-{next(_numbers)}")
        )
        == 7
    )


async def saga(cast: BridgeCast) -> None:
    with suppress(iris.SagaUndone):
        async with cast.shop.bridge().saga(f"order-{next(_numbers)}", timeout=60) as steps:
            await steps.request("paid", 7, undo="undo")
            raise ValueError("no more of it")


OPERATIONS = (queue, consume, look, drop_group, lease, leader, keyed, saga)
