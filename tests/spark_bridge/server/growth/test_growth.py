"""A bridge gets more shards while publishers and readers go on: once each, and in order by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import ConfigError, NotAllowed
from iris.node.node import Node
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.growth.grow import grow
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network


@asynccontextmanager
async def open_member(
    network: Network, directory: Path, shard: int, of: int, **options: Any
) -> AsyncIterator[BridgeMember]:
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, topics=["t"], directory=directory / str(shard), shards=[shard], of=of, **options) as member,
    ):
        yield member


async def read_all(client: BridgeClient) -> dict[int, list[tuple[str, int]]]:
    """Return key and number of every event, by shard in order."""
    found: dict[int, list[tuple[str, int]]] = {}
    for shard in await client.shards():
        rows = found[shard.number] = []
        if shard.earliest < shard.next:
            async for chunks in client.read(shard.address, shard.id, shard.earliest, shard.next):
                for chunk in chunks:
                    columns = decode_events(chunk.data).to_pydict()
                    rows += [
                        (key.decode() if isinstance(key, bytes) else key, int(value))
                        for key, value in zip(columns["key"], columns["value"], strict=True)
                    ]
    return found


async def test_shards_are_added_while_a_publisher_goes_on(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        network.open_node("publisher") as publisher,
        trio.open_nursery() as nursery,
    ):
        client = BridgeClient(operator, "bridge", patience=30)
        for shard in (0, 1):
            await nursery.start(run_member, network, tmp_path, shard, 2)
        confirmed: list[int] = []
        grown = trio.Event()

        async def publish() -> None:
            number = 0
            async with publisher.confirming(timeout=60) as events:
                while not grown.is_set() or number < 500:
                    await events.publish("t", b"%d" % number, key=f"k{number % 23}")
                    number += 1
                    await trio.sleep(0.001)
            confirmed.append(number)

        nursery.start_soon(publish)
        await trio.sleep(0.2)
        waits = [trio.Event(), trio.Event()]
        for shard, event in zip((2, 3), waits, strict=True):
            nursery.start_soon(run_member, network, tmp_path, shard, 4, event)
        for event in waits:
            await event.wait()
        done = await grow(client, 4)
        assert (done.before, done.of, len(done.marks)) == (2, 4, 2)
        await trio.sleep(0.2)
        grown.set()
        with trio.fail_after(60):
            while not confirmed:  # noqa: ASYNC110
                await trio.sleep(0.01)
        found = await read_all(client)
        numbers = [number for rows in found.values() for _, number in rows]
        assert sorted(numbers) == list(range(confirmed[0]))
        assert found[2] and found[3]
        by_key: dict[str, list[int]] = defaultdict(list)
        for shard in (0, 1, 2, 3):
            for key, number in found[shard]:
                by_key[key].append(number)
        for numbers in by_key.values():
            assert numbers == sorted(numbers)
        nursery.cancel_scope.cancel()


async def run_member(
    network: Network,
    directory: Path,
    shard: int,
    of: int,
    waits: trio.Event | None = None,
    *,
    task_status: trio.TaskStatus[BridgeMember] = trio.TASK_STATUS_IGNORED,
) -> None:
    options: dict[str, Any] = {} if waits is None else {"waiting": lambda _: waits.set()}
    async with open_member(network, directory, shard, of, **options) as member:
        task_status.started(member)
        await trio.sleep_forever()
