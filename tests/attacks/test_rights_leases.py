"""Leases and keys: what one credential may have of them is for the cluster in its certificate, whatever it names."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import iris
from iris.spark_bridge.server import leases
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Rights, open_network
from tests.support.waiting import wait_until


async def grab(node: iris.Node, cluster: str, name: str) -> bool:
    """Ask for a lease; return whether it is granted, and not one too many."""
    wanted = {"name": name, "cluster": cluster, "holder": secrets.token_bytes(16), "ttl": 600.0, "wait": 0.0}
    try:
        await node.request("bridge", wanted, operation="lease")
    except iris.RemoteError as error:
        if error.code != "too_many_leases":
            raise
        return False
    return True


async def test_one_credential_that_serves_many_clusters_leaves_leases_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_MOST", 32)
    monkeypatch.setattr(leases, "_MOST_OF_CLUSTER", 4)
    async with open_network() as network, AsyncExitStack() as stack:
        network.credential("evil", Rights(publishes=(), subscribes=(), serves=("many.>",)))
        node = await stack.enter_async_context(network.open_node("bridge"))
        await stack.enter_async_context(open_bridge(node, topics=["t"], directory=tmp_path))
        evil = await stack.enter_async_context(network.open_node("evil"))
        desk = await stack.enter_async_context(network.open_node("desk"))
        clusters = [f"many.{number}" for number in range(8)]
        for cluster in clusters:
            await stack.enter_async_context(evil.join(cluster, iris.Service(cluster)))
        await wait_until(lambda: all(node.members(cluster) for cluster in clusters))
        granted = [await grab(evil, cluster, f"lease-{number}") for cluster in clusters for number in range(4)]
        assert granted == [True] * 4 + [False] * 28
        assert all([await grab(desk, "desk", f"lease-{number}") for number in range(4)])


async def test_many_nodes_of_one_credential_have_together_what_one_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_MOST_OF_CLUSTER", 4)
    async with open_network() as network, AsyncExitStack() as stack:
        node = await stack.enter_async_context(network.open_node("bridge"))
        await stack.enter_async_context(open_bridge(node, topics=["t"], directory=tmp_path))
        granted: list[bool] = []
        for number in range(6):
            evil = await stack.enter_async_context(network.open_node("evil"))
            granted.append(await grab(evil, "evil", f"lease-{number}"))
        assert granted == [True] * 4 + [False] * 2
