"""Blame: a gateway loses nothing for what it carried, and a member nothing for what a gateway did."""

from __future__ import annotations

import contextlib

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel import wire
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.testing import Rights
from tests.federation.realms.test_revocation import revoke
from tests.support.federations import echo, open_federation
from tests.support.two_realms import open_realms


@pytest.mark.filterwarnings("ignore")
async def test_an_event_that_finds_a_bug_costs_its_publisher_the_link_and_not_the_gateway(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_federation() as federation:
        await federation.mesh("us", "eu")
        ear, other = await federation.node("eu", "ear"), await federation.node("eu", "other")
        till = await federation.node("us", "till")
        async with ear.subscribe("orders.>") as events, other.subscribe("orders.>"):
            await trio.sleep(2)
            await till.publish("orders.1", 1)
            with trio.fail_after(5):
                assert (await anext(events)).payload == 1

            def fail(*_: object, **__: object) -> None:
                raise ValueError("a bug")

            gateway = NodeId(federation.nodes["eu-gateway"].id)
            link = federation.parts[ear.id].mesh.peers[gateway]
            monkeypatch.setattr(federation.parts[ear.id].mesh, "deliver", fail)
            await till.publish("orders.2", 2)
            await trio.sleep(1)
            monkeypatch.undo()
            assert federation.parts[ear.id].mesh.peers.get(gateway) is link
            refusals = ear.statistics().refusals
            assert any(reason.startswith("unexpected error") for reason in refusals), refusals
            federation.parts[ear.id].mesh.refusals.clear()


async def test_garbage_that_a_node_sends_through_gateways_costs_neither_of_them_a_link(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        assert await shop.request("store", 1) == 1
        store = federation.nodes["eu-store"]
        gateways = [federation.gateways[name] for name in ("eu-gateway", "us-gateway")]
        near = NodeId(federation.nodes["us-gateway"].id)
        links = [dict(federation.between[gateway].peers) for gateway in gateways]
        link = federation.parts[shop.id].mesh.peers[near].link
        ends = ("eu", bytes.fromhex(store.id), "us", bytes.fromhex(shop.id))
        for kind in range(8):
            for body in (b"", bytes(3), bytes(64), bytes(2_000)):
                link.post(kinds.Carry(9, *ends, bytes((kind, wire.VERSION)) + body), 2_100)
        for targets in ((), (("eu", b""),), (("eu", bytes(15)),), (("", bytes(16)),), (("eu", bytes(16 * 40)),)):
            link.post(kinds.Copy(9, "us", bytes.fromhex(shop.id), targets, bytes(40)), 700)
        link.post(kinds.CarryRefused(9, *ends, 200), 64)
        link.post(kinds.Traced(0, *ends, 5), 64)
        await trio.sleep(3)
        assert await shop.request("store", 2) == 2
        for gateway, before in zip(gateways, links, strict=True):
            assert dict(federation.between[gateway].peers) == before
        assert NodeId(federation.nodes["eu-gateway"].id) in federation.parts[store.id].mesh.peers


async def test_one_cluster_name_in_two_realms_is_two_clusters(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        await realms.theirs.member("eu", echo("store", "theirs"))
        await realms.ours.member("eu", echo("store", "ours"))
        shop = await realms.ours.node("eu", "shop")
        for name in ("store", "acme/store"):
            await shop.wait_for(name)
        for _ in range(10):
            assert await shop.request("store", 1) == "ours"
            assert await shop.request("acme/store", 1) == "theirs"


async def test_a_tunnel_through_two_gateways_ends_when_its_caller_is_revoked(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        federation.network.credential("shop", Rights())
        ended = trio.Event()
        service = iris.Service("store")

        @service.tunnel
        async def flow(tunnel: iris.Tunnel) -> None:
            try:
                async for _ in tunnel:
                    pass
            finally:
                ended.set()

        shop = await federation.two_sites(service)
        store = federation.nodes["eu-store"]
        async with trio.open_nursery() as nursery:

            async def use() -> None:
                with contextlib.suppress(iris.IrisError, trio.BrokenResourceError, trio.ClosedResourceError):
                    async with shop.open_tunnel("store") as tunnel:
                        while True:
                            await tunnel.send(b"x")
                            await trio.sleep(0.1)

            nursery.start_soon(use)
            await trio.sleep(2)
            assert not ended.is_set()
            assert await store.revoke(revoke(federation.network, 1, shop=2).signed)
            with trio.fail_after(10):
                await ended.wait()
            nursery.cancel_scope.cancel()


async def test_distrust_ends_a_tunnel_that_is_open(autojump_clock: MockClock) -> None:
    ended = trio.Event()
    service = iris.Service("store")

    @service.tunnel
    async def flow(tunnel: iris.Tunnel) -> None:
        try:
            async for _ in tunnel:
                pass
        finally:
            ended.set()

    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(service)
        async with trio.open_nursery() as nursery:

            async def use() -> None:
                with contextlib.suppress(iris.IrisError, trio.BrokenResourceError, trio.ClosedResourceError):
                    async with shop.open_tunnel("acme/store") as tunnel:
                        while True:
                            await tunnel.send(b"x")
                            await trio.sleep(0.1)

            nursery.start_soon(use)
            await trio.sleep(2)
            assert not ended.is_set()
            realms.theirs.network.trust(realms.ours.network.bundle("ours", ">"), "partner", callers=("others",))
            with trio.fail_after(10):
                await ended.wait()
            nursery.cancel_scope.cancel()
