"""Metrics: what /metrics and /healthz say of whole nodes, in form and in number; that nothing is without bound."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

import iris
import iris.aio
import iris.sync
from iris.doors.http import HttpStatistics
from iris.doors.mqtt import MqttStatistics
from iris.doors.nng.counters import NngStatistics
from iris.federation.gateway import GatewayStatistics
from iris.node.telemetry.endpoint import MetricsEndpoint
from iris.node.telemetry.families import FAMILIES, NodeSnapshot, bounded, histograms, samples
from iris.node.telemetry.metrics import Exposition
from iris.patterns.bridge_protocol import QueueStatus
from iris.patterns.latency import EDGES
from iris.spark_bridge.log import ShardState
from iris.spark_bridge.outcomes import OutcomeStatistics
from iris.spark_bridge.protocol import CopyStatus
from iris.spark_bridge.server.leases import LeaseStatistics
from iris.spark_bridge.server.member import BridgeReport, BridgeStatistics
from iris.spark_bridge.tier import TierStatus
from iris.testing import open_network

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]

pytestmark = pytest.mark.usefixtures("own_home")


def read(url: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=30) as page:
            return page.status, page.read().decode()
    except urllib.request.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def get(endpoint: MetricsEndpoint, path: str) -> tuple[int, str]:
    return await trio.to_thread.run_sync(read, endpoint.url + path)


def values(text: str) -> Values:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Values, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def store() -> iris.Service:
    service = iris.Service("store")

    @service.request("look_up")
    async def look_up(request: iris.Request) -> object:
        await trio.lowlevel.checkpoint()
        return request.payload

    @service.request("fail")
    async def fail(_: iris.Request) -> object:
        raise ValueError("bad")

    @service.broadcast
    async def hear(_: iris.Message) -> None:
        pass

    return service


async def test_both_ends_count_what_was_asked_and_how_long_it_took() -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("shop") as shop,
        iris.metrics.serve(member, port=0) as of_member,
        iris.metrics.serve(shop, port=0, member=False) as of_shop,
        member.join("store", store()),
    ):
        await shop.wait_for("store")
        for _ in range(7):
            await shop.request("store", b"1", operation="look_up")
        with pytest.raises(iris.RemoteError):
            await shop.request("store", b"1", operation="fail")
        with pytest.raises(iris.NoSuchCluster):
            await shop.request("nobody", b"1")
        here, there = [values((await get(one, "/metrics"))[1]) for one in (of_shop, of_member)]
        target = {"cluster": "store", "operation": "look_up"}
        assert value(here, "iris_call_duration_seconds_count", **target) == 7
        assert value(here, "iris_call_duration_seconds_bucket", le="+Inf", **target) == 7
        assert 0 < value(here, "iris_call_duration_seconds_sum", **target) < 60
        assert value(there, "iris_handler_duration_seconds_count", **target) == 7
        check_buckets(here, shop.statistics().latency["store"]["look_up"], **target)
        target["operation"] = "fail"
        assert value(here, "iris_call_errors_total", reason="RemoteError", **target) == 1
        assert value(there, "iris_handler_errors_total", reason="ValueError", **target) == 1
        target |= {"cluster": "nobody", "operation": ""}
        assert value(here, "iris_call_errors_total", reason="NoSuchCluster", **target) == 1
        assert value(here, "iris_messages_sent_total", pattern="request") == 8
        assert value(here, "iris_messages_ended_total", pattern="request", outcome="answered") == 8
        served = {"cluster": "store", "pattern": "request"}
        assert value(there, "iris_service_ended_total", outcome="served", **served) == 7
        assert value(there, "iris_service_ended_total", outcome="failed", **served) == 1
        assert value(there, "iris_links") == 1
        assert value(there, "iris_sessions") == 1
        assert value(there, "iris_handshakes_total") == 1
        assert value(there, "iris_info", node=member.id, cluster="store", site="", version=version("iris-mesh")) == 1
        assert not any(shop.id in dict(labels).values() for _, labels in there), "no label is a peer"


def check_buckets(found: Values, latency: iris.LatencyStatistics, **target: str) -> None:
    """Check that what a page shows is what the statistics have, and so ``iris top``."""
    shown = [value(found, "iris_call_duration_seconds_bucket", le=repr(edge), **target) for edge in EDGES]
    assert shown == [latency.below(edge) for edge in EDGES]
    assert value(found, "iris_call_duration_seconds_sum", **target) == pytest.approx(latency.total)


async def test_ready_is_joined_and_not_draining() -> None:
    begun, go = trio.Event(), trio.Event()
    service = iris.Service("store")

    @service.request
    async def wait(_: iris.Request) -> None:
        begun.set()
        await go.wait()

    async with (
        open_network() as network,
        network.open_node("store") as node,
        iris.metrics.serve(node, port=0) as metrics,
        iris.metrics.serve(node, port=0, member=False) as of_one_who_only_asks,
        trio.open_nursery() as nursery,
    ):
        assert await get(metrics, "/healthz") == (503, "not ready: member of no cluster\n")
        assert await get(of_one_who_only_asks, "/healthz") == (200, "ready\n")
        left = trio.Event()

        async def serve(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            async with node.join("store", service):
                nursery.start_soon(node.request, "store")
                await begun.wait()
                assert await get(metrics, "/healthz") == (200, "ready\n")
                assert value(values((await get(metrics, "/metrics"))[1]), "iris_ready") == 1
                task_status.started(trio.CancelScope())
            left.set()

        await nursery.start(serve)
        while (answer := await get(metrics, "/healthz")) == (200, "ready\n"):
            await trio.lowlevel.checkpoint()
        assert answer == (503, "not ready: draining\n")
        assert (await get(of_one_who_only_asks, "/healthz"))[0] == 503
        go.set()
        await left.wait()
        assert await get(metrics, "/healthz") == (503, "not ready: member of no cluster\n")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus")
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"], ids=["text", "openmetrics"])
async def test_prometheus_own_parser_finds_no_fault(accept: str, everything: NodeSnapshot) -> None:
    async with open_network() as network, network.open_node("store") as node:
        exposition = Exposition(node, member=True)

        async def look() -> NodeSnapshot:
            await trio.lowlevel.checkpoint()
            return everything

        exposition.look = look  # type: ignore[method-assign]
        page = await exposition.metrics(accept)
    assert page.content_type.startswith(accept.partition(";")[0] or "text/plain")
    if not accept:
        done = await trio.to_thread.run_sync(
            lambda: subprocess.run(["promtool", "check", "metrics"], input=page.body, capture_output=True, check=False)
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    else:
        assert page.body.endswith(b"# EOF\n")


@pytest.fixture
async def everything() -> NodeSnapshot:
    """A snapshot in which each metric has a value."""
    async with open_network() as network, network.open_node("store") as node, node.join("store", store()):
        await node.request("store", b"1", operation="look_up")
        with pytest.raises(iris.RemoteError):
            await node.request("store", b"1", operation="fail")
        await node.request("store", b"1", operation="fail", fallback=b"")
        statistics = node.statistics()
    lost = {"no link": 2}
    requests = dataclasses.replace(statistics.requests, lost=lost)
    tunnels = dataclasses.replace(statistics.tunnels, ended={"finished": 1})
    counts = {field.name: 0 for field in dataclasses.fields(iris.StateStatistics) if field.name != "refused"}
    states = {"prices": iris.StateStatistics(**counts, refused={"malformed": 1})}
    blocked = (iris.BlockedStatistics(cluster="store", operation=None, count=1, seconds=0.8, place="app.py:1 in main"),)
    seed = iris.SeedStatistics(source="dns", answered=2, failed=1, addresses=3, answered_at=0.0, error=None)
    shard = ShardState(number=0, epoch="e", earliest=2, next=9, size=100, timestamp=0)
    zeros = {field.name: 0 for field in dataclasses.fields(BridgeStatistics)}
    tier_zeros = dict.fromkeys(("objects", "bytes", "next", "behind", "behind_bytes", "failures"), 0)
    queue_zeros = {field.name: 0 for field in dataclasses.fields(QueueStatus) if field.name != "queue"}
    return NodeSnapshot(
        node=node.id,
        cluster="store",
        site="east",
        version="0.1.0",
        unready=None,
        nodes=1,
        statistics=dataclasses.replace(
            statistics,
            requests=requests,
            tunnels=tunnels,
            states=states,
            seeds={"tcp://store:7000": seed},
            refusals={"RemoteError": 1},
            blocked=blocked,
        ),
        reports={
            "gateway": GatewayStatistics(
                received=3,
                carried=2,
                carried_bytes=100,
                refused={"no route": 1},
                waiting_bytes=5,
                rejected={"AuthenticationError": 1},
                unreached={"tcp://127.0.0.1:1": "refused"},
                sites=("west",),
                neighbours={node.id: "west"},
                sent=1,
                sent_bytes=10,
                not_advertised=0,
            ),
            "bridge": BridgeReport(
                statistics=BridgeStatistics(**{**zeros, "stored": 7}),
                shards=[shard],
                lags={"readers": 4},
                copies=[CopyStatus(name="copy", state="in step", behind=3)],
                tier=[TierStatus(shard=0, url="lake", **{**tier_zeros, "behind_bytes": 5}, problem="")],
            ),
            "queues": [QueueStatus(queue="jobs", **{**queue_zeros, "done": 3})],
            "leases": LeaseStatistics(held=1, granted=3, released=1, expired=1),
            "outcomes": OutcomeStatistics(keys=1, claimed=2, recorded=3, replayed=4, doubtful=5, retaken=6, reused=7),
            "door.http": HttpStatistics(connections=2, refused=Counter({429: 3})),
            "door.mqtt": MqttStatistics(),
            "door.nng": NngStatistics(connections={"req": 1, "sub": 2}),
        },
    )


async def test_every_family_is_filled_with_its_labels_and_no_other_is(everything: NodeSnapshot) -> None:
    found = list(samples(everything))
    sides = {f"iris_{side}_duration_seconds" for side, _, _ in histograms(everything.statistics)}
    assert {name for name, _, _ in found} | sides == set(FAMILIES)
    assert [name for name, labels, _ in found if len(labels) != len(FAMILIES[name].labels)] == []
    assert len({(name, labels) for name, labels, _ in found}) == len(found)
    lags = {labels: value for name, labels, value in found if name == "iris_bridge_lag_events"}
    assert lags == {("readers",): 4}
    leases = {labels: value for name, labels, value in found if name == "iris_leases_total"}
    assert leases == {("granted",): 3, ("released",): 1, ("expired",): 1}
    connections = {labels: value for name, labels, value in found if name == "iris_door_connections"}
    assert connections == {("http",): 2, ("mqtt",): 0, ("nng",): 3}


LEFT_ASIDE: dict[type, set[str]] = {
    iris.ServiceStatistics: {"latency"},  # see the histograms of handlers
    BridgeStatistics: set(),
    QueueStatus: {"queue"},  # the label
    LeaseStatistics: set(),
    OutcomeStatistics: set(),
    GatewayStatistics: set(),
    HttpStatistics: set(),
    MqttStatistics: set(),
    NngStatistics: set(),
    iris.LinkStatistics: {"posted"},  # sent + lost + waiting
    iris.SubscriptionStatistics: {"received"},  # delivered + dropped + malformed + expired + waiting
    iris.TunnelsStatistics: set(),
    iris.StateStatistics: set(),
    iris.PublishStatistics: {"published", "without_subscriber", "sent", "handed_over", "lost"},  # see those of the node
    iris.PatternStatistics: set(),
    iris.BlockedStatistics: {"place"},  # a line of a file is no label
    iris.NodeStatistics: {"latency"},  # see the histograms of calls
}


@pytest.mark.parametrize("statistics", LEFT_ASIDE, ids=lambda statistics: statistics.__name__)
def test_every_counter_of_the_statistics_is_in_a_metric(statistics: type) -> None:
    """By its name in the text of the module: a counter that somebody adds is not to be forgotten."""
    text = Path(samples.__code__.co_filename).read_text()
    fields = {field.name for field in dataclasses.fields(statistics)}
    assert {name for name in fields if f".{name}" not in text and f'"{name}"' not in text} <= LEFT_ASIDE[statistics]


async def test_a_counter_that_goes_back_is_shown_as_it_was(everything: NodeSnapshot) -> None:
    async with open_network() as network, network.open_node("store") as node:
        exposition = Exposition(node, member=True)
    shown: list[float] = []
    for sent in (5, 3, 6):
        pattern = dataclasses.replace(everything.statistics.broadcasts, sent=sent)
        statistics = dataclasses.replace(everything.statistics, broadcasts=pattern)
        exposition._snapshot = structs.replace(everything, statistics=statistics)
        (family,) = (one for one in exposition.collect() if one.name == "iris_messages_sent")
        shown += [sample.value for sample in family.samples if sample.labels == {"pattern": "broadcast"}]
    assert shown == [5, 5, 6]


def test_reasons_beyond_the_bound_are_one_and_none_goes_back() -> None:
    before = bounded({f"reason {number}": 1 for number in range(1000)})
    after = bounded({f"reason {number}": 2 for number in range(2000)})
    assert len(before) == len(after) == 129
    assert sum(before.values()) == 1000
    assert sum(after.values()) == 4000
    assert all(after[reason] >= count for reason, count in before.items())
    assert bounded({"a": 1}) == {"a": 1}


async def test_links_and_subscriptions_that_ended_still_count() -> None:
    async with (
        open_network() as network,
        network.open_node("shop") as shop,
        iris.metrics.serve(shop, port=0) as metrics,
    ):
        async with network.open_node("store") as other, other.subscribe("orders.>"):
            async with shop.subscribe("orders.>") as events:
                for number in range(5):
                    await shop.publish("orders.new", number)
                assert [(await anext(events)).payload for _ in range(5)] == [0, 1, 2, 3, 4]
            before = shop.statistics()
        while shop.statistics().links:  # noqa: ASYNC110 -- it has said goodbye
            await trio.sleep(0.01)
        found = values((await get(metrics, "/metrics"))[1])
    sent = sum(link.sent for link in before.links.values())
    assert sent > 0
    assert value(found, "iris_link_messages_total", outcome="sent") >= sent
    assert value(found, "iris_links") == 0
    assert value(found, "iris_subscriptions") == 0
    assert value(found, "iris_subscription_events_total", outcome="delivered") == 5


async def test_an_address_that_cannot_be_used_is_one_error() -> None:
    async with (
        open_network() as network,
        network.open_node("store") as node,
        iris.metrics.serve(node, port=0) as metrics,
    ):
        wrong: list[tuple[Any, Any, str]] = [
            ("127.0.0.1", metrics.port, "cannot be served at 127.0.0.1:"),
            ("192.0.2.1", 0, "cannot be served at 192.0.2.1:0"),
            ("127.0.0.1", 70000, "a port from 0 to 65535"),
            (None, 0, "the text of an address"),
            ("127.0.0.1", True, "a port from 0 to 65535"),
        ]
        for host, port, text in wrong:
            with pytest.raises(iris.ConfigError, match=text):
                async with iris.metrics.serve(node, host, port):
                    pass
        assert (await get(metrics, "/healthz"))[0] == 503


@pytest.mark.parametrize(("module", "package"), [("prometheus_client", "prometheus-client"), ("h11", "h11")])
async def test_what_is_not_installed_is_named(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    async with open_network() as network, network.open_node("store") as node:
        with pytest.raises(iris.ConfigError, match=rf"metrics need {package}.*pip install 'iris-mesh\[metrics\]'"):
            async with iris.metrics.serve(node, port=0):
                pass


def test_a_node_of_asyncio_is_served_likewise() -> None:
    async def main() -> tuple[int, str]:
        async with iris.aio.open_node("shop") as node, iris.metrics.serve(node, port=0) as metrics:
            service = iris.Service("shop")

            @service.request
            async def echo(request: iris.Request) -> object:
                await asyncio.sleep(0)
                return request.payload

            async with node.join("shop", service):
                for _ in range(3):
                    await node.request("shop", b"1")
                with pytest.raises(iris.RemoteError):
                    await node.request("shop", b"1", operation="none")
                with pytest.raises(asyncio.TimeoutError):
                    async with asyncio.timeout(0):
                        await node.request("shop", b"1")
                return await asyncio.to_thread(read, metrics.url + "/metrics")

    status, text = asyncio.run(main())
    assert status == 200
    found = values(text)
    target = {"cluster": "shop", "operation": ""}
    assert value(found, "iris_call_duration_seconds_count", **target) in (3, 4)
    target["operation"] = "(other)"  # nobody serves it
    assert value(found, "iris_call_errors_total", reason="RemoteError", **target) == 1


def test_a_node_of_threads_is_served_likewise() -> None:
    with iris.sync.open_node("shop") as node, iris.metrics.serve(node, port=0) as metrics:
        service = iris.Service("shop")
        echo: Callable[[iris.Request], object] = lambda request: request.payload  # noqa: E731 -- the shortest handler
        service.request(echo)
        with node.join("shop", service):
            for _ in range(3):
                node.request("shop", b"1")
            status, text = read(metrics.url + "/metrics")
    assert status == 200
    target: Mapping[str, str] = {"cluster": "shop", "operation": ""}
    assert value(values(text), "iris_call_duration_seconds_count", **target) == 3
    with pytest.raises(OSError, match="refused"):
        read(metrics.url + "/healthz")
