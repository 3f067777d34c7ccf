"""Sites and links in a survey: what a graph of the realm is drawn from."""

from __future__ import annotations

import trio
from trio.testing import MockClock

import iris
from iris.node.operators import linked
from iris.node.realm import RealmSurvey
from iris.node.report import MOST_LINKS, LinkReport, report_of
from iris.testing import open_network
from tests.support.federations import echo, open_federation


async def test_a_view_has_each_link_once_with_its_round_trip_time(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as one,
        network.open_node("app") as two,
        network.open_node("operator") as operator,
    ):
        await trio.sleep(10)
        view = await RealmSurvey(operator).collect()
        ends = {frozenset((link.a, link.b)): link for link in view.links()}
        assert len(view.links()) == len(ends) == 3
        assert ends.keys() == {
            frozenset(pair) for pair in ((one.id, two.id), (one.id, operator.id), (two.id, operator.id))
        }
        between = ends[frozenset((one.id, two.id))]
        assert between.a < between.b
        assert (between.kind, between.a_site, between.b_site) == ("mem", "", "")
        assert between.round_trip is not None
        assert 0 <= between.round_trip < 0.1
        (site,) = view.sites()
        assert (site.site, set(site.nodes), site.gateways) == ("", {one.id, two.id}, ())


async def test_a_view_has_the_sites_and_the_links_of_gateways(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        assert await shop.request("store", b"x") == b"x"
        operator = await federation.node("us", "operator")
        await trio.sleep(5)
        view = await RealmSurvey(operator).collect()
        here, there = federation.nodes["us-gateway"].id, federation.nodes["eu-gateway"].id
        eu, us = view.sites()
        assert (eu.site, eu.nodes, eu.gateways) == ("eu", (), (there,))
        assert (us.site, set(us.nodes), us.gateways) == ("us", {here, shop.id}, (here,))
        links = {frozenset((link.a, link.b)): link for link in view.links()}
        way = links[frozenset((here, there))]
        assert {(way.a, way.a_site), (way.b, way.b_site)} == {(here, "us"), (there, "eu")}
        assert way.kind == "mem"
        assert way.round_trip is not None
        member = federation.nodes["eu-store"].id
        assert links[frozenset((shop.id, member))].kind == "gateway"


async def test_a_report_holds_the_heaviest_links_and_counts_the_rest(autojump_clock: MockClock) -> None:
    async with open_network() as network, network.open_node("app") as node:
        links = [LinkReport(peer=f"{n:032x}", site="s" * 60, kind="tcp", round_trip=0.1) for n in range(1000)]
        report = report_of(node.statistics(), 1.0, site="eu", linked=links)
        assert report.linked == links[:MOST_LINKS]
        assert report.omitted == 1000 - MOST_LINKS


async def test_links_to_other_sites_come_first_in_a_report(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        for number in range(3):
            await federation.node("us", f"more{number}")
        await shop.request("store", b"x" * 1000)
        gateway: iris.Node = federation.nodes["us-gateway"]
        assert [link.site for link in linked(gateway)] == ["eu", "us", "us", "us", "us"]
        assert [link.site for link in linked(shop)] == ["eu", "us", "us", "us", "us"]
