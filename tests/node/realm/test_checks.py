"""Reports that lie: refused as a whole where they cannot be, and in the part that is about others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.node.operators import ask_report
from iris.node.realm import RealmSurvey
from iris.node.realm.checks import fault_of, of_members_only
from iris.node.report import BridgeLag, ClusterReport, GatewayTraffic, LatencyReport, LinkReport, NodeReport
from iris.testing import open_network

CLUSTER = ClusterReport(
    cluster="store",
    received=1,
    served=1,
    failed=0,
    expired=0,
    cancelled=0,
    refused=0,
    running=0,
    queued=0,
    queue_delay=0.0,
    draining=False,
)
LATENCY = LatencyReport(served=True, cluster="store", operation=None, total=0.3, edges=[0.1, 0.2], counts=[1, 1])
REPORT = NodeReport(
    version="1",
    host="here",
    process=1,
    uptime=1.0,
    clusters=[CLUSTER],
    asked=0,
    answered=0,
    published=0,
    delivered=0,
    without_subscriber=0,
    lost={},
    refused={},
    links=0,
    waiting=0,
    bytes_sent=0,
    latencies=[LATENCY],
    gateway=GatewayTraffic(sites=["b"], neighbours={}, carried=1, carried_bytes=1, refused=0),
    bridge=BridgeLag(stored=1, waiting=0, missed=0, unstored=0, lags={"readers": 1}),
    omitted=0,
)
NAN = float("nan")


def _with(**fields: Any) -> NodeReport:
    return structs.replace(REPORT, **fields)


def _gateway(**fields: Any) -> NodeReport:
    assert REPORT.gateway is not None
    return _with(gateway=structs.replace(REPORT.gateway, **fields))


def _bridge(**fields: Any) -> NodeReport:
    assert REPORT.bridge is not None
    return _with(bridge=structs.replace(REPORT.bridge, **fields))


def _histogram(**fields: Any) -> NodeReport:
    return _with(latencies=[structs.replace(LATENCY, **fields)])


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (_with(uptime=NAN), "uptime is nan"),
        (_with(uptime=-1.0), "uptime is -1.0"),
        (_with(uptime=1e300), "uptime is 1e+300"),
        (_with(asked=-1), "asked is -1"),
        (_with(asked=2**64), "asked is "),
        (_with(host="x" * 10_000), "host is 'xxx"),
        (_with(lost={"x" * 10_000: 1}), "lost is 'xxx"),
        (_with(lost={str(n): 1 for n in range(100)}), "lost has more than 32 entries"),
        (_with(clusters=[CLUSTER, CLUSTER]), "a cluster stands twice"),
        (_with(clusters=[structs.replace(CLUSTER, queue_delay=NAN)]), "clusters is nan"),
        (_with(linked=[LinkReport(peer="me", site="", kind="tcp", round_trip=None)]), "the peer of a link is no node"),
        (_with(linked=[LinkReport(peer="0" * 32, site="", kind="tcp", round_trip=NAN)]), "linked is nan"),
        (_gateway(sites=["s"] * 100), "gateway has more than 32 entries"),
        (_gateway(neighbours={str(n): "s" for n in range(100)}), "gateway has more than 32 entries"),
        (_gateway(sites=["s" * 10_000]), "gateway is 'sss"),
        (_gateway(carried=-1), "gateway is -1"),
        (_bridge(lags={str(n): 1 for n in range(100)}), "bridge has more than 32 entries"),
        (_bridge(missed=2**64), "bridge is "),
        (_histogram(total=NAN), "latencies is nan"),
        (_histogram(edges=[0.2, 0.1]), "the edges of a histogram do not ascend"),
        (_histogram(edges=[0.1, 0.1]), "the edges of a histogram do not ascend"),
        (_histogram(edges=[0.1, NAN]), "the edges of a histogram do not ascend"),
        (_histogram(edges=[0.1, 1e300]), "the edges of a histogram do not ascend"),
        (_histogram(edges=[0.0, 0.1]), "the edges of a histogram do not ascend"),
        (_histogram(edges=[0.1]), "other counts than edges"),
        (_histogram(counts=[1, -1]), "the counts of a histogram cannot be"),
        (_histogram(edges=[n / 1000 for n in range(1, 1001)], counts=[1] * 1000), "other counts than edges"),
    ],
)
def test_a_report_that_cannot_be_is_refused_with_the_reason(report: NodeReport, text: str) -> None:
    fault = fault_of(report)
    assert fault is not None
    assert text in fault


def test_an_honest_report_is_taken() -> None:
    assert fault_of(REPORT) is None
    assert of_members_only(REPORT, ("store",)) == (REPORT, ())


def test_what_a_node_says_of_clusters_that_it_is_not_in_is_left_out() -> None:
    asked = structs.replace(LATENCY, served=False, cluster="other")
    report, others = of_members_only(_with(latencies=[LATENCY, asked]), ())
    assert (report.clusters, report.latencies, others) == ([], [asked], ("store",))


async def test_one_that_lies_is_named_and_counted_and_the_others_are_shown(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ask_report
    lies: dict[NodeId, dict[str, Any]] = {}

    async def ask(node: Node, member: NodeId, timeout: float) -> NodeReport:
        return structs.replace(await original(node, member, timeout), **lies.get(member, {}))

    monkeypatch.setattr("iris.node.realm.survey.ask_report", ask)
    service = iris.Service("store")

    @service.request
    async def get(request: iris.Request) -> object:
        return request.payload

    async with (
        open_network() as network,
        network.open_node("store") as honest,
        network.open_node("liar") as liar,
        network.open_node("boaster") as boaster,
        network.open_node("operator") as operator,
        honest.join("store", service),
    ):
        await operator.wait_for("store")
        lies[liar.id] = {"uptime": NAN}
        lies[boaster.id] = {"clusters": [structs.replace(CLUSTER, queued=10**6)], "latencies": [LATENCY]}
        view = await RealmSurvey(operator).collect()
        assert {seen.node.node for seen in view.nodes} == {honest.id, boaster.id}
        (absent,) = view.silent
        assert (absent.node.node, absent.reason) == (liar.id, "its report is refused: uptime is nan")
        assert view.doubted == {boaster.id: "reports of clusters that it is no member of: store"}
        (store,) = view.clusters()
        assert (store.members, store.queued, store.p50) == (1, 0, None)
        refusals = operator.statistics().refusals
        assert refusals["report of a node that cannot be"] == 1
        assert refusals["report of a node about clusters that it is no member of"] == 1
