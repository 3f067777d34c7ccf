"""A node that only dials out, over the real network: TCP and WebSocket on loopback, both directions dialled by it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
import iris.testing
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.node.environment import Environment
from iris.node.open import OpenNode, open_parts
from tests.support.federations import echo

WEB = "ws://127.0.0.1:0/iris"
TCP = "tcp://127.0.0.1:0"
ALONE = Environment(directory=None, lan=None)
"""The real network, and no files: nodes find each other by their seeds only."""


class Realm:
    """Nodes of one realm on this machine."""

    def __init__(self, network: iris.testing.Network) -> None:
        self._network = network

    def open_parts(self, name: str, *seeds: iris.Node, **options: Any) -> AbstractAsyncContextManager[OpenNode]:
        urls = list(itertools.chain.from_iterable(seed.addresses for seed in seeds))
        credential = self._network.credential(name)
        return open_parts(credential=credential, seeds=urls, environment=ALONE, **options)

    @asynccontextmanager
    async def open(self, name: str, *seeds: iris.Node, **options: Any) -> AsyncIterator[iris.Node]:
        async with self.open_parts(name, *seeds, **options) as opened:
            yield opened.node


@asynccontextmanager
async def open_realm() -> AsyncIterator[Realm]:
    async with iris.testing.open_network() as network:
        with trio.fail_after(60):
            yield Realm(network)


async def check_patterns(node: iris.Node, cluster: str, other: iris.Node) -> None:
    """Have ``node`` use every pattern towards ``other``, which is the only member of ``cluster``."""
    await node.wait_for(cluster, timeout=30)
    assert await node.request(cluster, bytes(2**20)) == bytes(2**20)
    async with node.open_tunnel(cluster) as tunnel, other.subscribe("news.>") as events:
        # Publishers at another site know of a subscription a moment after it is there.
        while not events.statistics().received:
            await node.publish("news.today", None)
            await trio.sleep(0.01)
        for number in range(20):
            await tunnel.send(b"%d" % number)
            assert await tunnel.receive() == b"%d" % number
            await node.publish("news.today", number)
            while (heard := (await anext(events)).payload) is None:
                pass
            assert heard == number
    async with node.survey(cluster, "here?") as answers:
        assert [answer.payload async for answer in answers] == ["here?"]


@pytest.mark.parametrize("url", [WEB, TCP])
async def test_every_pattern_works_in_both_directions(url: str) -> None:
    async with (
        open_realm() as realm,
        realm.open("office", listen=[url]) as office,
        realm.open("home", office, dial_only=True) as home,
        office.join("office", echo("office")),
        home.join("home", echo("home")),
    ):
        assert home.addresses == ()
        await check_patterns(office, "home", home)
        await check_patterns(home, "office", office)
        assert len(office.statistics().links) == len(home.statistics().links) == 1


async def test_two_of_them_speak_through_a_third_node() -> None:
    async with (
        open_realm() as realm,
        realm.open("office", listen=[TCP]) as office,
        realm.open("one", office, dial_only=True) as one,
        realm.open("two", office, dial_only=True) as two,
        one.join("one", echo("one")),
        two.join("two", echo("two")),
    ):
        await check_patterns(one, "two", two)
        await check_patterns(two, "one", one)


@pytest.mark.parametrize("url", [WEB, TCP])
async def test_it_comes_back_when_a_connection_is_cut(url: str) -> None:
    async with (
        open_realm() as realm,
        realm.open_parts("office", listen=[url]) as (office, office_parts),
        realm.open_parts("home", office, dial_only=True) as (home, home_parts),
        office.join("office", echo("office")),
        home.join("home", echo("home")),
    ):
        await office.wait_for("home")
        await home.wait_for("office")
        for parts, other in ((home_parts, office), (office_parts, home)):
            mesh = parts.mesh
            (connection,) = mesh._inbound._owned[other.id]
            parts.transport.hang_up(connection)
            before = mesh.outgoing_to(other.id)
            while mesh.outgoing_to(other.id) in (before, None):
                await trio.lowlevel.checkpoint()
            for membership, node in ((office_parts.membership, home), (home_parts.membership, office)):
                while membership.is_suspected(node.id):
                    await membership.wait_news()
            assert await office.request("home", 1, options=iris.RequestOptions(idempotent=True)) == 1
            assert await home.request("office", 2, options=iris.RequestOptions(idempotent=True)) == 2


async def test_a_seed_that_cannot_be_used_is_told_in_one_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with (
        open_realm() as realm,
        realm.open("office", listen=[f"ipc://{tmp_path}/office"]) as office,
        realm.open("home", office, dial_only=True) as home,
    ):
        assert home.statistics().links == {}
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("this node listens nowhere, and ipc:///")


async def test_a_gateway_that_listens_nowhere_joins_two_sites() -> None:
    everything = Policy(exports=(">",), export_topics=(">",))
    async with (
        open_realm() as realm,
        realm.open("gate-eu", site="eu", listen=[WEB]) as gate_eu,
        realm.open("gate-us", site="us", listen=[WEB]) as gate_us,
        open_gateway(gate_eu, listen=[WEB], policy=everything) as eu,
        open_gateway(gate_us, peers=eu.addresses, policy=everything) as us,
        realm.open("office", gate_eu, site="eu", listen=[WEB]) as office,
        realm.open("home", gate_us, site="us", dial_only=True) as home,
        office.join("office", echo("office")),
        home.join("home", echo("home")),
    ):
        assert us.addresses == ()
        await check_patterns(office, "home", home)
        await check_patterns(home, "office", office)
        assert eu.statistics().carried > 0
