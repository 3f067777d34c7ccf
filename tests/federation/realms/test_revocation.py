"""Revocation across sites, and nodes that speak to others as if they were gateways."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.routes.gateway import GONE
from iris.kernel.wire import kinds
from iris.security.identity.revocation import RevocationList, issue_revocations
from iris.testing import ALL_RIGHTS, Network, Rights
from tests.support.federations import echo, open_federation


def _prove_nothing(_: object) -> None:
    pass


def _permit_all(record: object) -> object:
    return record


def revoke(network: Network, number: int, **clusters: int) -> RevocationList:
    return issue_revocations(network.root, number=number, issued=network.wall_clock(), clusters=clusters, nodes={})


async def test_a_list_reaches_every_site_through_the_gateways(autojump_clock: MockClock) -> None:
    """No node of one site is linked to a node of another."""
    async with open_federation() as federation:
        await federation.mesh("eu", "us", "ap")
        nodes = [await federation.node(site, "shop") for site in ("eu", "us", "ap")]
        await federation.wait_for_sites("eu", "us", "ap")
        assert await nodes[0].revoke(revoke(federation.network, 4, stolen=2).signed)
        await trio.sleep(5)
        assert [federation.parts[node.id].revoking.revocations.number for node in nodes] == [4, 4, 4]


async def test_a_revoked_gateway_of_another_site_is_cut_off_at_once(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"], name="stolen")
        shop = await federation.node("eu", "shop")
        await federation.wait_for_sites("eu", "us")
        assert len(federation.between[federation.gateways["eu-gateway"]].peers) == 1
        assert await shop.revoke(revoke(federation.network, 1, stolen=2).signed)
        await trio.sleep(0.5)
        assert not federation.between[federation.gateways["eu-gateway"]].peers
        await trio.sleep(5)
        assert not federation.between[federation.gateways["eu-gateway"]].peers


async def test_a_member_of_another_site_whose_further_cluster_is_revoked_is_not_asked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_federation() as federation:
        for cluster in ("depot", "shop"):
            federation.network.credential(cluster, Rights())
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        member = await federation.node("eu", "depot")
        credential = federation.network.credential("store")
        await federation.enter(member.join("store", echo("store"), credential=credential))
        await federation.enter(member.join("depot", echo("depot")))
        shop = await federation.node("us", "shop")
        for cluster in ("store", "depot"):
            await shop.wait_for(cluster)
            assert await shop.request(cluster, 1) == 1
        for node in federation.nodes.values():  # its own site would not even list it any more
            monkeypatch.setattr(federation.parts[node.id].joined, "_prove", _prove_nothing)
            if node.site == "eu":
                monkeypatch.setattr(federation.parts[node.id].membership.proofs, "permitted", _permit_all)
        assert await shop.revoke(revoke(federation.network, 1, store=2).signed)
        await trio.sleep(5)
        with pytest.raises(iris.IrisError):
            await shop.request("store", 1, timeout=0.5)
        assert await shop.request("depot", 1) == 1


async def test_only_a_gateway_can_say_that_a_node_of_another_site_is_gone_or_carry_its_frames(
    autojump_clock: MockClock,
) -> None:
    async with open_federation(rights=ALL_RIGHTS) as federation:
        federation.network.credential("stranger", Rights())
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        store = await federation.member("eu", echo("store"))
        shop = await federation.node("us", "shop")
        stranger = await federation.node("us", "stranger")
        await shop.wait_for("store")
        assert await shop.request("store", 1) == 1
        linked = federation.parts[shop.id].mesh.peers[store.id]
        own, other = bytes.fromhex(shop.id), bytes.fromhex(store.id)
        refusals = federation.parts[shop.id].mesh.refusals
        before = refusals.total()
        federation.parts[stranger.id].mesh.post(shop.id, kinds.CarryRefused(8, "us", own, "eu", other, GONE), 0)
        federation.parts[stranger.id].mesh.post(shop.id, kinds.Carry(8, "us", own, "eu", other, bytes(64)), 64)
        await trio.sleep(1)
        assert federation.parts[shop.id].mesh.peers[store.id] is linked
        assert linked.link.is_up
        assert refusals["message of kind CarryRefused"] == 1
        assert refusals["message of kind Carry"] == 1
        assert refusals.total() == before + 2
        assert await shop.request("store", 1) == 1
