"""Clients of a bridge: they consume, take jobs and hold leases; what they would publish they cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import iris
from iris.node.node import Node
from iris.spark_bridge.client import BridgeClient
from iris.testing import open_network
from tests.support.bridge_members import open_member


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """A member and a client; the client comes by the member, and not by the bridge."""
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["orders.>", "jobs", "jobs.dead"]),
        network.open_node("desk", host="desk") as desk,
        network.open_node("reader", client=True, seeds=["desk"]) as client,
    ):
        await desk.wait_for("bridge")
        yield desk, client


async def test_a_client_consumes_a_log(nodes: tuple[Node, Node]) -> None:
    desk, client = nodes
    for number in range(10):
        await desk.publish_confirmed("orders.new", number)
    found: list[object] = []
    async with client.bridge().consume("orders.>", group="billing") as orders:
        with trio.fail_after(30):
            while len(found) < 10:
                async with await anext(orders) as batch:
                    found += [event.payload for event in batch]
    assert found == list(range(10))


async def test_a_client_takes_jobs_and_puts_none(nodes: tuple[Node, Node]) -> None:
    desk, client = nodes
    async with desk.bridge().queue("jobs") as jobs, client.bridge().queue("jobs") as work:
        await jobs.put({"order": 7})
        with trio.fail_after(30):
            async for job in work.receive():
                async with job:
                    assert job.payload == {"order": 7}
                break
        with pytest.raises(iris.ConfigError, match="is a client and cannot publish"):
            await work.put(1)


async def test_a_client_holds_a_lease(nodes: tuple[Node, Node]) -> None:
    _, client = nodes
    async with client.bridge().lease("nightly") as first:
        assert first.token
    async with client.bridge().lease("nightly") as second:
        assert second.token > first.token


async def test_a_client_reads_ranges_and_sees_the_shards(nodes: tuple[Node, Node]) -> None:
    desk, client = nodes
    await desk.publish_confirmed("orders.new", b"x")
    bridge = BridgeClient(client, "bridge", patience=10)
    (shard,) = await bridge.shards()
    assert (shard.earliest, shard.next) == (0, 1)
    parts = [part async for part in bridge.read(shard.address, shard.id, 0, 1)]
    assert sum(chunk.count for part in parts for chunk in part) == 1
