"""Nodes that reach nobody: errors name the true cause and what to do about it."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.cluster.mesh.handshakes import NoWayBack, TurnedAway
from iris.node.open import OpenNode
from iris.security.identity.revocation import issue_revocations
from iris.testing import Network


def echo() -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def answer(request: iris.Request) -> object:
        return request.payload

    return service


async def member_of(stack: AsyncExitStack, network: Network) -> OpenNode:
    member = await stack.enter_async_context(network.open_parts("store", host="store"))
    await stack.enter_async_context(member.node.join("store", echo()))
    return member


def revoked(network: Network, name: str) -> bytes:
    """Return a list that names the first generation of a cluster."""
    now = network.wall_clock()
    return issue_revocations(network.root, number=1, issued=now, clusters={name: 2}, nodes={}).signed


async def test_a_node_that_cannot_be_dialled_back_says_so(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        await member_of(stack, network)
        network.memory.partition(["store"], ["shop"], one_way=True)
        shop = await stack.enter_async_context(network.open_node("shop", host="shop"))
        cause = "cannot connect back to this node at mem://shop "
        with pytest.raises(iris.NoSuchCluster) as caught:
            await shop.request("store", 1)
        text = str(caught.value)
        assert text.startswith(
            "no reachable member serves the cluster 'store'; this node is linked to nobody: no answer"
        )
        assert cause in text
        assert "--listen" in text
        assert "or leave listen out" in text
        assert "realm" not in text
        with pytest.raises(iris.RequestTimeout, match=cause):
            await shop.wait_for("store", timeout=1)
        assert sum(cause in record.getMessage() for record in caplog.records) == 1
        network.memory.heal()
        await shop.wait_for("store", timeout=60)
        assert await shop.request("store", 1) == 1
        with pytest.raises(iris.NoSuchCluster) as caught:
            await shop.request("other", 1)
        assert str(caught.value) == "no reachable member serves the cluster 'other'"


async def test_a_node_of_another_realm_is_told_from_one_that_cannot_be_dialled_back(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        await member_of(stack, network)
        _, stranger = await stack.enter_async_context(
            network.other_realm(5).open_parts("shop", host="stranger", seeds=[])
        )
        with pytest.raises(TurnedAway, match="another realm"):
            await stranger.mesh.connect(["mem://store"])
        network.memory.partition(["store"], ["shop"], one_way=True)
        _, shop = await stack.enter_async_context(network.open_parts("shop", host="shop", seeds=[]))
        with pytest.raises(NoWayBack):
            await shop.mesh.connect(["mem://store"])
        network.memory.partition(["shop"], ["store"], one_way=True)
        with pytest.raises(iris.NotSent, match="nobody is there, or a firewall lets nothing through") as caught:
            await shop.mesh.connect(["mem://store"])
        assert type(caught.value) is iris.NotSent


async def test_a_node_that_is_revoked_while_it_runs_says_so(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        member, _ = await member_of(stack, network)
        shop = await stack.enter_async_context(network.open_node("shop", host="shop"))
        await shop.wait_for("store")
        assert await member.revoke(revoked(network, "shop"))
        await trio.sleep(1)
        assert member.statistics().links == {}
        said = "generation 1 of cluster 'shop' is revoked, so nobody talks to this node: have a new credential issued"
        with pytest.raises(iris.NoSuchCluster, match=said):
            await shop.request("store", 1)
        with pytest.raises(iris.RequestTimeout, match=said):
            await shop.wait_for("store", timeout=1)
    assert sum("nobody talks to this node any more" in record.getMessage() for record in caplog.records) == 1


async def test_a_node_that_was_revoked_before_it_came_says_so(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    said = "generation 1 of cluster 'shop' is revoked, so nobody talks to this node"
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        member, _ = await member_of(stack, network)
        assert await member.revoke(revoked(network, "shop"))
        file = tmp_path / "list"
        began = trio.current_time()
        async with network.open_node("shop", host="shop", revocations=file) as shop:
            assert trio.current_time() - began < 1, "it is not waited for nodes that do not answer"
            assert member.statistics().links == {}
            with pytest.raises(iris.NoSuchCluster, match=said):
                await shop.request("store", 1)
        async with network.open_node("shop", seeds=[], revocations=file) as alone:
            with pytest.raises(iris.NoSuchCluster, match=said):
                await alone.request("store", 1)
        warned = [record for record in caplog.records if "nobody talks to this node any more" in record.getMessage()]
        assert [record.levelno for record in warned] == [logging.WARNING] * 2
        assert member.statistics().refusals["AuthenticationError"] > 0


async def test_revoked_nodes_are_told_so_only_so_often(autojump_clock: MockClock) -> None:
    """A list may be large, and a holder of the key of a revoked cluster can come as ever other nodes."""
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        member, parts = await member_of(stack, network)
        _, shop = await stack.enter_async_context(network.open_parts("shop", seeds=[]))
        assert await member.revoke(revoked(network, "shop"))
        thief, mesh = shop.mesh.identity.public(), parts.mesh
        assert sum(len(mesh.final_messages(thief)) for _ in range(100)) == 64
        await trio.sleep(10)
        assert sum(len(mesh.final_messages(thief)) for _ in range(100)) == 10
        assert mesh.final_messages(mesh.identity.public()) == ()
