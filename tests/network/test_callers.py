"""Nodes that were not told where to listen, over the real network: they open no port until they serve."""

from __future__ import annotations

import pytest
import trio

import iris
from iris.testing import inspect
from tests.network.test_dial_only import TCP, WEB, check_patterns, open_realm
from tests.support.federations import echo


def kind_of(node: iris.Node, other: iris.Node) -> str:
    """Return how frames go from one node to another."""
    peer = inspect(node).peers[other.id]
    return "relay" if next(iter(peer.addresses), "").startswith("via://") else "direct"


@pytest.mark.parametrize("url", [TCP, WEB])
async def test_who_serves_nothing_opens_no_port_and_uses_every_pattern(url: str) -> None:
    async with (
        open_realm() as realm,
        realm.open("office", listen=[url]) as office,
        realm.open_parts("desk", office) as (desk, parts),
        office.join("office", echo("office")),
    ):
        await check_patterns(desk, "office", office)
        assert desk.addresses == ()
        assert parts.transport.statistics().reverse == 1  # type: ignore[attr-defined]  # it is the real one


async def test_a_client_opens_no_port_either() -> None:
    async with (
        open_realm() as realm,
        realm.open("office", listen=[TCP]) as office,
        realm.open("store", office, listen=[TCP]) as store,
        store.join("store", echo("store")),
        realm.open("desk", office, client=True) as desk,
    ):
        assert await desk.request("store", bytes(2**20), wait=20) == bytes(2**20)
        async with desk.survey("store", "here?") as answers:
            assert [answer.payload async for answer in answers] == ["here?"]
        async with desk.open_tunnel("store") as tunnel:
            await tunnel.send(b"there")
            assert await tunnel.receive() == b"there"
        assert desk.addresses == ()


async def test_two_of_them_publish_and_subscribe_through_a_member() -> None:
    async with (
        open_realm() as realm,
        realm.open("office", listen=[TCP]) as office,
        realm.open("web", office) as web,
        realm.open("desk", office) as desk,
    ):
        while desk.id not in inspect(web).peers or web.id not in inspect(desk).peers:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert kind_of(web, desk) == kind_of(desk, web) == "relay"
        async with desk.subscribe("news") as events:
            while not events.statistics().received:
                await web.publish("news", "first")
                await trio.sleep(0.01)
            assert (await anext(events)).payload == "first"
        assert web.addresses == desk.addresses == ()


async def test_one_that_begins_to_serve_is_dialled_directly_also_by_who_was_linked_through_others() -> None:
    async with (
        open_realm() as realm,
        realm.open("office", listen=[TCP]) as office,
        realm.open("desk", office) as desk,
        realm.open("store", office) as store,
    ):
        while desk.id not in inspect(store).peers or store.id not in inspect(desk).peers:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert kind_of(desk, store) == "relay"
        async with store.join("store", echo("store")):
            (url,) = store.addresses
            assert url.startswith("tcp://127.0.0.1:")
            while "relay" in (kind_of(desk, store), kind_of(store, desk)):  # noqa: ASYNC110
                await trio.sleep(0.01)
            await check_patterns(desk, "store", store)
            async with desk.join("desk", echo("desk")):  # now both listen
                await check_patterns(store, "desk", desk)
                await check_patterns(desk, "store", store)
                assert kind_of(desk, store) == kind_of(store, desk) == "direct"
