"""Broadcasts and tunnels to a cluster for which a bridge gathers: each message an event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import iris
from iris.kernel.errors import ConfigError
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member
from tests.support.waiting import wait_until


@asynccontextmanager
async def open_pair(network: Network, directory: Path, **options: Any) -> AsyncIterator[tuple[BridgeMember, iris.Node]]:
    async with (
        open_member(network, directory, topics=(), clusters=["orders"], **options) as bridge,
        network.open_node("shop") as node,
    ):
        await node.wait_for("orders")
        yield bridge, node


def rows(bridge: BridgeMember) -> list[dict[str, Any]]:
    """Return what the log holds, shard by shard."""
    found: list[dict[str, Any]] = []
    for state in bridge.states.values():
        if state.next:
            for chunk in bridge.store.reader.read(state.number, state.epoch, 0, state.next, max_bytes=1 << 20):
                found += decode_events(chunk.data).to_pylist()
    return found


def headers(row: dict[str, Any]) -> dict[str, bytes]:
    return {pair["key"]: pair["value"] for pair in row["headers"]}


async def test_a_broadcast_is_an_event(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, node):
        await node.broadcast("orders", b"closing", headers={"h": "x"})
        await wait_until(lambda: bridge.statistics().stored)
        (row,) = rows(bridge)
        assert (row["topic"], row["value"], row["key"]) == ("broadcasts.orders", b"closing", None)
        assert headers(row) == {"iris-sender": b"shop", "h": b"x"}


async def test_each_message_of_a_tunnel_is_an_event_with_its_position(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path, shards=[0, 1, 2]) as (bridge, node):
        for _ in range(3):
            async with node.open_tunnel("orders") as tunnel:
                for number in range(50):
                    await tunnel.send(b"%d" % number)
                await tunnel.send_eof()
                assert await tunnel.receive() == 50
                assert bridge.statistics().waiting == 0, "the answer comes when all of them are on the disk"
        found = rows(bridge)
        assert len(found) == 150
        tunnels = {row["key"] for row in found}
        assert len(tunnels) == 3
        for key in tunnels:
            own = [row for row in found if row["key"] == key]
            assert [row["value"] for row in own] == [b"%d" % number for number in range(50)]
            assert [int(headers(row)["position"]) for row in own] == list(range(50))
            assert len({row["partition"] for row in own}) == 1


async def test_values_that_are_not_bytes_are_marked(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, node):
        async with node.open_tunnel("orders") as tunnel:
            await tunnel.send({"n": 1})
            await tunnel.send_eof()
            assert await tunnel.receive() == 1
        (row,) = rows(bridge)
        assert headers(row)["iris-encoding"] == b"msgpack"


async def test_an_empty_tunnel_is_answered(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, node):
        async with node.open_tunnel("orders") as tunnel:
            await tunnel.send_eof()
            assert await tunnel.receive() == 0
        assert rows(bridge) == []


async def test_a_tunnel_that_breaks_is_stored_as_far_as_it_came(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, node):

        async def break_off() -> None:
            async with node.open_tunnel("orders") as tunnel:
                await tunnel.send(b"one")
                await wait_until(lambda: bridge.statistics().stored)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await break_off()
        async with node.open_tunnel("orders") as tunnel:
            await tunnel.send(b"two")
            await tunnel.send_eof()
            assert await tunnel.receive() == 1
        assert [row["value"] for row in rows(bridge)] == [b"one", b"two"]


async def test_a_cluster_with_a_malformed_name_is_refused(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("bridge") as node:
        with pytest.raises(ConfigError, match="not a cluster name"):
            async with open_bridge(node, topics=(), clusters=["no spaces"], directory=tmp_path):
                pass
