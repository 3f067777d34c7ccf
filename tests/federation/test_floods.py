"""Neighbours that send more of the directory, or ask for more of it, than an honest one would."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.directory.directory import SiteDirectory, TooManyChanges
from iris.cluster.directory.messages import CLUSTER, Export, Hop, RouteAdvertisement, wanted
from iris.cluster.directory.neighbour_table import UPDATES
from iris.federation.advertising import Advertiser
from iris.kernel.names import NodeId
from iris.kernel.token_bucket import TokenBucket
from iris.kernel.wire import kinds
from tests.support.federations import open_federation, reports_of
from tests.support.site_worlds import export_just


async def test_a_gateway_that_floods_is_not_listened_to_and_the_rest_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_federation(seed=7) as federation:
        shop, flooder = await federation.three_sites()
        own = federation.nodes["ap-gateway"]
        us = federation.nodes["us-gateway"]
        link = flooder._between.peers[us.id].link
        for false in (Hop(f"x{number % 200}", own.id) for number in range(3_000)):
            link.post(RouteAdvertisement(false, (Hop("ap", own.id), false)).message(), 50)
        await trio.sleep(2)
        assert federation.gateways["us-gateway"].statistics().sites == ("eu",)
        assert await shop.request("store", 1) == 1
        await trio.sleep(60)
        assert federation.gateways["us-gateway"].statistics().sites == ("ap", "eu")
        assert len(reports_of(caplog, "floods the directory")) == 1


async def test_a_flooder_is_not_heard_earlier_for_asking_that_all_be_told_anew(autojump_clock: MockClock) -> None:
    async with open_federation(seed=7) as federation:
        await federation.mesh("us", "ap")
        await federation.wait_for_sites("us", "ap")
        us, own = federation.gateways["us-gateway"], federation.nodes["ap-gateway"]
        link = federation.gateways["ap-gateway"]._between.peers[federation.nodes["us-gateway"].id].link
        route = RouteAdvertisement(Hop("ap", own.id), (Hop("ap", own.id),)).message()
        for _ in range(2):
            for _ in range(UPDATES + 100):
                link.post(route, 50)
            link.post(kinds.Reset(), 0)
            await trio.sleep(1)
            assert us.statistics().sites == ()
        assert us._between.refusals["message of kind Route"] >= UPDATES
        await trio.sleep(60)
        assert us.statistics().sites == ("ap",)


async def test_many_sites_of_one_name_are_reported_once_for_each_name_and_not_without_end(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.federation.reports._MAX_REPORTED", 3)
    async with open_federation(seed=7) as federation:
        await federation.mesh("eu", "us", "ap")
        await federation.wait_for_sites("eu", "us", "ap")
        own = Hop("ap", federation.nodes["ap-gateway"].id)
        link = federation.gateways["ap-gateway"]._between.peers[federation.nodes["us-gateway"].id].link
        for site in ("eu", "x1", "x2", "x3", "x4"):
            for number in range(10):
                false = Hop(site, NodeId(f"{number:030x}{site.encode().hex()[-2:]}"))
                link.post(RouteAdvertisement(false, (own, false)).message(), 50)
        await trio.sleep(20)
        reports = reports_of(caplog, "another site has that name")
        assert sum("'eu'" in report for report in reports) == 1
        assert sorted(report.split("'")[1] for report in reports) == ["eu", "x1", "x2"]


async def test_a_gateway_that_asks_for_everything_again_and_again_is_not_listened_to(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_federation(seed=7) as federation:
        shop, asker = await federation.three_sites()
        gateway, us = federation.gateways["us-gateway"], federation.nodes["us-gateway"]
        question = wanted(Hop("eu", federation.nodes["eu-gateway"].id))
        told = gateway.statistics().sent
        for link in (asker._between.peers[us.id].link, shop._parts.mesh.peers[us.id].link):
            for _ in range(3_000):
                link.post(question, 50)
        await trio.sleep(2)
        assert gateway.statistics().sites == ("eu",)
        assert gateway.statistics().sent - told < 50, "questions of one moment are answered once"
        assert us.statistics().refusals["message of kind ExportsWanted"] == 1_000
        assert await shop.request("store", 1) == 1
        await trio.sleep(60)
        assert gateway.statistics().sites == ("ap", "eu")
        assert len(reports_of(caplog, "floods the directory")) == 1
        assert len(reports_of(caplog, "tells what cannot be")) == 1


def test_tokens_are_spent_at_once_and_come_back_with_time() -> None:
    tokens = TokenBucket(10, 2.0, 100.0)
    assert [tokens.spend(100.0, 4), tokens.spend(100.0, 4), tokens.spend(100.0, 4)] == [True, True, False]
    assert tokens.spend(100.0, 2), "what was refused took nothing"
    assert not tokens.spend(100.4)
    assert tokens.spend(100.5)
    assert not tokens.spend(1_000.0, 11), "no more are kept than there were at first"
    assert tokens.spend(1_000.0, 10)


@pytest.mark.parametrize("paced", [True, False])
def test_two_who_tell_nearly_too_much_make_no_flooder_of_who_passes_it_on(paced: bool) -> None:
    eu, us, ap, sa, member = (NodeId(f"{number:032x}") for number in range(1, 6))
    own = Hop("us", us)
    directory, there = SiteDirectory(own), SiteDirectory(Hop("eu", eu))
    directory.add(ap, 0.0, local=False)
    directory.add(sa, 0.0, local=False)
    there.add(us, 0.0, local=False)
    advertising = Advertiser(directory)
    advertising.add(eu, "eu")
    flooded = 0
    for step in range(1200):
        now = step * 0.05
        for neighbour, site in ((ap, "ap"), (sa, "sa")):
            for number in range(step * 9, step * 9 + 9):
                false = Hop(f"{site}-{number % 200}", NodeId(f"{number % 200 + 100:030x}{site.encode().hex()[:2]}"))
                path = (Hop(site, neighbour), false) if number // 200 % 2 else ()
                directory.receive_route_untrusted(neighbour, RouteAdvertisement(false, path).message(), now)
        if step in (0, 600):
            export_just(advertising, [Export(CLUSTER, f"store-{step}", member)])
        changed = {own, *directory.changed}
        directory.changed.clear()
        for message in advertising.messages(eu, changed, now if paced else None):
            try:
                if isinstance(message, kinds.Route):
                    there.receive_route_untrusted(us, message, now)
                else:
                    there.receive_exports_untrusted(us, message, now)
            except TooManyChanges:
                flooded += 1
        if step == 700 and paced:
            assert there.clusters() == {"store-600"}, "who waits longest is told first"
    assert bool(flooded) is not paced
    assert advertising.is_behind is paced
