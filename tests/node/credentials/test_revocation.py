"""Revocation in a whole realm: whom a list names is cut off everywhere, and old lists change nothing."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.security.files.realm_files import load_revocations, save_revocations
from iris.security.identity.revocation import RevocationList, issue_revocations
from iris.testing import Network


def revocation_list(network: Network, number: int, clusters: dict[str, int]) -> RevocationList:
    return issue_revocations(network.root, number=number, issued=network.wall_clock(), clusters=clusters, nodes={})


@pytest.mark.parametrize("others", [3, pytest.param(19, marks=pytest.mark.long)])
async def test_a_revoked_node_is_cut_off_from_all_others_within_seconds(autojump_clock: MockClock, others: int) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(network.open_node("shop")) for _ in range(others)]
        thief = await stack.enter_async_context(network.open_node("stolen"))
        assert all(len(node.statistics().links) == others for node in (*nodes, thief))
        assert await nodes[0].revoke(revocation_list(network, 1, {"stolen": 2}).signed)
        await trio.sleep(5)
        assert all(thief.id not in node.statistics().links for node in nodes)
        assert all(len(node.statistics().links) == others - 1 for node in nodes)
        await trio.sleep(20)  # it comes back again and again, and is turned away
        assert all(thief.id not in node.statistics().links for node in nodes)


async def test_a_revoked_node_dials_nobody_to_ask_him(autojump_clock: MockClock) -> None:
    service = iris.Service("work")
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(network.open_node("work")) for _ in range(14)]
        for node in nodes:
            await stack.enter_async_context(node.join("work", service))
        thief = await stack.enter_async_context(network.open_node("stolen", seeds=["host-1"]))
        assert len(thief.statistics().links) < len(nodes)
        assert await nodes[0].revoke(revocation_list(network, 1, {"stolen": 2}).signed)
        await trio.sleep(10)
        began = trio.current_time()
        with pytest.raises(iris.NoSuchCluster, match="generation 1 of cluster 'stolen' is revoked"):
            await thief.request("work", b"", timeout=5)
        assert trio.current_time() - began < 1


async def test_a_node_that_was_away_gets_the_list_when_it_is_linked(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, network.open_node("shop") as first:
        revoked = revocation_list(network, 3, {"stolen": 2})
        assert await first.revoke(revoked.signed)
        async with network.open_parts("shop") as (late, parts):
            await parts.patterns.pubsub.wait_interest_exchanged()
            assert not await late.revoke(revoked.signed), "it has the list already"
            assert not await late.revoke(revocation_list(network, 2, {}).signed), "an older list is refused"


async def test_a_list_of_another_realm_is_refused(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network(seed=1) as network,
        iris.testing.open_network(seed=2) as other,
        network.open_node("shop") as node,
    ):
        with pytest.raises(iris.AuthenticationError):
            await node.revoke(revocation_list(other, 1, {"shop": 2}).signed)


async def test_the_newest_list_outlives_a_restart_and_an_old_file_is_put_right(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    file = tmp_path / "list"
    async with iris.testing.open_network() as network:
        old, new = (revocation_list(network, number, {"stolen": 2}) for number in (1, 2))
        async with network.open_parts("shop", revocations=file) as (node, node_parts):
            assert await node.revoke(old.signed)
            save_revocations(file, new)
            await node_parts.revoking.look()
            assert not await node.revoke(new.signed), "the file was read while the node ran"
        async with network.open_parts("shop", revocations=file) as (node, node_parts):
            assert not await node.revoke(new.signed), "the file was read at the start"
            save_revocations(file, old)
            await node_parts.revoking.look()
            assert not await node.revoke(new.signed)
        kept = load_revocations(file, network.root.public)
        assert kept is not None
        assert kept.number == 2
