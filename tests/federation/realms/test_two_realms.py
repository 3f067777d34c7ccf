"""Two owners: what nodes of one realm can do in the other, by the bundles that the two have exchanged."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.policy import Policy
from iris.kernel.errors import ConfigError, NoSuchCluster, NotAllowed
from iris.kernel.link import Link
from iris.kernel.wire import Message, kinds
from tests.support.federations import echo, expect_mirror, hearing
from tests.support.two_realms import Realms, open_realms


async def test_a_request_reaches_a_cluster_of_another_realm_by_its_alias(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(echo("databases"))
        assert await shop.request("acme/databases", b"hello") == b"hello"
        assert await shop.request("acme/databases@eu", {"deep": [1, None]}) == {"deep": [1, None]}
        (member,) = shop.members("acme/databases")
        node = realms.theirs.nodes["acme-eu-databases"].id
        assert (member.node, member.site, member.speaks_for) == (node, "acme/eu", "acme/databases")
        assert "acme/databases" in shop.clusters()
        assert "databases" not in shop.clusters()
        statistics = realms.ours.gateways["eu-gateway"].statistics()
        assert statistics.sites == ("acme/eu",)
        assert list(statistics.neighbours.values()) == ["acme/eu"]


async def test_a_cluster_of_the_same_name_at_home_is_another_one(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        await realms.ours.member("eu", echo("databases", "ours"))
        shop = await realms.shop(echo("databases", "theirs"))
        assert [await shop.request("databases") for _ in range(5)] == ["ours"] * 5
        assert [await shop.request("databases@eu") for _ in range(5)] == ["ours"] * 5
        assert [await shop.request("acme/databases") for _ in range(5)] == ["theirs"] * 5
        assert [await shop.request("acme/databases@eu") for _ in range(5)] == ["theirs"] * 5
        with pytest.raises(NoSuchCluster):
            await shop.request("acme/databases@us")


async def test_the_member_sees_which_cluster_of_which_realm_is_calling(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        service = iris.Service("databases", allow=["partner/shop"])

        @service.request
        async def who(request: iris.Request) -> object:
            return [request.sender.cluster, request.sender.realm, request.sender.node]

        shop = await realms.shop(service)
        assert await shop.request("acme/databases") == ["partner/shop", "partner", shop.id]


async def test_a_tunnel_crosses_both_ways(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(echo("databases"))
        await expect_mirror(shop, "acme/databases", 60)


async def test_a_survey_and_a_broadcast_reach_all_members_there_and_none_here(autojump_clock: MockClock) -> None:
    heard: list[str] = []
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        await realms.ours.member("eu", hearing("store", "ours", heard), "store")
        for name in ("one", "two"):
            await realms.theirs.member("eu", hearing("store", name, heard), name)
        shop = await realms.ours.node("eu", "shop")
        await shop.wait_for("acme/store", members=2)
        async with shop.survey("acme/store", b"?") as answers:
            assert sorted([answer.payload async for answer in answers]) == ["one", "two"]
        assert answers.missing == ()
        await shop.broadcast("acme/store", "all")
        await trio.sleep(1)
        assert sorted(heard) == ["one all partner/shop", "two all partner/shop"]


async def test_sites_behind_the_gateways_of_both_realms_reach_each_other(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        await realms.theirs.gateway("ap", to=["acme-eu-gateway"])
        await realms.ours.gateway("us", to=["eu-gateway"])
        await realms.theirs.member("ap", echo("databases", "far"))
        shop = await realms.ours.node("us", "shop")
        await shop.wait_for("acme/databases")
        assert await shop.request("acme/databases") == "far"
        assert await shop.request("acme/databases@ap") == "far"
        (member,) = shop.members("acme/databases")
        assert member.site == "acme/ap"


async def test_what_the_bundle_does_not_list_is_neither_seen_nor_answered(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce(theirs=("databases",))
        await realms.link()
        secrets = await realms.theirs.member("eu", echo("secrets"))
        shop = await realms.shop(echo("databases"))
        assert [name for name in shop.clusters() if name.startswith("acme/")] == ["acme/databases"]
        with pytest.raises(NoSuchCluster, match="realm 'acme' does not export the cluster 'secrets'"):
            await shop.request("acme/secrets")
        await expect_no_link(realms, shop, secrets)
        assert realms.ours.gateways["eu-gateway"].statistics().refused["not exported"] >= 1


async def expect_no_link(realms: Realms, ours: iris.Node, theirs: iris.Node) -> None:
    """A node that knows the id of another one and asks all the same is refused on the way."""
    realm = realms.theirs.network.credential("x").realm_id
    with pytest.raises(iris.IrisError):
        await realms.parts[ours.id].mesh.connect([f"site://{realm}/eu/{theirs.id}"], expected=theirs.id)
    assert ours.id not in theirs.statistics().links


async def test_a_member_of_something_else_there_does_not_answer_for_what_is_not_exported(
    autojump_clock: MockClock,
) -> None:
    """The session may be had, for the node serves something that is exported; the node itself keeps to the bundle."""
    async with open_realms() as realms:
        realms.introduce(theirs=("databases",))
        await realms.link()
        shop = await realms.shop(echo("databases"))
        member = realms.theirs.nodes["acme-eu-databases"]
        await realms.theirs.enter(member.join("secrets", echo("secrets")))
        assert await shop.request("acme/databases", 1) == 1
        requests = realms.parts[shop.id].patterns.requests
        with pytest.raises(NotAllowed, match="does not serve cluster 'shop' of realm"):
            await requests.request(requests.call("secrets", b"", timeout=5, member=member.id))


async def test_a_cluster_that_is_not_exported_cannot_be_told_from_one_that_is_not_there(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_realms() as realms:
        realms.introduce(theirs=("databases",))
        await realms.link()
        shop = await realms.shop(echo("databases"))
        member = realms.theirs.nodes["acme-eu-databases"]
        await realms.theirs.enter(member.join("secrets", echo("secrets")))
        assert await shop.request("acme/databases", 1) == 1
        answers: dict[str, list[str]] = {"secrets": [], "nothing": []}
        to_member, to_shop = (
            realms.parts[shop.id].mesh.peers[member.id].link,
            realms.parts[member.id].mesh.peers[shop.id].link,
        )
        came: list[str] = []
        post = Link.post

        def note(link: Link, message: Message, *args: Any, **options: Any) -> None:
            if link is to_shop:
                came.append(str(message.names if isinstance(message, kinds.Received) else message))
            post(link, message, *args, **options)

        monkeypatch.setattr(Link, "post", note)
        for tunnel, (cluster, seen) in enumerate(answers.items(), 1_000):
            for message in (
                kinds.Request(2**40, cluster, None, 1000, 0, None, b""),
                kinds.Broadcast(cluster, None, b"", 0),
                kinds.BroadcastCreditWanted(cluster, 10**9),
                kinds.ReceivedWanted(7),
                kinds.TunnelOpen(tunnel, cluster, None, None, 65536, 65536),
            ):
                came.clear()
                to_member.post(message, 64)
                await trio.sleep(5)
                seen += [
                    answer.replace(cluster, "X").replace(f"id={tunnel}", "id=0").replace(f"id=-{tunnel}", "id=0")
                    for answer in came
                ]
        assert len(answers["secrets"]) >= 3
        assert answers["secrets"] == answers["nothing"]


async def test_what_is_not_imported_is_not_seen(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce(imports=("wanted",))
        await realms.link()
        await realms.theirs.member("eu", echo("unwanted"))
        shop = await realms.shop(echo("wanted"))
        assert await shop.request("acme/wanted", b"x") == b"x"
        with pytest.raises(NoSuchCluster, match="or it is not imported here"):
            await shop.request("acme/unwanted")


async def test_the_gateway_has_to_export_it_as_well(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link(policy=Policy(exports=("databases",)))
        await realms.theirs.member("eu", echo("other"))
        shop = await realms.shop(echo("databases"))
        with pytest.raises(NoSuchCluster, match="no reachable member"):
            await shop.request("acme/other")


@pytest.mark.parametrize(
    ("allow", "callers", "served"),
    [
        (None, None, False),
        (None, ("shop",), True),
        (None, ("other",), False),
        (["partner/shop"], None, True),
        (["shop"], (">",), False),
        (["partner/other"], (">",), False),
        (["other/shop"], (">",), False),
    ],
)
async def test_callers_of_another_realm_are_served_only_if_they_are_named(
    allow: list[str] | None, callers: tuple[str, ...] | None, served: bool, autojump_clock: MockClock
) -> None:
    service = iris.Service("databases", allow=allow)

    @service.request
    async def reply(request: iris.Request) -> object:
        return "served"

    @service.tunnel
    async def mirror(tunnel: iris.Tunnel) -> None:
        async for payload in tunnel:
            await tunnel.send(payload)

    async with open_realms() as realms:
        realms.introduce(callers=callers)
        await realms.link()
        shop = await realms.shop(service)
        if served:
            assert await shop.request("acme/databases") == "served"
            async with shop.open_tunnel("acme/databases") as tunnel:
                await tunnel.send(b"x")
                assert await tunnel.receive() == b"x"
            return
        with pytest.raises(NotAllowed, match="does not serve cluster 'shop' of realm"):
            await shop.request("acme/databases")
        with pytest.raises(NotAllowed):
            async with shop.open_tunnel("acme/databases"):
                pass
        async with shop.survey("acme/databases", b"") as answers:
            assert [answer async for answer in answers] == []
        assert [type(error) for error in answers.errors.values()] == [NotAllowed]


async def test_a_realm_that_nobody_trusts_is_one_clear_error(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        shop = await realms.ours.node("eu", "shop")
        with pytest.raises(NoSuchCluster, match="no realm is trusted here by the name of 'acme'"):
            await shop.request("acme/databases")
        with pytest.raises(NoSuchCluster, match="no realm is trusted here"):
            await shop.broadcast("acme/databases", b"")
        with pytest.raises(NoSuchCluster, match="no realm is trusted here"):
            async with shop.open_tunnel("acme/databases"):
                pass
        with pytest.raises(NoSuchCluster, match="no realm is trusted here"):
            async with shop.survey("acme/databases", b""):
                pass
        with pytest.raises(ConfigError, match="no realm is trusted here by the name of 'acme'"):
            await realms.ours.gateway("eu", to=["acme/acme-eu-gateway"])


async def test_trust_on_one_side_only_links_nobody(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.ours.network.trust(realms.theirs.network.bundle("acme", ">"))
        await realms.link()
        await realms.theirs.member("eu", echo("databases"))
        shop = await realms.ours.node("eu", "shop")
        await trio.sleep(30)
        assert realms.theirs.gateways["acme-eu-gateway"].statistics().neighbours == {}
        assert shop.clusters() == ()


async def test_distrust_cuts_off_everything_and_trust_brings_it_back(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(echo("databases"))
        member = realms.theirs.nodes["acme-eu-databases"]
        assert await shop.request("acme/databases", 1) == 1
        assert shop.id in member.statistics().links
        realms.theirs.network.distrust("partner")
        assert shop.id not in member.statistics().links, "at once"
        with pytest.raises(iris.IrisError):
            await shop.request("acme/databases", timeout=2)
        await trio.sleep(10)
        assert realms.ours.gateways["eu-gateway"].statistics().neighbours == {}
        assert "acme/databases" not in shop.clusters()
        with pytest.raises(NoSuchCluster):
            await shop.request("acme/databases")
        realms.theirs.network.trust(realms.ours.network.bundle("ours", ">"), "partner", callers=(">",))
        await realms.ours.gateways["eu-gateway"].wait_for_site("acme/eu")
        await trio.sleep(1)
        assert await shop.request("acme/databases", 2) == 2


async def test_a_narrower_bundle_is_in_force_at_once_and_a_longer_one_breaks_nothing(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(echo("databases"), echo("store"))
        assert await shop.request("acme/databases", 1) == 1
        assert await shop.request("acme/store", 1) == 1
        member = realms.theirs.nodes["acme-eu-databases"]
        realms.ours.network.trust(realms.theirs.network.bundle("acme", ">"))
        assert shop.id in member.statistics().links, "the same lists: nobody is cut off"
        realms.theirs.network.bundle("acme", "store")
        await trio.sleep(10)
        with pytest.raises(NoSuchCluster):
            await shop.request("acme/databases")
        assert await shop.request("acme/store", 2) == 2


async def test_what_is_imported_later_is_told_anew_by_gateways_that_had_the_new_lists_before(
    autojump_clock: MockClock,
) -> None:
    """Credentials are refreshed one after the other: here that of the gateway at the border first."""
    async with open_realms() as realms:
        realms.introduce(imports=("databases",))
        await realms.link()
        behind = await realms.ours.gateway("us", to=["eu-gateway"])
        await realms.theirs.member("eu", echo("databases"))
        await realms.theirs.member("eu", echo("store"))
        shop = await realms.ours.shop("us", "acme/databases")
        late = [realms.parts[realms.ours.nodes[name].id].mesh for name in ("us-gateway", "us-shop")]
        former = late[0].identity.trusted
        realms.ours.network.trust(realms.theirs.network.bundle("acme", ">"), imports=("databases", "store"))
        wider = late[0].identity.trusted
        for mesh in late:
            mesh.renew_identity(dataclasses.replace(mesh.identity, trusted=former))
        await trio.sleep(10)
        with pytest.raises(NoSuchCluster):
            await shop.request("acme/store")
        for mesh in late:
            mesh.renew_identity(dataclasses.replace(mesh.identity, trusted=wider))
        await trio.sleep(2)
        assert await shop.request("acme/store", 1) == 1
        told = realms.ours.gateways["eu-gateway"].statistics().sent
        await trio.sleep(10)
        assert realms.ours.gateways["eu-gateway"].statistics().sent == told, "asked once"
        assert behind.statistics().sites == ("acme/eu", "eu")


async def test_trust_ends_with_the_bundle(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        realms.ours.network.trust(realms.theirs.network.bundle("acme", ">", lifetime=90))
        await realms.link()
        shop = await realms.shop(echo("databases"))
        await trio.sleep(60)
        assert await shop.request("acme/databases", 1) == 1
        await trio.sleep(50)
        with pytest.raises(NoSuchCluster):
            await shop.request("acme/databases")
        assert realms.theirs.nodes["acme-eu-databases"].id not in shop.statistics().links
        realms.ours.network.trust(realms.theirs.network.bundle("acme", ">"))
        await shop.wait_for("acme/databases", timeout=30)
        assert await shop.request("acme/databases", 2) == 2
