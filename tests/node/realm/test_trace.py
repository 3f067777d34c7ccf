"""The route of one request: the member that answered, the gateways on the route, and the time to each of them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.policy import Policy
from iris.node.realm import trace_request
from iris.testing import open_network
from tests.support.federations import echo, open_federation
from tests.support.two_realms import open_realms


def _slow(name: str, seconds: float) -> iris.Service:
    service = iris.Service(name)

    @service.request
    async def work(request: iris.Request) -> object:
        await trio.sleep(seconds)
        return request.payload

    @service.request("fail")
    async def fail(request: iris.Request) -> object:
        raise iris.RemoteError("broken", "it is broken")

    return service


async def test_a_member_next_door_is_one_hop_and_tells_how_long_it_took(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as app,
        member.join("store", _slow("store", 0.25), limits=iris.Limits(concurrency=1)),
    ):
        await app.wait_for("store")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app.request, "store")
            await trio.sleep(0.05)
            trace = await trace_request(app, "store", b"x")
        assert (trace.cluster, trace.member, trace.site, trace.error) == ("store", member.id, "", None)
        assert trace.waited == pytest.approx(0.2, abs=0.02)
        assert trace.ran == pytest.approx(0.25, abs=0.02)
        assert trace.taken >= 0.44
        (hop,) = trace.hops
        assert (hop.kind, hop.node, hop.site) == ("member", member.id, "")
        assert hop.round_trip is not None
        assert hop.round_trip < 0.1


async def test_the_way_to_another_site_leads_through_its_gateways(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        await federation.gateway("ap", to=["us-gateway"])
        member = await federation.member("eu", _slow("store", 0.1))
        shop = await federation.shop("ap", "store")
        trace = await trace_request(shop, "store")
        assert (trace.member, trace.site, trace.error) == (member.id, "eu", None)
        assert [(hop.kind, hop.site, hop.node) for hop in trace.hops] == [
            *(("gateway", site, federation.nodes[f"{site}-gateway"].id) for site in ("ap", "us", "eu")),
            ("member", "eu", member.id),
        ]
        times = [hop.round_trip for hop in trace.hops]
        assert all(time is not None for time in times)
        assert times == sorted(times, key=lambda time: time or 0.0)
        assert trace.ran == pytest.approx(0.1, abs=0.02)
        statistics = federation.gateways["us-gateway"].statistics()
        assert statistics.received == statistics.carried + sum(statistics.refused.values())


async def test_where_no_way_leads_any_more_nobody_has_a_time(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(_slow("store", 0.1))
        assert (await trace_request(shop, "store")).error is None
        federation.crash("eu-gateway")
        trace = await trace_request(shop, "store", timeout=1.0)
        assert trace.error is not None
        assert [(hop.kind, hop.round_trip) for hop in trace.hops] == [("gateway", None), ("member", None)]


async def test_the_way_into_another_realm_has_its_alias(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(echo("store"))
        trace = await trace_request(shop, "acme/store", b"x")
        assert (trace.error, trace.site) == (None, "acme/eu")
        assert [(hop.kind, hop.site, hop.node) for hop in trace.hops] == [
            ("gateway", "eu", realms.ours.nodes["eu-gateway"].id),
            ("gateway", "acme/eu", realms.theirs.nodes["acme-eu-gateway"].id),
            ("member", "acme/eu", realms.theirs.nodes["acme-eu-store"].id),
        ]
        assert trace.ran is not None


async def test_what_a_handler_raises_is_the_error_of_the_trace(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as app,
        member.join("store", _slow("store", 0.25)),
    ):
        await app.wait_for("store")
        trace = await trace_request(app, "store", operation="fail")
        assert trace.error is not None
        assert "it is broken" in trace.error
        assert trace.ran is not None
        late = await trace_request(app, "store", timeout=0.1)
        assert late.error == "no reply from cluster 'store' within 0.1 s"
        requests = app.statistics().requests
        assert (requests.sent, requests.answered, requests.expired) == (2, 1, 1)
        with pytest.raises(iris.NoSuchCluster):
            await trace_request(app, "nothing")


async def test_members_see_the_trace_in_the_headers(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as app,
    ):
        seen: list[str] = []
        service = iris.Service("store")

        @service.request
        async def note(request: iris.Request) -> None:
            seen.append(request.headers["traceparent"])

        async with member.join("store", service):
            await app.wait_for("store")
            trace = await trace_request(app, "store")
        assert [header.split("-")[1] for header in seen] == [trace.trace_id]


async def test_who_is_not_exported_is_not_told_of_by_a_question(autojump_clock: MockClock) -> None:
    """A question for any node of a site ends at its gateway."""
    async with open_federation() as federation:
        await federation.gateway("eu", policy=Policy(exports=("store",)))
        await federation.gateway("us", to=["eu-gateway"], policy=Policy())
        hidden = await federation.node("eu", "hidden")
        await federation.member("eu", echo("store"))
        shop = await federation.shop("us", "store")
        before = hidden.statistics().refusals
        assert shop._sites is not None
        hop = await shop._sites.find_hop(("eu", hidden.id), 9, 12345)
        assert hop is not None
        assert (hop.site, hop.gateway) == ("eu", federation.nodes["eu-gateway"].id)
        assert hidden.statistics().refusals == before


async def test_a_node_takes_no_answer_that_it_has_not_asked_for(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        assert shop._sites is not None
        shop._sites.traced("eu", federation.nodes["eu-gateway"].id, 1)
        assert (await trace_request(shop, "store")).hops[0].site == "us"
        with trio.move_on_after(0.0):
            await trace_request(shop, "store")
        assert shop._sites._asking == {}
