"""Two sites and a gateway in each: every pattern across them, and who may be asked for what."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NoSuchCluster
from iris.security.identity.permissions import Rights
from tests.support.federations import Federation, echo, expect_mirror, hearing, open_federation


async def test_a_request_reaches_a_cluster_of_another_site(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("databases"))
        assert await shop.request("databases", b"hello") == b"hello"
        assert await shop.request("databases@eu", {"deep": [1, None]}) == {"deep": [1, None]}
        (member,) = shop.members("databases")
        assert (member.node, member.site, member.speaks_for) == (federation.nodes["eu-databases"].id, "eu", "databases")
        assert "databases" in shop.clusters()


async def test_who_has_just_come_can_ask_at_once(autojump_clock: MockClock) -> None:
    """As 'iris request' does."""
    async with open_federation() as federation:
        await federation.two_sites(echo("databases"))
        await trio.sleep(1)
        for number in range(2):
            new = await federation.node("us", f"new-{number}")
            assert await new.request("databases", number) == number
            late = await federation.node("us", f"late-{number}", seeds=["us-gateway"])
            assert await late.request("databases@eu", number) == number


async def test_a_tunnel_crosses_both_ways(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("databases"))
        await expect_mirror(shop, "databases", 100)


async def test_a_broadcast_and_a_survey_reach_members_of_all_sites(autojump_clock: MockClock) -> None:
    heard: list[str] = []
    async with open_federation() as federation:
        await federation.ring("eu", "us", "ap")
        await federation.wait_for_sites("eu", "us", "ap")
        for site in ("eu", "us", "ap"):
            for number in range(2):
                await federation.member(site, hearing("store", f"{site}{number}", heard), f"store{number}")
        shop = await federation.node("us", "shop")
        await shop.wait_for("store", members=6)
        async with shop.survey("store", b"?") as answers:
            said = sorted([answer.payload async for answer in answers])
        assert said == ["ap0", "ap1", "eu0", "eu1", "us0", "us1"]
        assert answers.missing == ()
        await shop.broadcast("store", "all")
        await shop.broadcast("store@ap", "there")
        await trio.sleep(1)
        assert sorted(heard) == sorted([*(f"{name} all shop" for name in said), "ap0 there shop", "ap1 there shop"])


async def test_a_broadcast_that_goes_over_a_tree_at_home_reaches_other_sites_too(autojump_clock: MockClock) -> None:
    heard: list[str] = []
    config = Config(relay_above=2, relay_fan_out=2)
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        for site, count in (("eu", 2), ("us", 5)):
            for number in range(count):
                await federation.member(
                    site, hearing("store", f"{site}{number}", heard), f"store{number}", config=config
                )
        shop = await federation.node("us", "shop", config=config)
        await shop.wait_for("store", members=7)
        await shop.broadcast("store", b"everybody")
        await trio.sleep(1)
        assert [said.split()[0] for said in sorted(heard)] == ["eu0", "eu1", "us0", "us1", "us2", "us3", "us4"]


async def test_nodes_of_different_sites_do_not_link_directly(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.member("eu", echo("databases"))
        shop = await federation.node("us", "shop", seeds=["eu-databases"])
        await trio.sleep(10)
        assert shop.statistics().links == {}
        with pytest.raises(NoSuchCluster):
            await shop.request("databases")


async def test_a_node_without_a_site_and_one_with_do_not_link(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        plain = await federation.node(None, "plain")
        named = await federation.node("eu", "named", seeds=["plain"])
        await trio.sleep(5)
        assert named.statistics().links == plain.statistics().links == {}


async def test_an_ordinary_node_is_not_let_in_where_gateways_meet(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        shop = await federation.node("eu", "shop", seeds=["eu-gateway/between"])
        await trio.sleep(5)
        assert len(shop.statistics().links) == 0


async def test_what_is_not_exported_cannot_be_asked(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("databases"), policy=Policy(exports=("databases",)))
        secret = await federation.member("eu", echo("secrets"))
        await trio.sleep(1)
        with pytest.raises(NoSuchCluster):
            await shop.request("secrets")
        with pytest.raises(NoSuchCluster):
            await shop.request("secrets@eu")
        # A node that knows the id and asks all the same is refused by its own gateway, which counts it.
        with pytest.raises(iris.IrisError):
            await federation.parts[shop.id].mesh.connect([f"site://eu/{secret.id}"], expected=secret.id)
        assert federation.gateways["us-gateway"].statistics().refused["not exported"] >= 1
        assert secret.statistics().links.keys() == {federation.nodes["eu-databases"].id, gateway_node(federation, "eu")}


def gateway_node(federation: Federation, site: str) -> str:
    return federation.nodes[f"{site}-gateway"].id


async def test_imports_are_a_list_of_their_own(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"], policy=Policy(imports=("wanted",)))
        await federation.member("eu", echo("wanted"))
        await federation.member("eu", echo("unwanted"))
        shop = await federation.node("us", "shop")
        await shop.wait_for("wanted")
        assert await shop.request("wanted", b"x") == b"x"
        with pytest.raises(NoSuchCluster):
            await shop.request("unwanted")


async def test_a_member_that_leaves_is_not_asked_any_more(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        node = await federation.node("eu", "databases")
        shop = await federation.node("us", "shop")
        async with node.join("databases", echo("databases")):
            await shop.wait_for("databases")
            assert await shop.request("databases", 1) == 1
        await trio.sleep(1)
        with pytest.raises(NoSuchCluster):
            await shop.request("databases")


async def test_a_member_that_dies_is_given_up_and_another_asked(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        await federation.member("eu", echo("databases", "one"), "one")
        await federation.member("eu", echo("databases", "two"), "two")
        shop = await federation.node("us", "shop")
        await shop.wait_for("databases", members=2)
        assert {await shop.request("databases", options=iris.RequestOptions(idempotent=True)) for _ in range(20)} == {
            "one",
            "two",
        }
        federation.crash("eu-one")
        for _ in range(50):
            assert await shop.request("databases", timeout=10, options=iris.RequestOptions(idempotent=True)) in (
                "one",
                "two",
            )
            await trio.sleep(0.1)
        assert {await shop.request("databases", options=iris.RequestOptions(idempotent=True)) for _ in range(20)} == {
            "two"
        }


@pytest.mark.parametrize("age", [1.0, 20.0], ids=["lately", "long ago"])
async def test_a_member_that_its_site_takes_back_is_given_up_at_once_however_lately_the_gateway_came(
    autojump_clock: MockClock, age: float
) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        member = await federation.member("eu", echo("databases"))
        shop = await federation.shop("us", "databases")
        await shop.request("databases", 1)
        await trio.sleep(age)
        federation.crash("eu-databases")
        await trio.sleep(3)
        assert member.id not in shop.statistics().links


@pytest.mark.parametrize("age", [1.0, 20.0], ids=["lately", "long ago"])
async def test_a_gateway_says_for_good_what_is_not_exported_when_it_knows_its_site(
    autojump_clock: MockClock, age: float
) -> None:
    """Before that, the caller may try again."""
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("databases"), policy=Policy(exports=("databases",)))
        secret = await federation.member("eu", echo("secrets"))
        await trio.sleep(age)
        with pytest.raises(iris.IrisError):
            await federation.parts[shop.id].mesh.connect([f"site://eu/{secret.id}"], expected=secret.id)
        said = {"no route" if age < 10 else "not exported"}
        assert {f"not carried: {words}" for words in said} <= shop.statistics().refusals.keys()


async def test_a_gateway_needs_a_site_and_the_right(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        plain = await federation.node(None, "plain")
        with pytest.raises(ConfigError, match="site"):
            async with open_gateway(plain):
                pass
        await federation.gateway("eu")
        with pytest.raises(ConfigError, match="gateway already"):
            async with open_gateway(federation.nodes["eu-gateway"]):
                pass
    async with open_federation(rights=Rights(serves=(">",))) as federation:
        node = await federation.node("eu", "shop")
        with pytest.raises(ConfigError, match="no right to be a gateway"):
            async with open_gateway(node):
                pass


@pytest.mark.parametrize("rate", [math.nan, math.inf, 0, -1.0])
async def test_a_rate_is_a_number_above_nothing(rate: float, autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        node = await federation.node("eu", "gateway")
        with pytest.raises(ConfigError, match=r"rate is .*: use bytes per second, or None for any"):
            async with open_gateway(node, rate=rate):
                raise AssertionError("it opened")


async def test_a_tunnel_runs_at_the_rate_that_a_gateway_allows(autojump_clock: MockClock) -> None:
    mib = 1024 * 1024
    async with open_federation() as federation:
        await federation.gateway("eu", rate=mib / 2)
        await federation.gateway("us", to=["eu-gateway"])
        done: list[int] = []
        service = iris.Service("store")

        @service.tunnel
        async def take(tunnel: iris.Tunnel) -> None:
            done.extend([len(payload) async for payload in tunnel])

        await federation.member("eu", service)
        shop = await federation.node("us", "shop")
        await shop.wait_for("store")
        began = trio.current_time()
        async with shop.open_tunnel("store") as tunnel:
            for _ in range(6):
                await tunnel.send(bytes(mib))
            await tunnel.send_eof()
            with pytest.raises(trio.EndOfChannel):
                await tunnel.receive()
        assert sum(done) == 6 * mib
        assert 10 <= trio.current_time() - began <= 60
        assert federation.gateways["eu-gateway"].statistics().refused["beyond the rate"] > 0


async def test_a_gateway_that_is_closed_is_no_way_any_more(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.member("eu", echo("databases"))
        node = await federation.node("us", "gateway")
        shop = await federation.node("us", "shop")
        async with open_gateway(node, peers=["mem://eu-gateway/between"], listen=["mem://us-gateway/between"]):
            await shop.wait_for("databases")
            assert await shop.request("databases", 1) == 1
        await trio.sleep(0.5)
        with pytest.raises(NoSuchCluster):
            await shop.request("databases")
        assert federation.gateways["eu-gateway"].statistics().sites == ()


async def test_a_gateway_that_was_closed_lets_nothing_cross_for_those_that_come_later(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        node = await federation.node("us", "gateway")
        there = await federation.node("us", "there")
        async with open_gateway(node, listen=["mem://us-gateway/between"], policy=Policy(export_topics=(">",))):
            await trio.sleep(1)
            assert allows(federation, node)
            assert allows(federation, there)
        await trio.sleep(1)
        late = await federation.node("us", "late")
        await trio.sleep(1)
        assert not any(allows(federation, here) for here in (node, there, late))


def allows(federation: Federation, node: iris.Node) -> bool:
    sites = federation.sites(node)
    return sites.border.may_leave("orders.new")
