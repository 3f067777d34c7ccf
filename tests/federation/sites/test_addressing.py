"""Choice of the site for a request: the nearest, the named one, and others when that is gone or full."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.errors import ConfigError, NoSuchCluster, Overloaded
from tests.support.federations import Federation, echo, open_federation


async def chain(federation: Federation, *sites: str) -> None:
    """Bring up gateways of which each is linked to the next one only."""
    for number, site in enumerate(sites):
        await federation.gateway(site, to=[f"{sites[number - 1]}-gateway"] if number else [])


async def test_members_of_the_own_site_are_asked_first_and_others_when_there_are_none(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        await chain(federation, "berlin", "paris")
        await federation.member("berlin", echo("store", "berlin"), "one")
        await federation.member("paris", echo("store", "paris-1"), "one")
        await federation.member("paris", echo("store", "paris-2"), "two")
        shop = await federation.node("paris", "shop")
        await shop.wait_for("store", members=3)
        asked = Counter([await shop.request("store") for _ in range(100)])
        assert asked.keys() == {"paris-1", "paris-2"}
        federation.crash("paris-one")
        federation.crash("paris-two")
        assert await shop.request("store", options=iris.RequestOptions(idempotent=True)) == "berlin"


async def test_the_nearest_of_other_sites_is_asked_first(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await chain(federation, "one", "two", "three", "four")
        for site in ("two", "four"):
            await federation.member(site, echo("store", site), "store")
        shop = await federation.node("one", "shop")
        await shop.wait_for("store", members=2)
        assert {await shop.request("store") for _ in range(50)} == {"two"}
        federation.crash("two-store")
        with trio.fail_after(10):
            assert await shop.request("store", timeout=10, options=iris.RequestOptions(idempotent=True)) == "four"


async def test_a_site_that_is_named_is_asked_and_no_other(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.ring("eu", "us", "ap")
        for site in ("eu", "us", "ap"):
            await federation.member(site, echo("store", site), "store")
        shop = await federation.node("us", "shop")
        await shop.wait_for("store", members=3)
        for site in ("ap", "eu", "us"):
            assert {await shop.request(f"store@{site}") for _ in range(20)} == {site}
        assert {await shop.request("store") for _ in range(20)} == {"us"}
        with pytest.raises(NoSuchCluster):
            await shop.request("store@moon")
        federation.crash("ap-store")
        await trio.sleep(5)
        with pytest.raises(NoSuchCluster):
            await shop.request("store@ap")
        assert await shop.request("store@eu") == "eu"


async def test_a_tunnel_goes_to_the_site_that_is_named(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await chain(federation, "eu", "us")
        for site in ("eu", "us"):
            await federation.member(site, echo("store"), "store")
        shop = await federation.node("us", "shop")
        await shop.wait_for("store", members=2)
        async with shop.open_tunnel("store@eu") as tunnel:
            await tunnel.send(b"far")
            assert await tunnel.receive() == b"far"
            assert tunnel.sender.node == federation.nodes["eu-store"].id


async def test_work_spills_to_another_site_when_this_one_is_full(autojump_clock: MockClock) -> None:
    def slow(site: str) -> iris.Service:
        service = iris.Service("store")

        @service.request
        async def work(request: iris.Request) -> object:
            await trio.sleep(0.5)
            return site

        return service

    async with open_federation() as federation:
        await chain(federation, "eu", "us")
        for site in ("eu", "us"):
            node = await federation.node(site, "store")
            await federation.enter(node.join("store", slow(site), limits=iris.Limits(concurrency=2, queue=1)))
        shop = await federation.node("us", "shop")
        await shop.wait_for("store", members=2)
        assert await shop.request("store") == "us"
        await trio.sleep(1)  # the spare at the other site is linked by now
        answers: Counter[object] = Counter()

        async def ask() -> None:
            try:
                answers[await shop.request("store")] += 1
            except Overloaded:
                answers["overloaded"] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
        assert answers == {"us": 3, "eu": 3, "overloaded": 2}


@pytest.mark.parametrize("address", ["store@", "@eu", "store@a b", "store@eu@us"])
async def test_what_is_no_address_is_refused(autojump_clock: MockClock, address: str) -> None:
    async with open_federation() as federation:
        shop = await federation.node("us", "shop")
        with pytest.raises(ConfigError):
            await shop.request(address)
        with pytest.raises(ConfigError):
            await shop.broadcast(address, b"")
        with pytest.raises(ConfigError):
            shop.open_tunnel(address)


async def test_the_own_site_can_be_named_without_any_gateway(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.member("us", echo("store", "us"), "one")
        shop = await federation.node("us", "shop")
        await shop.wait_for("store")
        assert await shop.request("store@us") == "us"
        await federation.member("us", echo("store", "us too"), "two")
        await shop.wait_for("store@us", members=2)
        assert {await shop.request("store@us") for _ in range(30)} == {"us", "us too"}


async def test_a_site_that_a_request_prefers_is_asked_and_another_when_it_is_gone(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await chain(federation, "one", "two", "three")
        for site in ("one", "two", "three"):
            await federation.member(site, echo("store", site), "store")
        shop = await federation.node("one", "shop")
        await shop.wait_for("store", members=3)
        assert {await shop.request("store", options=iris.RequestOptions(prefer_site="three")) for _ in range(20)} == {
            "three"
        }
        assert {await shop.request("store", options=iris.RequestOptions(prefer_site="one")) for _ in range(20)} == {
            "one"
        }
        assert {await shop.request("store", options=iris.RequestOptions(prefer_site="nowhere")) for _ in range(20)} == {
            "one"
        }
        federation.crash("three-store")
        with trio.fail_after(10):
            assert (
                await shop.request(
                    "store", timeout=10, options=iris.RequestOptions(prefer_site="three", idempotent=True)
                )
                != "three"
            )
        with pytest.raises(ConfigError, match="exclude each other"):
            await shop.request("store", options=iris.RequestOptions(prefer=shop.id, prefer_site="two"))
        with pytest.raises(ConfigError, match="site"):
            await shop.request("store", options=iris.RequestOptions(prefer_site="no site!"))


@pytest.mark.parametrize("by", ["request", "tunnel", "node"])
async def test_a_preferred_site_that_does_not_answer_leaves_the_others_time_to_do_so(
    autojump_clock: MockClock, by: str
) -> None:
    async with open_federation() as federation:
        await federation.mesh("one", "two")
        for site in ("one", "two"):
            await federation.member(site, echo("store", site), "store")
        shop = await federation.node("one", "shop", prefer_site="two" if by == "node" else None)
        await shop.wait_for("store", members=2)
        federation.alter_frames(federation.gateways["two-gateway"], lambda _: [])  # frames to its members end there
        began = trio.current_time()
        if by == "tunnel":
            async with shop.open_tunnel("store", timeout=2.0, prefer_site="two") as tunnel:
                await tunnel.send(b"there and back")
                assert await tunnel.receive() == b"there and back"
        else:
            options = iris.RequestOptions(prefer_site="two" if by == "request" else None)
            assert await shop.request("store", timeout=2.0, options=options) == "one"
        assert 0.5 < trio.current_time() - began < 2


async def test_a_tunnel_goes_to_the_site_that_is_preferred_and_to_another_when_it_is_gone(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        await chain(federation, "one", "two", "three")
        members = {site: await federation.member(site, echo("store"), "store") for site in ("one", "two", "three")}
        shop = await federation.node("one", "shop")
        await shop.wait_for("store", members=3)
        for site in ("three", "one", "two", "three"):
            async with shop.open_tunnel("store", prefer_site=site) as tunnel:
                assert tunnel.sender.node == members[site].id
                await tunnel.send(b"there and back")
                assert await tunnel.receive() == b"there and back"
        async with shop.open_tunnel("store@two", prefer_site="three") as tunnel:
            assert tunnel.sender.node == members["two"].id
        federation.crash("three-store")
        await trio.sleep(10)
        async with shop.open_tunnel("store", prefer_site="three") as tunnel:
            assert tunnel.sender.node == members["one"].id
        with pytest.raises(ConfigError, match="site"):
            shop.open_tunnel("store", prefer_site="no site!")


async def test_a_node_asks_sites_in_the_order_that_it_was_given(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await chain(federation, "one", "two", "three")
        for site in ("one", "two", "three"):
            await federation.member(site, echo("store", site), "store")
        preferring = await federation.node("one", "preferring", prefer_site="three")
        ordering = await federation.node("one", "ordering", prefer_site={"two": 1, "one": 3, "three": 2})
        for node in (preferring, ordering):
            await node.wait_for("store", members=3)
        assert {await preferring.request("store") for _ in range(20)} == {"three"}
        assert {await ordering.request("store") for _ in range(20)} == {"two"}
        federation.crash("two-store")
        with trio.fail_after(10):
            assert await ordering.request("store", timeout=10, options=iris.RequestOptions(idempotent=True)) in (
                "three",
                "one",
            )
        await trio.sleep(5)
        assert {await ordering.request("store") for _ in range(20)} == {"three"}


async def test_an_order_of_sites_is_for_a_node_at_a_site(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        with pytest.raises(ConfigError, match="give site="):
            await federation.node(None, "shop", prefer_site="eu")
        with pytest.raises(ConfigError, match="priority"):
            await federation.node("eu", "shop", prefer_site={"us": 99})
