"""Unused queues close: names that are only asked for use no place that workers need."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import iris
from iris.node.operators import gather_reports
from iris.spark_bridge.queues import queues
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, Rights, open_network
from tests.support.bridge_members import open_member


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MOST_QUEUES", 4)
    monkeypatch.setattr(queues, "MOST_OF_CLUSTER", 2)


async def ask(node: iris.Node, operation: str, name: str, **fields: Any) -> Any:
    return await node.request("bridge", {"group": f"queue/{name}", **fields}, operation=operation)


async def do_one(node: iris.Node, name: str, payload: object, **options: Any) -> int:
    """Put a job and do it; return which attempt that was."""
    async with node.bridge().queue(name, **options) as jobs:
        await jobs.put(payload)
        with trio.fail_after(20):
            async with await anext(jobs.receive()) as job:
                assert job.payload == payload
                return job.attempt
    raise AssertionError


@pytest.mark.usefixtures("_few")
async def test_questions_for_any_number_of_queues_leave_the_others_their_places_and_nothing_on_the_disk(
    tmp_path: Path,
) -> None:
    async with open_network() as network:
        network.credential("curious", Rights(publishes=(), subscribes=("public.>",)))
        async with (
            network.open_node("bridge") as node,
            open_bridge(node, topics=["jobs", "public.>"], directory=tmp_path) as bridge,
            network.open_node("curious") as curious,
            network.open_node("desk") as desk,
        ):
            for number in range(9):
                assert (await ask(curious, "queue", f"public.{number}"))["waiting"] == 0
                assert await do_one(desk, "jobs", number) == 1
            for number in range(9, 18):
                assert await ask(curious, "peek", f"public.{number}", most=9) == []
            with pytest.raises(iris.RemoteError, match="may not subscribe to 'jobs'"):
                await ask(curious, "queue", "jobs")
            assert [cursor.group for cursor in bridge.store.cursors.all()] == ["queue/jobs"]
            reports = (await gather_reports(node))["queues"]
            assert len(reports) <= 3
            assert (await ask(desk, "queue", "jobs"))["done"] == 9


@pytest.mark.usefixtures("_few")
async def test_a_queue_that_had_to_close_goes_on_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.spark_bridge.queues.queue._REST", 0.05)
    names = [f"jobs.{number}" for number in range(3)]
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["jobs.>"]),
        network.open_node("desk") as desk,
    ):
        for name in names:
            async with desk.bridge().queue(name, backoff=0.0) as jobs:
                await jobs.put(name)
                with trio.fail_after(20):
                    async with await anext(jobs.receive()) as job:
                        job.fail("not yet")
        for name in names:
            with trio.fail_after(20):
                async with desk.bridge().queue(name) as jobs, await anext(jobs.receive()) as job:
                    assert (job.payload, job.attempt) == (name, 2)
        for name in names:
            found = await ask(desk, "queue", name)
            assert (found["done"], found["waiting"]) == (1, 0)


@pytest.mark.usefixtures("_few")
async def test_a_queue_too_many_gets_the_place_of_a_worker_that_is_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_LEAVING", 60.0)
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        open_bridge(node, topics=["jobs.>"], directory=tmp_path),
        AsyncExitStack() as stack,
    ):
        busy = await hold(network, stack, "busy", "jobs.1")
        async with trio.open_nursery() as nursery:
            async with AsyncExitStack() as leaving:
                await hold(network, leaving, "busy", "jobs.2")
                nursery.start_soon(ask, busy, "queue", "jobs.3")
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert [status.queue for status in (await gather_reports(node))["queues"]] == ["jobs.1", "jobs.2"]
            nursery.start_soon(ask, busy, "queue", "jobs.4")


async def hold(network: Network, stack: AsyncExitStack, cluster: str, *names: str) -> iris.Node:
    """Have a worker of a cluster that has taken a job of each of these queues."""
    node = await stack.enter_async_context(network.open_node(cluster))
    for name in names:
        jobs = await stack.enter_async_context(node.bridge().queue(name))
        await jobs.put(name)
        with trio.fail_after(20):
            await anext(jobs.receive())
    return node


@pytest.mark.usefixtures("_few")
async def test_a_cluster_that_works_on_as_many_as_it_may_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["jobs.>"]),
        AsyncExitStack() as stack,
    ):
        busy = await hold(network, stack, "busy", "jobs.1", "jobs.2")
        with pytest.raises(
            iris.RemoteError, match=r"'jobs\.3' would be one too many: .* works on 2 for cluster 'busy'"
        ):
            await ask(busy, "queue", "jobs.3")
        desk = await stack.enter_async_context(network.open_node("desk"))
        for number in (4, 5, 6):
            assert await do_one(desk, f"jobs.{number}", number) == 1
        assert (await ask(busy, "queue", "jobs.1"))["in_hand"] == 1


async def test_a_queue_that_was_only_looked_at_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_FORGOTTEN", 0.01)
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        open_bridge(node, topics=["jobs.>"], directory=tmp_path) as bridge,
        network.open_node("desk") as desk,
    ):
        assert await do_one(desk, "jobs.kept", 1) == 1
        await ask(desk, "queue", "jobs.seen")
        with trio.fail_after(20):
            while [status.queue for status in (await gather_reports(node))["queues"]] != ["jobs.kept"]:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.01)
        assert set(bridge.store.owners.of_kind("group")) == {"queue/jobs.kept"}


async def test_a_worker_leaves_in_the_middle_of_a_large_job(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["jobs"]),
        network.open_node("desk") as desk,
    ):
        async with desk.bridge().queue("jobs") as jobs:
            for number in range(8):
                await jobs.put(bytes((number,)) * 900_000)
        async with desk.bridge().queue("jobs") as jobs:
            job = await anext(jobs.receive())
            job.release()
        assert (await ask(desk, "queue", "jobs"))["waiting"] == 8
