"""Latency: histograms by cluster and operation, as a table and as nodes fill it."""

from __future__ import annotations

import random

import pytest
import trio

import iris
from iris.patterns.latency import LONGEST, OTHERS, SHORTEST, LatencyStatistics, LatencyTable
from iris.testing import open_network


def _measured(*times: float) -> LatencyStatistics:
    table = LatencyTable()
    for seconds in times:
        table.series("store", "get").record(seconds)
    return table.statistics()["store"]["get"]


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 100])
def test_a_percentile_is_at_most_6_3_percent_off(percent: int) -> None:
    rng = random.Random(7)
    times = sorted(10 ** rng.uniform(-5.9, 3) for _ in range(2000))
    exact = times[max(0, -(-len(times) * percent // 100) - 1)]
    measured = _measured(*times).percentile(percent)
    assert measured is not None
    assert abs(measured - exact) / exact <= 0.063


def test_counts_up_to_a_power_of_two_are_exact() -> None:
    measured = _measured(0.2499, 0.25, 0.26, 0.4999, 0.5)
    assert [measured.below(edge) for edge in (0.125, 0.25, 0.5, 1.0)] == [0, 1, 4, 5]
    assert measured.total == pytest.approx(1.7598)


def test_times_beyond_the_range_count_as_its_ends() -> None:
    measured = _measured(-1.0, 0.0, SHORTEST / 2, LONGEST, 1e9, float("inf"))
    assert measured.count == 6
    assert len(measured.buckets) == 2
    assert measured.below(2 * SHORTEST) == 3


def test_no_request_has_no_percentile() -> None:
    assert LatencyStatistics(buckets={}, total=0.0).percentile(50) is None


def test_snapshots_add_up_and_what_came_since_is_their_difference() -> None:
    earlier, later = _measured(0.1, 0.2), _measured(0.1, 0.2, 0.2, 3.0)
    since = later.since(earlier)
    assert since == _measured(0.2, 3.0)
    assert list((since + earlier).buckets.items()) == list(later.buckets.items())
    assert earlier.since(later) is earlier  # of a member that has started anew
    assert later.since(None) is later


def test_clusters_and_operations_beyond_the_bound_share_one_histogram() -> None:
    table = LatencyTable()
    for number in range(300):
        table.series("store", f"operation-{number}").record(0.1)
    table.series("store", "operation-0").record(0.1)
    snapshot = table.statistics()
    assert len(snapshot["store"]) == 256
    assert snapshot["store"]["operation-0"].count == 2
    assert snapshot[OTHERS][OTHERS].count == 44


def test_errors_are_counted_by_type_and_beyond_the_bound_together() -> None:
    table = LatencyTable()
    for number in range(100):
        table.failed("store", "get", f"Error{number}")
    table.failed("store", "get", "Error0")
    earlier = table.statistics()["store"]["get"]
    table.failed("store", "get", "Error1")
    table.series("store", "get").record(0.1)
    later = table.statistics()["store"]["get"]
    assert (earlier.count, later.count) == (0, 1)
    assert len(later.errors) == 33
    assert (later.errors["Error0"], later.errors["Error1"], later.errors[OTHERS]) == (2, 2, 68)
    assert later.since(earlier).errors == {"Error1": 1}
    assert (later + earlier).errors["Error1"] == 3


async def test_caller_and_member_measure_replies_and_errors_of_handlers(autojump_clock: object) -> None:
    service = iris.Service("store")

    @service.request("get")
    async def get(request: iris.Request) -> object:
        await trio.sleep(0.25)
        return request.payload

    @service.request("put")
    async def put(request: iris.Request) -> object:
        await trio.sleep(8)
        raise ValueError("full")

    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as caller,
        member.join("store", service),
    ):
        await caller.wait_for("store")
        for _ in range(3):
            await caller.request("store", b"", operation="get")
        with pytest.raises(iris.RemoteError):
            await caller.request("store", b"", operation="put", timeout=20)
        with pytest.raises(iris.RequestTimeout):
            await caller.request("store", b"", operation="put", timeout=1)
        asked, served = caller.statistics().latency["store"], member.statistics().services["store"].latency
        for measured in (asked, served):
            assert {operation: of.count for operation, of in measured.items()} == {"get": 3, "put": 1}
            assert measured["get"].percentile(99) == pytest.approx(0.25, rel=0.07)
            assert measured["put"].percentile(50) == pytest.approx(8, rel=0.07)
        assert asked["put"].errors == {"RemoteError": 1, "RequestTimeout": 1}
        assert served["put"].errors == {"ValueError": 1}
        assert member.statistics().latency == {}


async def test_names_of_operations_that_nobody_serves_take_no_series_of_others(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as app,
        member.join("store", iris.Service("store")),
    ):
        await app.wait_for("store")
        for number in range(300):
            with pytest.raises(iris.RemoteError):
                await app.request("store", b"", operation=f"made-up-{number}")
        latency = app.statistics().latency
        assert {(cluster, operation) for cluster, table in latency.items() for operation in table} == {
            ("store", OTHERS)
        }
        assert latency["store"][OTHERS].count == 300
        assert member.statistics().services["store"].latency == {}
