"""``iris bench``: the two ends, the clocks of two machines, and the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import iris
import iris.testing
from iris.bench import command
from iris.bench.cases import CASES, OPEN, at_pace
from iris.bench.client import ALONE, NETWORK, Ahead, _corrected, among, estimate, measure
from iris.bench.service import CLUSTER, serve_bench
from iris.bench.swarm import SwarmFailed, open_swarm
from iris.cli.main import FAILED, MISUSED
from tests.support.desk import Desk

Source = Callable[[iris.Node, list[iris.Member]], Awaitable[None]]


async def with_members(count: int, source: Source) -> None:
    """Run ``source`` beside so many members that can be measured."""
    async with iris.testing.open_network() as network, trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            async with network.open_node(CLUSTER) as node:
                ready = trio.Event()
                nursery.start_soon(serve_bench, node, CLUSTER, ready)
                await ready.wait()
                task_status.started()
                await trio.sleep_forever()

        for _ in range(count):
            await nursery.start(serve)
        async with network.open_node("source") as node:
            await node.wait_for(CLUSTER, count)
            await source(node, list(node.members(CLUSTER)))
        nursery.cancel_scope.cancel()


def case_named(name: str) -> Any:
    return next(case for case in CASES if case.name == name)


# -- the two ends -------------------------------------------------------------------------------------------


async def test_every_case_reports_each_of_its_figures_and_loses_nothing() -> None:
    async def source(node: iris.Node, members: list[iris.Member]) -> None:
        for case in NETWORK:
            figures = await measure(node, CLUSTER, members, among(case, len(members)), 0.05)
            assert {figure.name for figure in case.figures} <= figures.keys(), case.name
            assert all(figures[figure.name] > 0 for figure in case.figures), (case.name, figures)
            assert figures.get("lost", 0) == 0, case.name

    await with_members(2, source)


async def test_a_case_of_one_receiver_leaves_the_other_members_alone() -> None:
    async def source(node: iris.Node, members: list[iris.Member]) -> None:
        before = node.statistics().events.sent
        figures = await measure(node, CLUSTER, members, case_named("publish-100"), 0.05)
        sent = node.statistics().published
        assert figures["lost"] == 0
        assert node.statistics().events.sent - before == sent, "each event went to one node"

    await with_members(3, source)


async def test_a_run_whose_source_has_gone_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    async def source(node: iris.Node, members: list[iris.Member]) -> None:
        order = {"case": "publish-100", "seconds": 1.0, "run": "abandoned"}
        assert await node.request(CLUSTER, order, operation="begin") == members[0].node
        with pytest.raises(iris.RemoteError, match="already"):
            await node.request(CLUSTER, order, operation="begin")
        await trio.sleep(100)
        with pytest.raises(iris.RemoteError, match="no such run"):
            await node.request(CLUSTER, "abandoned", operation="figures")
        assert await node.request(CLUSTER, order, operation="begin") == members[0].node, "its place is free"

    await with_members(1, source)


async def test_only_so_many_runs_at_one_time(autojump_clock: trio.testing.MockClock) -> None:
    async def source(node: iris.Node, members: list[iris.Member]) -> None:
        order = {"case": "broadcast-4", "seconds": 1.0}
        for number in range(64):
            await node.request(CLUSTER, {**order, "run": f"run-{number}"}, operation="begin")
        with pytest.raises(iris.RemoteError, match="64 measurements"):
            await node.request(CLUSTER, {**order, "run": "one-more"}, operation="begin")

    await with_members(1, source)


@pytest.mark.parametrize(
    "order",
    [
        b"",
        None,
        {},
        {"case": "publish-100", "seconds": 1.0},
        {"case": "publish-100", "seconds": 0, "run": "a"},
        {"case": "publish-100", "seconds": 1e9, "run": "a"},
        {"case": "publish-100", "seconds": float("nan"), "run": "a"},
        {"case": "publish-100", "seconds": "1", "run": "a"},
        {"case": "publish-100", "seconds": 1.0, "run": ""},
        {"case": "publish-100", "seconds": 1.0, "run": "a.>"},
        {"case": "publish-100", "seconds": 1.0, "run": "a.b"},
        {"case": "no-such-case", "seconds": 1.0, "run": "a"},
    ],
)
async def test_what_is_no_run_is_refused(order: object, autojump_clock: trio.testing.MockClock) -> None:
    async def source(node: iris.Node, members: list[iris.Member]) -> None:
        with pytest.raises(iris.RemoteError) as refused:
            await node.request(CLUSTER, order, operation="begin")
        assert refused.value.code == "bad_request"

    await with_members(1, source)


async def test_a_member_that_stands_still_delays_each_request_that_was_due() -> None:
    """A closed loop would count one slow request; here every one that falls into the standstill is late."""
    service = iris.Service(CLUSTER)
    asked = 0
    still = trio.Event()

    @service.request
    async def answer(request: iris.Request) -> object:
        nonlocal asked
        asked += 1
        if asked == 150:
            still.set()
        await still.wait()
        return request.payload

    async with (
        iris.testing.open_network() as network,
        network.open_node("a") as member,
        network.open_node("b") as node,
        member.join(CLUSTER, service, limits=iris.Limits(concurrency=1000)),
    ):
        await node.wait_for(CLUSTER)
        figures = await measure(node, CLUSTER, list(node.members(CLUSTER)), at_pace(OPEN, 500), 0.4)
    assert figures["lost"] == 0
    assert figures["p50"] > 90_000, "100 of the 200 were due 0.1 s and more before the 150th"
    assert figures["p50"] < figures["p90"] <= figures["p99.9"] == figures["p99.999"]


async def test_requests_of_an_open_loop_that_fail_are_lost() -> None:
    service = iris.Service(CLUSTER)
    asked = 0

    @service.request
    async def answer(request: iris.Request) -> object:
        nonlocal asked
        asked += 1
        if asked % 4 == 0:
            raise iris.RemoteError("no", "")
        return request.payload

    async with (
        iris.testing.open_network() as network,
        network.open_node("a") as member,
        network.open_node("b") as node,
        member.join(CLUSTER, service),
    ):
        await node.wait_for(CLUSTER)
        figures = await measure(node, CLUSTER, list(node.members(CLUSTER)), at_pace(OPEN, 1000), 0.2)
    assert figures["lost"] == 50


def test_titles_say_how_many_receivers_there_are() -> None:
    case = case_named("fanout-4")
    assert among(case, 4) is case
    assert (among(case, 7).sinks, among(case, 7).title) == (7, "one-way to 7, 100 B, sum")
    assert among(case_named("publish-100"), 7).sinks == 1
    assert (at_pace(OPEN, 20_000).pace, at_pace(OPEN, 20_000).title) == (
        20_000, "request 128 B, 20,000 a second by a schedule",
    )  # fmt: skip


def test_between_machines_nothing_is_measured_that_needs_both_ends() -> None:
    assert {case.kind for case in ALONE} - {case.kind for case in NETWORK} == {"handshake"}


# -- the clocks of two machines -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "same", "expected"),
    [
        ([(10_000, 5000.0), (4000, 1000.0)], False, Ahead(by=1.0, error=2.0)),
        ([(4000, -8_000_000.0)], False, Ahead(by=-8000.0, error=2.0)),
        ([(10_000, 5000.0), (4000, 1000.0)], True, Ahead(by=0.0, error=0.0)),
        ([(4000, 9_000_000.0)], True, Ahead(by=9000.0, error=2.0)),
    ],
)
def test_the_fastest_reading_of_the_other_clock_counts(
    readings: list[tuple[int, float]], same: bool, expected: Ahead
) -> None:
    assert estimate(readings, same=same) == expected


def test_ages_are_corrected_by_the_clocks_and_say_by_how_much_they_may_be_wrong() -> None:
    figures = {"p50": 1000.0, "p99.9": 3000.0, "lost": 0.0}
    corrected = _corrected(figures, Ahead(by=100, error=5), Ahead(by=120, error=8))
    assert corrected == {"p50": 890, "p99.9": 2890, "lost": 0, "clock_error": 18}


# -- the command line ---------------------------------------------------------------------------------------


def serving(desk: Desk) -> Desk:
    """Have somebody at the desk who can be measured."""

    async def company(node: iris.Node) -> None:
        await serve_bench(node, CLUSTER)

    desk.company = company
    return desk


def test_the_json_has_the_schema_of_the_benchmark(desk: Desk) -> None:
    cases = ("--case", "publish-100", "--case", "paced-1000")
    done = serving(desk).run("bench", "--to", CLUSTER, *cases, "--seconds", "0.05", "--rounds", "2", "--json")
    assert (done.status, done.err) == (0, "")
    said = json.loads(done.out)
    assert said["schema"] == 1
    assert (said["run"]["rounds"], said["run"]["members"], said["run"]["clock_error"]) == (2, 1, 0)
    assert [result["case"] for result in said["results"]] == [
        "publish-100/rate",
        "publish-100/sent",
        "paced-1000/p50",
        "paced-1000/p99",
        "paced-1000/p99.9",
        "paced-1000/p99.99",
        "paced-1000/p99.999",
    ]
    for result in said["results"]:
        assert (result["system"], len(result["rounds"])) == ("iris", 2)
        assert result["min"] <= result["median"] <= result["max"]
    assert said["lost"] == []


def test_the_table_has_a_line_for_each_figure(desk: Desk) -> None:
    done = serving(desk).run("bench", "--to", CLUSTER, "--case", "request-1", "--seconds", "0.05")
    assert done.status == 0
    head, p50, p99 = done.out.decode().splitlines()
    assert head.split() == ["case", "median", "(min", "-", "max)", "unit"]
    assert p50.startswith(" request 128 B, one at a time")
    assert ("p50" in p50, "p99" in p99, p50.split()[-1]) == (True, True, "us")


def test_nobody_to_measure_is_one_line_that_says_what_to_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LOOK", 0.05)
    done = desk.run("bench", "--to", "elsewhere")
    assert done.status == FAILED
    assert done.complaint == ("no reachable member serves the cluster 'elsewhere': run 'iris bench --serve' there")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--serve", "--to", "a"), "--serve and --to are the two ends"),
        (("--cluster", "a"), "--cluster goes with --serve"),
        (("--serve", "--case", "request-1"), "--case is for the other end"),
        (("--serve", "--cluster", "a b"), "'a b' is not a cluster name"),
        (("--to", "a b"), "'a b' is not a cluster name"),
        (("--to", "a", "--case", "handshake"), "handshake can be measured on one machine only"),
        (("--seeds", "tcp://127.0.0.1:1"), "give --to or --serve"),
        (("--case", "nonsense"), "nonsense"),
        (("--seconds", "0"), "--seconds"),
        (("--rounds", "0"), "--rounds"),
        (("--pace", "0"), "--pace"),
    ],
)
def test_options_that_make_no_sense_are_one_line(desk: Desk, arguments: tuple[str, ...], complaint: str) -> None:
    done = desk.run("bench", *arguments)
    assert done.status == MISUSED
    assert complaint in done.complaint


# -- both ends on this machine ------------------------------------------------------------------------------


async def test_a_member_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SwarmFailed, match="did not start"):
        async with open_swarm(1):
            raise AssertionError("nothing was started")


async def test_a_member_that_is_killed_is_an_error_and_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[trio.Process] = []
    open_process = trio.lowlevel.open_process

    async def note(*arguments: Any, **options: Any) -> trio.Process:
        started.append(await open_process(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", note)

    async def use_it() -> None:
        async with open_swarm(1) as node:
            (member,) = node.members(CLUSTER)
            assert any(url.startswith("tcp://127.0.0.1:") for url in member.addresses)
            started[0].kill()
            await trio.sleep_forever()

    with pytest.raises(SwarmFailed, match="ended"), trio.fail_after(60):
        await use_it()
