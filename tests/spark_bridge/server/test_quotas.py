"""Limits of what one cluster may have of a bridge, and do at a time, so that others find room."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

import iris
from iris.kernel.config import MIB, Config
from iris.node.node import Node
from iris.patterns.tunnel.tunnel import Tunnel
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import QuotaExceeded
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.staging.staging import StagedPart
from iris.testing import Network, open_network
from tests.support.arrivals import stored
from tests.support.bridges import BridgeProcess
from tests.support.staged import part, staged_files, written
from tests.support.waiting import wait_until


@asynccontextmanager
async def open_bridge_and_nodes(
    network: Network, directory: Path, config: Config, *names: str
) -> AsyncIterator[tuple[BridgeMember, list[Node]]]:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(network.open_node("bridge", config=config))
        bridge = await stack.enter_async_context(open_bridge(node, topics=["in", "out.>"], directory=directory))
        yield bridge, [await stack.enter_async_context(network.open_node(name)) for name in names]


async def test_who_stages_too_much_is_told_at_once_and_others_go_on(tmp_path: Path) -> None:
    config = Config(bridge_staged_bytes_per_owner=2 * MIB)
    async with (
        open_network() as network,
        open_bridge_and_nodes(network, tmp_path, config, "a", "b") as (bridge, nodes),
    ):
        first, second = (BridgeClient(node, "bridge", patience=60) for node in nodes)
        with (
            trio.fail_after(60),
            pytest.raises(QuotaExceeded, match="cluster 'a' may have 2 MiB staged at this member"),
        ):
            await first.stage("bridge", part(0), io.BytesIO(bytes(32 * MIB)))
        assert staged_files(tmp_path) == []
        await first.stage("bridge", part(1), written(["a"]))
        assert await first.commit("bridge", "q", 0, [part(1)]) == 1
        assert stored(bridge.store) == [b"a"]
        assert bridge.statistics().stored == 0
        with pytest.raises(QuotaExceeded, match="cluster 'b'"):
            await second.stage(
                "bridge", StagedPart(query="r", batch=0, partition=0, attempt=0), io.BytesIO(bytes(3 * MIB))
            )


def test_the_command_says_how_much_may_be_staged(realm: Path, tmp_path: Path) -> None:
    async def stage() -> None:
        async with iris.open_node("a") as node:
            await node.wait_for("bridge", timeout=20)
            client = BridgeClient(node, "bridge", patience=20)
            await client.stage("bridge", part(0), written(["a"]))
            with pytest.raises(QuotaExceeded, match="cluster 'a' may have 1 MiB staged at this member"):
                await client.stage("bridge", part(1), io.BytesIO(bytes(MIB)))

    with BridgeProcess(tmp_path / "log", "--staged-mib", "1"):
        trio.run(stage)


async def test_a_cluster_reads_so_many_ranges_at_a_time_and_others_do_not_wait(tmp_path: Path) -> None:
    config = Config(bridge_reads_per_owner=2)
    async with (
        open_network() as network,
        open_bridge_and_nodes(network, tmp_path, config, "a", "b") as (_, nodes),
        trio.open_nursery() as nursery,
    ):
        first, second = nodes
        await first.publish_confirmed("in", b"x")
        (shard,) = await BridgeClient(first, "bridge", patience=5).shards()
        question: dict[str, object] = {"shard": shard.id, "start": 0, "end": 1, "topics": []}

        async def ask(tunnel: Tunnel) -> None:
            await tunnel.send(question)
            assert isinstance(await tunnel.receive(), bytes)

        async with AsyncExitStack() as stack:
            # Two that do not say what they want have both places of their cluster.
            idle = [await stack.enter_async_context(first.open_tunnel("bridge", operation="read")) for _ in range(2)]
            third = await stack.enter_async_context(first.open_tunnel("bridge", operation="read"))
            answered = trio.Event()

            async def ask_third() -> None:
                await ask(third)
                answered.set()

            nursery.start_soon(ask_third)
            async with second.open_tunnel("bridge", operation="read") as tunnel:
                await ask(tunnel)
            assert not answered.is_set()
            await ask(idle[0])
            with trio.fail_after(60):
                await answered.wait()
            await idle[1].send_eof()
            assert await idle[1].receive() == {
                "error": "bad_request",
                "message": "the tunnel ended before it said what it is for",
            }


async def test_so_many_questions_of_a_cluster_wait_for_news(tmp_path: Path) -> None:
    config = Config(bridge_polls_per_owner=2, service_concurrency=4)
    async with (
        open_network() as network,
        open_bridge_and_nodes(network, tmp_path, config, "a", "b") as (_, nodes),
        trio.open_nursery() as nursery,
    ):
        first, second = (BridgeClient(node, "bridge", patience=5) for node in nodes)
        (shard,) = await first.shards()
        news: list[int] = []

        async def wait(client: BridgeClient) -> None:
            found = await client.wait_offsets("bridge", {shard.id: 0}, 10)
            news.append(found[shard.id].next)

        async def until(count: int) -> None:
            await wait_until(lambda: len(news) >= count)

        for _ in range(3):
            nursery.start_soon(wait, first)
        await until(1)
        assert news == [0], "one of three is answered at once"
        nursery.start_soon(wait, second)
        assert await second.shards(), "there are places left"
        await nodes[1].publish_confirmed("in", b"x")
        await until(4)
        assert news == [0, 1, 1, 1]
