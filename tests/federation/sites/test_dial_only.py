"""A gateway that listens nowhere: sites behind NAT are joined by what they dial."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris import RequestOptions
from iris.federation.gateway import open_gateway
from iris.kernel.errors import ConfigError
from tests.support.federations import EVERYTHING, Federation, Heard, echo, gateway_url, open_federation


async def join_office_and_home(federation: Federation) -> None:
    """Two sites; the gateway of ``home`` dials that of ``office``, and cannot be dialled."""
    await federation.gateway("office")
    await federation.member("office", echo("databases"))
    await dial_out(federation, "home", "gateway", "office-gateway")
    await federation.member("home", echo("printers"))


async def dial_out(federation: Federation, site: str, name: str, to: str) -> None:
    node = await federation.node(site, name)
    opened = open_gateway(node, peers=[gateway_url(to)], policy=EVERYTHING)
    federation.gateways[f"{site}-{name}"] = await federation.enter(opened)


async def test_requests_tunnels_and_events_cross_both_ways(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await join_office_and_home(federation)
        assert federation.gateways["home-gateway"].addresses == ()
        heard: list[Heard] = []
        ears = {site: await federation.listen(site, "news.>", heard) for site in ("office", "home")}
        for site, cluster in (("office", "printers"), ("home", "databases")):
            node = await federation.node(site, "shop")
            await node.wait_for(cluster)
            assert await node.request(cluster, bytes(2**20)) == bytes(2**20)
            async with node.open_tunnel(cluster) as tunnel:
                await tunnel.send(b"there and back")
                assert await tunnel.receive() == b"there and back"
            await trio.sleep(1)
            heard.clear()
            await node.publish("news.today", site)
            await trio.sleep(1)
            assert sorted(event.site for event in heard) == sorted(ears)


async def test_sites_behind_nat_reach_each_other_through_the_one_that_is_not(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await join_office_and_home(federation)
        await dial_out(federation, "cottage", "gateway", "office-gateway")
        shop = await federation.node("cottage", "shop")
        await shop.wait_for("printers")
        assert await shop.request("printers@home", "hello") == "hello"


async def test_the_site_is_back_when_its_neighbour_is(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await join_office_and_home(federation)
        shop = await federation.node("home", "shop")
        await shop.wait_for("databases")
        hosts = {site: [host for host in federation.nodes if host.startswith(site)] for site in ("office", "home")}
        federation.network.memory.partition(hosts["office"], hosts["home"])
        await trio.sleep(60)
        assert federation.gateways["home-gateway"].statistics().sites == ()
        federation.network.memory.heal()
        await federation.wait_for_sites("office", "home", within=15)
        await shop.wait_for("databases")
        with trio.fail_after(10):
            assert (
                await shop.request("databases", "again", timeout=10, options=RequestOptions(idempotent=True)) == "again"
            )


async def test_one_that_neither_listens_nor_dials_is_refused(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        node = await federation.node("home", "gateway")
        with pytest.raises(ConfigError, match="reaches nobody: give listen or peers"):
            async with open_gateway(node):
                pass


async def test_one_that_listens_nowhere_dials_no_sockets_of_this_machine(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        node = await federation.node("home", "gateway")
        with pytest.raises(ConfigError, match="reaches others at tcp:// or ws://, which ipc:///office is not"):
            async with open_gateway(node, peers=["ipc:///office"]):
                pass
