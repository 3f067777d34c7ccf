"""Reports of nodes to operators: which operators may have them, and what a survey makes of them."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import trio
from msgspec import to_builtins

import iris
from iris.kernel.names import NodeId
from iris.kernel.wire import payload_size
from iris.node.operators import ask_report
from iris.node.realm import RealmSurvey
from iris.node.report import MOST, report_of
from iris.patterns.payloads import encoded
from iris.patterns.service import Role
from iris.security.identity import Rights
from iris.testing import open_network

LATENCY = {"served": True, "cluster": "c", "operation": None, "total": 1.0, "edges": [1.0], "counts": [1]}


def _store(seconds: float = 0.25) -> iris.Service:
    service = iris.Service("store")

    @service.request("get")
    async def get(request: iris.Request) -> object:
        await trio.sleep(seconds)
        return request.payload

    return service


async def test_a_survey_finds_rates_members_and_percentiles(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as one,
        network.open_node("store") as two,
        network.open_node("app") as app,
        network.open_node("operator") as operator,
        one.join("store", _store()),
        two.join("store", _store()),
    ):
        await app.wait_for("store", 2)
        await trio.sleep(1)
        survey = RealmSurvey(operator)
        first = await survey.collect()
        assert {view.node.node for view in first.nodes} == {one.id, two.id, app.id}
        for _ in range(8):
            await app.request("store", b"", operation="get")
        view = await survey.collect()
        (cluster,) = view.clusters()
        assert (cluster.cluster, cluster.members, cluster.queued) == ("store", 2, 0)
        assert cluster.rate == pytest.approx(4.0, rel=0.1)
        assert cluster.p50 == pytest.approx(0.25, rel=0.07)
        (caller,) = (seen for seen in view.nodes if seen.node.node == app.id)
        assert caller.asked_rate == pytest.approx(4.0, rel=0.1)
        assert caller.latency[False, "store", "get"].count == 8
        assert caller.report.uptime > 2
        await trio.sleep(5)
        (cluster,) = (await survey.collect()).clusters()
        assert (cluster.rate, cluster.p50) == (0.0, None)


async def test_programs_behind_a_member_count_as_members(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as one,
        network.open_node("store") as two,
        network.open_node("operator") as operator,
        one.join("store", _store()),
        two.join("store", _store()) as door,
    ):
        await operator.wait_for("store", 2)
        door._serving.resize(24, 3)
        await trio.sleep(1)
        (cluster,) = (await RealmSurvey(operator).collect()).clusters()
        assert cluster.members == 4


async def test_a_member_that_leaves_is_gone_from_the_next_survey(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("operator") as operator:
        async with network.open_node("store") as one, one.join("store", _store()):
            await operator.wait_for("store")
            survey = RealmSurvey(operator)
            assert [cluster.members for cluster in (await survey.collect()).clusters()] == [1]
        await trio.sleep(1)
        view = await survey.collect()
        assert (view.nodes, view.silent, view.clusters()) == ((), (), ())
        (gone,) = view.gone
        assert (gone.node.node, gone.node.speaks_for, gone.reason) == (one.id, "store", "left")
        assert gone.process == os.getpid()
        await trio.sleep(600)
        assert (await survey.collect()).gone == ()


async def test_a_node_that_was_told_not_to_answer_is_silent(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store", operators=False) as quiet,
        network.open_node("operator") as operator,
    ):
        await trio.sleep(1)
        view = await RealmSurvey(operator).collect()
        assert view.nodes == ()
        assert [absent.node.node for absent in view.silent] == [quiet.id]


@pytest.mark.parametrize(("serves", "may"), [((), False), (("iris.nodes",), True), (("iris.*",), True)])
async def test_only_a_certificate_that_serves_iris_nodes_gets_reports(
    serves: tuple[str, ...], may: bool, autojump_clock: object
) -> None:
    async with open_network() as network, network.open_node("store") as member:
        network.credential("operator", Rights(serves=serves))
        async with network.open_node("operator") as operator:
            await trio.sleep(1)
            view = await RealmSurvey(operator).collect()
            assert [seen.node.node for seen in view.nodes] == ([member.id] if may else [])
            assert may or "does not serve cluster 'operator'" in view.silent[0].reason


async def test_the_reserved_cluster_is_in_no_list(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as one,
        network.open_node("operator") as operator,
    ):
        await trio.sleep(1)
        assert operator.clusters() == ()
        assert operator.statistics().services == {}
        assert [other.clusters for other in operator.nodes()] == [()]
        for name in ("iris.nodes", "iris.door", "iris.anything"):
            with pytest.raises(iris.ConfigError, match=f"'{name}': names that begin with 'iris.' are Iris's own"):
                async with one.join(name, iris.Service(name)):
                    pass
        with pytest.raises(iris.ConfigError, match=r"Iris's own"):
            async with one.state("iris.nodes"):
                pass


async def test_a_report_is_bounded_whatever_a_node_has_counted(autojump_clock: object) -> None:
    async with open_network() as network, network.open_parts("app") as (node, node_parts):
        rng = iter(range(10**9))
        for operation in range(400):
            for _ in range(300):
                series = node_parts.patterns.requests.latency.series("c" * 128, f"{operation:0128}")
                series.record(1.07 ** (next(rng) % 300) / 2**20)
        for reason in range(1000):
            node_parts.mesh.refusals[f"{reason}" * 300] += 1
        report = report_of(node.statistics(), 1.0)
        assert len(report.latencies) == MOST
        assert report.omitted == 256 + 1 - MOST + 1000 - MOST
        payload = encoded(report, 2**20)
        assert payload_size(payload) < 256 * 1024


@pytest.mark.parametrize(
    "wrong",
    [
        {"uptime": float("nan")},
        {"uptime": float("inf")},
        {"uptime": -1.0},
        {"asked": -1},
        {"links": 2**63},
        {"host": "h" * 513},
        {"lost": {f"reason {number}": 1 for number in range(MOST + 1)}},
        {"lost": {"request: lost": -1}},
        {"latencies": [LATENCY] * (MOST + 1)},
        {"latencies": [{**LATENCY, "edges": [float("nan")]}]},
        {"latencies": [{**LATENCY, "counts": [1] * 513}]},
        {"gateway": {"sites": ["s" * 600], "neighbours": {}, "carried": 0, "carried_bytes": 0, "refused": 0}},
    ],
)
async def test_a_report_that_no_node_makes_is_silence(wrong: dict[str, Any], autojump_clock: object) -> None:
    async with open_network() as network, network.open_parts("liar", operators=False) as (liar, liar_parts):
        shown = to_builtins(report_of(liar.statistics(), 1.0))
        told: dict[str, Any] = {}
        service = iris.Service("iris.nodes")

        @service.request("report")
        def report(_: iris.Request) -> object:
            return {**shown, **told}

        async with (
            liar_parts.patterns.serving.serve("iris.nodes", Role(service, iris.Limits())),
            network.open_node("operator") as operator,
        ):
            await trio.sleep(1)
            survey = RealmSurvey(operator)
            assert len((await survey.collect()).nodes) == 1
            told.update(wrong)
            view = await survey.collect()
            assert view.nodes == ()
            assert view.silent[0].reason.startswith("its report is refused: ")


async def test_nobody_to_ask_is_an_empty_view(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("app") as node:
        assert (await RealmSurvey(node).collect()).nodes == ()
        with pytest.raises(iris.DeliveryError):
            await ask_report(node, NodeId("0" * 32), 1.0)


async def test_a_node_that_is_lost_is_gone_with_the_reason_and_where_it_ran(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("operator", host="here") as operator,
        network.open_node("store", host="there") as one,
        one.join("store", _store()),
    ):
        await operator.wait_for("store")
        survey = RealmSurvey(operator)
        assert (await survey.collect()).gone == ()
        network.memory.partition(["here"], ["there"])
        while not (view := await survey.collect()).gone:
            assert view.nodes == () or view.silent == ()
        (gone,) = view.gone
        assert (gone.node.node, gone.node.clusters, gone.reason) == (one.id, ("store",), "silent")
        assert gone.process == os.getpid()
        assert (view.nodes, view.silent, view.trouble) == ((), (), "no other node was found")
        network.memory.heal()
        await operator.wait_for("store", timeout=60)
        view = await survey.collect()
        assert ([seen.node.node for seen in view.nodes], view.gone) == ([one.id], ())


async def test_a_view_as_json_shows_what_the_view_holds(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as one,
        network.open_node("quiet", operators=False) as quiet,
        network.open_node("operator") as operator,
        one.join("store", _store()),
    ):
        await operator.wait_for("store")
        shown = json.loads(json.dumps((await RealmSurvey(operator).collect()).as_object()))
        assert [cluster["cluster"] for cluster in shown["clusters"]] == ["store"]
        assert [node["node"] for node in shown["nodes"]] == [one.id]
        assert [(absent["node"], absent["seconds"]) for absent in shown["silent"]] == [(quiet.id, None)]
        assert (shown["gone"], shown["remote_clusters"]) == ([], {})
