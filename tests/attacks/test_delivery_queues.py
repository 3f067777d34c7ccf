"""Queues and consumers: who waits for a job that another one has done, and groups that go on where they were."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import RemoteError
from iris.patterns.bridge_protocol import Place
from iris.spark_bridge.queues.machine import JobState, QueuedJob, QueueMachine, QueueWorker
from iris.spark_bridge.queues.rows import JobRow
from iris.testing import open_network
from tests.support.bridge_members import open_member
from tests.support.queue_workers import make_worker


def worker(machine: QueueMachine, limit: int = 4) -> QueueWorker:
    one = make_worker(limit, backoff=1.0)
    machine.open(one, 0.0)
    return one


def put(machine: QueueMachine, offset: int) -> QueuedJob:
    row = JobRow(offset, "jobs", None, b"x", "", "shop", {}, 0)
    job = QueuedJob(Place(0, offset), row, due=0.0, expires=math.inf, attempts=0, error="")
    machine.add(job, 0.0)
    return job


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("lost", [False, True])
def test_who_has_a_job_that_another_one_reports_done_is_told(lost: bool, begun: bool) -> None:
    """It would wait for ever to begin it: the bridge does not know it in its hand any more."""
    machine = QueueMachine()
    first = worker(machine)
    job = put(machine, 0)
    machine.assign(0.0)
    first.assigned.clear()
    if lost:  # it has begun the job, and its link breaks before it says so
        machine.close(first, 1.0, lost=True)
        first = worker(machine)
        second = worker(machine, limit=8)
    else:  # it stands still
        second = worker(machine)
        machine.expire(10.0)
    first.settled.clear()
    first.is_stalled = True
    machine.assign(10.0)
    assert job.worker is second
    assert job.suspect
    if begun:
        machine.begin(second, job.place, 10.0)
        second.confirmed.clear()
    assert machine.finish(first, job.place, 10.5)
    assert second.settled == [job.place]
    assert job.state is JobState.SETTLING
    outcomes, machine.outcomes = machine.outcomes, []
    machine.settle(outcomes, 11.0)
    assert first.settled == [job.place]
    assert not second.hand
    assert not machine.jobs


def test_two_that_have_done_a_job_are_told_when_that_is_on_the_disk_and_not_before() -> None:
    """The second report, from one whose lease had run out, took the first one's place: its commit waited for ever."""
    machine = QueueMachine()
    late = worker(machine)
    job = put(machine, 0)
    machine.assign(0.0)
    machine.begin(late, job.place, 0.0)
    machine.expire(10.0)
    outcomes, machine.outcomes = machine.outcomes, []
    machine.settle(outcomes, 10.0)
    late.settled.clear()
    late.is_stalled = True
    second = worker(machine)
    machine.assign(12.0)
    machine.begin(second, job.place, 12.0)
    assert machine.finish(second, job.place, 13.0)
    assert machine.finish(late, job.place, 13.0)
    assert late.settled == second.settled == []
    outcomes, machine.outcomes = machine.outcomes, []
    assert outcomes == [job]
    assert machine.settle(outcomes, 14.0) == {late, second}
    assert late.settled == second.settled == [job.place]
    assert not machine.jobs


async def test_a_worker_goes_on_when_a_job_in_its_hand_was_done_by_one_that_was_cut_off(tmp_path: Path) -> None:
    """The worker that was cut off had begun the job, and the bridge had no report of that."""
    done: list[Any] = []
    terms: dict[str, object] = {
        "group": "queue/work", "limit": 1, "lease": 60.0, "attempts": 5, "dead": "work.dead", "backoff": 1.0,
        "held": [],
    }  # fmt: skip
    free = trio.Event()
    async with (
        open_network() as network,
        open_member(network, tmp_path),
        network.open_node("jobs", host="cut") as cut,
        network.open_node("jobs", host="quick") as quick,
        network.open_node("shop") as shop,
        shop.bridge().queue("work") as work,
        quick.bridge().queue("work", lease=60) as others,
        trio.open_nursery() as nursery,
    ):
        for node in (cut, quick, shop):
            await node.wait_for("bridge")
        await work.put("second")
        message: dict[str, Any] = {}
        with suppress(ValueError):
            async with cut.open_tunnel("bridge", operation="take") as tunnel:
                await tunnel.send(terms)
                while "jobs" not in (message := await tunnel.receive()):
                    pass
                raise ValueError  # its link breaks
        place = message["jobs"][0][:2]
        await work.put("long", priority=9)

        async def take() -> None:
            async for job in others.receive(8):
                async with job:
                    if job.payload == "long":
                        await free.wait()
                    done.append(job.payload)

        nursery.start_soon(take)
        with trio.fail_after(20):
            await trio.sleep(0.3)  # until the other one has both in hand
            async with cut.open_tunnel("bridge", operation="take") as tunnel:
                await tunnel.send(terms | {"held": [place]})
                await tunnel.receive()
                await tunnel.send({"done": [place]})
                while "settled" not in await tunnel.receive():
                    pass
            free.set()
            await work.put("third")
            while "third" not in done:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.05)
        assert "second" not in done, "it was done already"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("start", [0, 2, 5000])
async def test_a_known_group_goes_on_whatever_start_says(tmp_path: Path, start: int) -> None:
    """It began at an offset that retention has removed since, or the log was put back from a copy."""
    async with open_network() as network, network.open_node("desk") as node:
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            for number in range(4):
                await node.publish_confirmed("orders", number)
            async with node.bridge().consume("orders", group="g") as orders, await anext(orders) as batch:
                assert batch[0].payload == 0
        async with open_member(network, tmp_path) as member:
            await node.wait_for("bridge")
            await node.publish_confirmed("orders", 4)
            assert member.states
            async with node.bridge().consume("orders", group="g", start=start) as orders:
                batch = await anext(orders)
                assert batch[-1].payload == 4


async def test_a_new_group_is_still_told_of_an_offset_that_is_not_there(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("desk") as node, open_member(network, tmp_path):
        await node.wait_for("bridge")
        for replay in (False, True):
            async with node.bridge().consume("orders", group="g", start=7, replay=replay) as orders:
                with pytest.raises(RemoteError, match="start is offset 7"):
                    await anext(orders)
        async with node.bridge().consume("orders", group="g") as orders:
            await node.publish_confirmed("orders", 1)
            async with await anext(orders) as batch:
                assert batch[0].payload == 1
        async with node.bridge().consume("orders", group="g", start=7, replay=True) as orders:
            with pytest.raises(RemoteError, match="start is offset 7"):
                await anext(orders)
