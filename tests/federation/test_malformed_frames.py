"""Gateways of other sites and realms that say in frames what cannot be: refused, and nothing of it is kept."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.kernel import wire
from iris.kernel.wire import kinds
from tests.support.federations import Federation, echo, gateway_url, open_federation
from tests.support.messages import raw
from tests.support.two_realms import open_realms

FRAME = bytes((wire.DATA,)) + bytes(63)
LONG = FRAME * 1000


async def stand_still(federation: Federation, gateway: str, seconds: float) -> None:
    """Have a gateway read nothing for some time, so that links to it are busy, and then be free again."""
    transport = federation.network.memory.find(gateway_url(gateway))
    assert transport is not None
    transport.pause()
    await trio.sleep(seconds)
    transport.resume()
    await trio.sleep(2)


@pytest.mark.parametrize("source", [b"short", bytes(100_000), 7, "node"])
async def test_a_frame_from_nobody_that_finds_a_busy_link_ends_no_gateway(
    autojump_clock: MockClock, source: object
) -> None:
    async with open_federation() as federation:
        shop, hostile = await federation.three_sites()
        us, eu = federation.gateways["us-gateway"], federation.nodes["eu-gateway"]
        link = federation.between[hostile].peers[federation.nodes["us-gateway"].id].link
        for _ in range(100):
            link.post(raw(kinds.Carry, 5, "eu", bytes.fromhex(eu.id), "ap", source, LONG), len(LONG))
        await stand_still(federation, "eu-gateway", 0.5)
        assert federation.between[us].refusals["RemoteProtocolError"] > 0
        assert us.statistics().sites == ("ap", "eu")
        assert await shop.request("store", 1) == 1


@pytest.mark.parametrize("hops", [17, 100, 2**62])
async def test_no_frame_is_carried_farther_than_any_is_sent(autojump_clock: MockClock, hops: int) -> None:
    async with open_federation() as federation:
        shop, hostile = await federation.three_sites()
        us, eu = federation.gateways["us-gateway"], bytes.fromhex(federation.nodes["eu-gateway"].id)
        far = federation.between[hostile].peers[federation.nodes["us-gateway"].id].link
        near = federation.parts[shop.id].mesh.peers[federation.nodes["us-gateway"].id].link
        for link, site, node in (
            (far, "ap", federation.gateway_parts[hostile].directory.own.gateway),
            (near, "us", shop.id),
        ):
            source = bytes.fromhex(node)
            carried = us.statistics().carried
            link.post(kinds.Copy(hops, site, source, (("eu", eu),), FRAME), 64)
            for _ in range(2):
                link.post(kinds.Carry(hops, "eu", eu, site, source, FRAME), 64)
                await trio.sleep(1)
            link.post(kinds.CarryRefused(hops, "eu", eu, site, source, 1), 64)
            await trio.sleep(1)
            assert us.statistics().carried == carried
        for mesh in (federation.between[us], federation.inside[us].mesh):
            assert mesh.refusals["RemoteProtocolError"] == 4
        assert await shop.request("store", 1) == 1


async def test_nor_does_one_from_another_realm(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        ours, theirs = realms.ours.gateways["eu-gateway"], realms.theirs.gateways["acme-eu-gateway"]
        await realms.ours.gateway("ap", to=["eu-gateway"])
        shop = await realms.shop(echo("databases"))
        await ours.wait_for_site("ap")
        (ours_there,) = realms.between[theirs].peers.values()
        target = bytes.fromhex(realms.ours.nodes["ap-gateway"].id)
        their_site = f"{realms.theirs.nodes['acme-eu-gateway'].realm}/eu"
        for _ in range(100):
            ours_there.link.post(kinds.Carry(5, f"{shop.realm}/ap", target, their_site, b"short", LONG), len(LONG))
        await stand_still(realms.ours, "ap-gateway", 0.5)
        assert realms.between[ours].refusals["RemoteProtocolError"] > 0
        assert await shop.request("acme/databases", 1) == 1


async def test_names_of_sites_that_do_not_exist_are_not_kept(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.mesh("us", "ap")
        hostile = federation.gateways["ap-gateway"]
        us, node = federation.gateways["us-gateway"], await federation.node("us", "node")
        link = federation.between[hostile].peers[federation.nodes["us-gateway"].id].link
        near = federation.parts[node.id].mesh.peers[federation.nodes["us-gateway"].id].link
        await federation.wait_for_sites("us", "ap")
        own = bytes.fromhex(node.id)
        for number in range(500):
            link.post(kinds.Carry(5, f"x{number}", own, "ap", own, FRAME), 64)
            near.post(kinds.Copy(5, "us", own, ((f"y{number}", own),), FRAME), 64)
        link.post(kinds.Carry(5, "ap", own, "long " * 10, own, FRAME), 64)
        await trio.sleep(2)
        assert us.statistics().refused["no route"] == 500
        assert us.statistics().refused["not exported"] == 500
        assert federation.between[us].refusals["message of kind Carry"] == 1
        assert federation.gateway_parts[us].directory._routes.keys() <= {"ap"}
