"""A bridge that one machine does not carry any more: its members move, or one of more shards takes over from it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

import iris
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network

KEYS = 7


@asynccontextmanager
async def open_members(
    network: Network, directory: Path, of: int, *, name: str = "bridge", topics: Sequence[str] = ("t",), host: str = "h"
) -> AsyncIterator[None]:
    """A bridge of members with one shard each."""
    async with AsyncExitStack() as stack:
        for shard in range(of):
            node = await stack.enter_async_context(network.open_node(name, host=f"{name}-{host}{shard}"))
            await stack.enter_async_context(
                open_bridge(
                    node, topics=topics, directory=directory / name / str(shard), name=name, shards=[shard], of=of
                )
            )
        yield


async def publish(node: iris.Node, numbers: range) -> None:
    for number in numbers:
        await node.publish_confirmed("t", number, key=f"k{number % KEYS}", timeout=60)


async def read(node: iris.Node, name: str, count: int) -> list[int]:
    """Read so many events as a group, in batches that are committed."""
    found: list[int] = []
    with trio.fail_after(60):
        async with node.bridge(name).consume("t", group="readers") as batches:
            while len(found) < count:
                async with await anext(batches) as batch:
                    found += [event.payload for event in batch]
    return found


def check_once_and_in_order(numbers: Sequence[int], count: int) -> None:
    assert sorted(numbers) == [*range(count)]
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_key[number % KEYS].append(number)
    assert all(own == sorted(own) for own in by_key.values())


async def test_a_member_goes_on_at_another_machine_with_its_directory(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("publisher") as node:
        async with open_members(network, tmp_path / "old", 3):
            await publish(node, range(30))
            found = await read(node, "bridge", 30)
        shutil.move(tmp_path / "old", tmp_path / "new")
        async with open_members(network, tmp_path / "new", 3, host="other"), trio.open_nursery() as nursery:
            nursery.start_soon(publish, node, range(30, 60))
            found += await read(node, "bridge", 30)
    check_once_and_in_order(found, 60)


async def test_a_bridge_of_more_shards_takes_over_while_readers_finish_the_one_before(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("publisher") as node:
        async with open_members(network, tmp_path, 2):
            await publish(node, range(40))
            found = await read(node, "bridge", 10)
        async with (
            open_members(network, tmp_path, 5, name="wide"),
            open_members(network, tmp_path, 2, topics=["nothing.more"]),
        ):
            await publish(node, range(40, 80))
            assert {shard.number for shard in await BridgeClient(node, "wide", patience=20).shards()} == {*range(5)}
            found += await read(node, "bridge", 40 - len(found))
            found += await read(node, "wide", 40)
    check_once_and_in_order(found, 80)
