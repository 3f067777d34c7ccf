"""Reports that come after a lease has ended, and reports of more than a worker can have."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import LeaseLost, RemoteError
from iris.patterns.bridge_protocol import MAX_LIMIT, MAX_REPORTED, JobReport, Place, read_request
from iris.spark_bridge.log import ShardState
from iris.spark_bridge.queues.machine import JobState, JobVerdict, QueuedJob, QueueMachine, QueueWorker
from iris.spark_bridge.queues.queue import OpenQueue
from iris.spark_bridge.queues.rows import JobRow
from iris.testing import open_network
from tests.support.bridge_members import open_member
from tests.support.queue_workers import first, make_worker, status

TERMS = {"group": "queue/jobs", "limit": 1, "lease": 0.3, "attempts": 5, "dead": "jobs.dead", "backoff": 0.0}


def worker(machine: QueueMachine, limit: int = 16, *, attempts: int = 5) -> QueueWorker:
    one = make_worker(limit, attempts=attempts)
    machine.open(one, 0.0)
    return one


def put(machine: QueueMachine, offset: int, key: str | None = None, *, due: float = 0.0) -> QueuedJob:
    row = JobRow(offset, "jobs", key, b"x", "", "shop", {}, 0)
    job = QueuedJob(Place(0, offset), row, due=due, expires=1e9, attempts=0, error="")
    machine.add(job, 0.0)
    return job


def write(machine: QueueMachine, now: float) -> list[JobVerdict | None]:
    outcomes, machine.outcomes = machine.outcomes, []
    verdicts = [job.verdict for job in outcomes]
    machine.settle(outcomes, now)
    return verdicts


def begin(machine: QueueMachine, one: QueueWorker, now: float) -> None:
    machine.assign(now)
    for job in one.assigned:
        machine.begin(one, job.place, now)
    one.assigned.clear()


def test_a_job_that_is_done_while_the_end_of_its_lease_is_written_is_not_tried_again() -> None:
    machine = QueueMachine()
    one = worker(machine)
    job = put(machine, 0)
    begin(machine, one, 0.0)
    machine.expire(10.0)
    assert (one.settled, one.taken) == ([job.place], [job.place])
    assert machine.finish(one, job.place, 10.0)
    assert write(machine, 10.0) == [JobVerdict.RETRY]
    assert one.settled == [job.place], "nothing is confirmed before it is on the disk"
    assert write(machine, 10.0) == [JobVerdict.DONE]
    assert one.settled == [job.place, job.place]
    assert (one.late, machine.jobs) == (set(), {})


def test_a_job_that_is_done_while_its_dead_letter_is_written_came_late() -> None:
    machine = QueueMachine()
    one = worker(machine, attempts=1)
    job = put(machine, 0)
    begin(machine, one, 0.0)
    machine.expire(10.0)
    assert machine.finish(one, job.place, 10.0)
    assert write(machine, 10.0) == [JobVerdict.DEAD]
    assert one.late == {job.place}


async def test_a_commit_after_another_worker_has_begun_the_job_says_so_and_that_one_counts(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path),
        network.open_node("jobs") as slow,
        network.open_node("jobs") as quick,
        slow.bridge().queue("jobs", lease=0.3, backoff=0.0) as some,
        quick.bridge().queue("jobs", lease=30) as others,
    ):
        await some.put("one")
        job = await first(some.receive(1))
        again = await first(others.receive(1))
        with trio.fail_after(20):
            with pytest.raises(LeaseLost, match="its lease had ended"):
                await job.commit()
            assert (await status(quick))["done"] == 0
            await again.commit()
            with pytest.raises(LeaseLost):
                await job.commit()
        assert (await status(quick))["done"] == 1


async def test_a_commit_that_crosses_the_end_of_its_lease_counts_unless_somebody_has_begun_the_job(
    tmp_path: Path,
) -> None:
    """The bridge says that the lease has ended, which is no answer to a report that is in progress."""
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        await node.publish_confirmed("jobs", 1)
        async with node.open_tunnel("bridge", operation="take") as tunnel:
            await tunnel.send({**TERMS, "held": []})
            while "jobs" not in (message := await tunnel.receive()):
                pass
            place = message["jobs"][0][:2]
            await tunnel.send({"begun": [place]})
            with trio.fail_after(20):
                assert await tunnel.receive() == {"settled": [place], "taken": [place]}
                await tunnel.send({"done": [place]})
                while (message := await tunnel.receive()) != {"settled": [place]}:
                    assert "jobs" in message
        assert (await status(node))["done"] == 1


async def test_a_worker_that_gets_its_job_a_second_time_reports_it_once(tmp_path: Path) -> None:
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        async with node.bridge().queue("jobs", lease=0.3, backoff=0.0) as jobs:
            worker = jobs.receive(1)
            await jobs.put("one")
            job = await first(worker)
            again = await first(worker)
            job.extend()
            with trio.fail_after(20):
                with pytest.raises(LeaseLost):
                    await job.commit()
                assert (await status(node))["done"] == 0
                await again.commit()
        assert (await status(node))["done"] == 1


async def test_a_worker_that_comes_back_is_told_which_of_its_jobs_it_has_no_more(tmp_path: Path) -> None:
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        await node.publish_confirmed("jobs", 1)
        async with node.bridge().queue("jobs", lease=30) as jobs:
            job = await first(jobs.receive(1))
            async with node.open_tunnel("bridge", operation="take") as tunnel:
                await tunnel.send({**TERMS, "held": [[0, 0]]})
                with trio.fail_after(20):
                    while "taken" not in (message := await tunnel.receive()):
                        pass
                assert message == {"settled": [[0, 0]], "taken": [[0, 0]]}
            await job.commit()


@pytest.mark.parametrize(("reported", "held"), [("failed", False), ("failed", True), ("released", True)])
async def test_what_is_reported_before_a_bridge_that_was_restarted_has_looked_at_the_job_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: str, held: bool
) -> None:
    """A job that was given back while its worker was known to have it stayed with that one until the lease ended."""
    async with open_network() as network, network.open_node("jobs") as node:
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            for number in range(2):
                await node.publish_confirmed("jobs", number)
            async with node.open_tunnel("bridge", operation="take") as tunnel:
                await tunnel.send({**TERMS, "limit": 2, "lease": 30.0, "held": []})
                shards = (await tunnel.receive())["shards"]
                places = [entry[:2] for entry in (await tunnel.receive())["jobs"]]
                assert places == [[0, 0], [0, 1]]
        looks, read = threading.Event(), OpenQueue._read

        def wait_and_read(queue: OpenQueue, state: ShardState, start: int) -> tuple[list[JobRow], int]:
            assert looks.wait(20)
            return read(queue, state, start)

        monkeypatch.setattr(OpenQueue, "_read", wait_and_read)
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            async with node.open_tunnel("bridge", operation="take") as tunnel:
                await tunnel.send({**TERMS, "lease": 30.0, "held": places[:1] if held else [], "shards": shards})
                await tunnel.receive()
                outcome = [[*places[0], 1, "x", False]] if reported == "failed" else places[:1]
                await tunnel.send({"done": places[1:], reported: outcome})
                with trio.fail_after(5):
                    try:
                        while places[1] != (await tunnel.receive())["settled"][-1]:
                            pass
                    finally:
                        looks.set()
                    while "jobs" not in (message := await tunnel.receive()):
                        pass
                assert [entry[:3] for entry in message["jobs"]] == [[0, 0, 2 if reported == "failed" else 1]]


async def test_a_failure_that_crosses_the_end_of_its_lease_is_one_failed_attempt(tmp_path: Path) -> None:
    """Its worker has the job again by then, as far as the bridge knows."""
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        await node.publish_confirmed("jobs", 1)
        async with node.open_tunnel("bridge", operation="take") as tunnel:
            await tunnel.send({**TERMS, "held": []})
            with trio.fail_after(20):
                while "jobs" not in (message := await tunnel.receive()):
                    pass
                await tunnel.send({"begun": [[0, 0]]})
                assert (await tunnel.receive())["taken"] == [[0, 0]]
                await tunnel.send({})
                message = await tunnel.receive()
                assert [entry[:3] for entry in message["jobs"]] == [[0, 0, 2]]
                await tunnel.send({"failed": [[0, 0, 1, "x", False]]})
                while "jobs" not in (message := await tunnel.receive()):
                    assert message["settled"] == [[0, 0]]
            assert [entry[:3] for entry in message["jobs"]] == [[0, 0, 2]]


async def test_a_report_of_more_jobs_than_a_worker_can_have_is_refused(tmp_path: Path) -> None:
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        for report in (
            {"done": [[0, 1]] * (MAX_REPORTED + 1)},
            {"failed": [[0, 1, 1, "", False]] * (MAX_REPORTED + 1)},
            {"begun": [[0, 1]] * MAX_REPORTED, "released": [[0, 2]]},
        ):
            async with node.open_tunnel("bridge", operation="take") as tunnel:
                await tunnel.send({**TERMS, "held": []})
                await tunnel.receive()
                await tunnel.send(report)
                with trio.fail_after(20):
                    message = await tunnel.receive()
                assert message["error"] == "bad_request"
                assert str(MAX_REPORTED) in message["message"]
        async with node.open_tunnel("bridge", operation="take") as tunnel:
            await tunnel.send({**TERMS, "held": [[0, 1]] * (MAX_REPORTED + 1)})
            message = await tunnel.receive()
            while "error" not in message:
                message = await tunnel.receive()
            assert message["error"] == "bad_request"


def test_a_report_of_nonsense_of_any_size_makes_no_places() -> None:
    many: list[list[object]] = [[[0, 1]] * 250_000, [0, 1] * 250_000]
    begun = time.process_time()
    for _ in range(20):
        for places in many:
            with pytest.raises(RemoteError, match=str(MAX_REPORTED)):
                read_request(JobReport, {"extended": places})
    assert time.process_time() - begun < 0.2


async def test_a_worker_with_the_largest_limit_reports_in_parts(tmp_path: Path) -> None:
    """All that it has ends at once, after it was begun."""
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(partial(node.publish_confirmed, "jobs", number))
        async with node.bridge().queue("jobs", lease=60) as queue:
            taker = queue.receive(MAX_LIMIT)
            jobs = [await first(taker) for _ in range(30)]
            link: Any = jobs[0]._reporting
            link._begun.extend([Place(7, 7)] * 3 * MAX_LIMIT)
            for job in jobs:
                async with job:
                    pass
            with trio.fail_after(20):
                await jobs[-1].commit()
        assert (await status(node))["done"] == 30


@pytest.mark.parametrize("seed", range(10))
def test_the_states_of_a_queue_are_counted_as_they_change(seed: int) -> None:
    r = random.Random(seed)
    machine = QueueMachine()
    workers = [worker(machine, r.randint(1, 5)) for _ in range(3)]
    now = 0.0
    for number in range(600):
        now += r.random() * 2
        put(machine, number, r.choice([None, "a", "b"]), due=now + r.choice([0, 0, 3]))
        machine.expire(now)
        one = r.choice(workers)
        begin(machine, one, now)
        place = r.choice([*machine.jobs])
        match r.randrange(8):
            case 0:
                machine.fail(one, place, "x", now, attempt=r.randint(1, 3), permanent=r.random() < 0.2)
            case 1:
                machine.release(one, place, now)
            case 2:
                machine.close(one, now, lost=r.random() < 0.5)
                workers[workers.index(one)] = other = worker(machine, r.randint(1, 5))
                machine.resume(other, r.sample([*machine.jobs], min(4, len(machine.jobs))), now)
            case 3:
                machine.lapse(one, place, now)
            case 4 if r.random() < 0.05:
                machine.clear()
            case 5:
                write(machine, now)
            case _:
                machine.finish(one, place, now)
        counted = Counter(job.state for job in machine.jobs.values())
        assert +machine.states == counted
        assert machine.delayed == counted[JobState.DELAYED]


@pytest.mark.parametrize("reported", ["done", "failed"])
def test_a_job_that_is_reported_before_its_turn_is_not_handed_out_while_that_is_written(reported: str) -> None:
    """It was in the hand of a worker and in the list of what is written, and the end of its lease never ended."""
    machine = QueueMachine()
    one, other = worker(machine, 2), worker(machine, 2)
    jobs = [put(machine, number, "key") for number in range(3)]
    begin(machine, one, 0.0)
    assert machine.finish(one, jobs[0].place, 0.0)
    first_write, machine.outcomes = machine.outcomes, []
    if reported == "done":
        assert machine.finish(other, jobs[1].place, 0.0)
    else:
        assert machine.fail(other, jobs[1].place, "x", 0.0, attempt=1, permanent=False)
    second_write, machine.outcomes = machine.outcomes, []
    machine.settle(first_write, 0.0)
    assert machine.assign(0.0) == set()
    machine.settle(second_write, 0.0)
    served = machine.assign(0.0)
    assert [job.place.offset for one in served for job in one.assigned] == [2 if reported == "done" else 1]


def test_a_job_that_fails_before_its_turn_waits_for_it() -> None:
    machine = QueueMachine()
    one = worker(machine, 4)
    jobs = [put(machine, number, "key") for number in range(2)]
    begin(machine, one, 0.0)
    assert machine.fail(one, jobs[1].place, "x", 0.0, attempt=1, permanent=False)
    write(machine, 0.0)
    assert machine.assign(0.0) == set()
    machine.finish(one, jobs[0].place, 0.0)
    write(machine, 0.0)
    assert machine.assign(0.0) == {one}


def test_jobs_that_go_on_without_their_place_in_a_heap_leave_nothing_there() -> None:
    machine = QueueMachine()
    jobs = [put(machine, number) for number in range(100)]
    for turn in range(200):
        one = worker(machine, 100)
        machine.resume(one, [job.place for job in jobs], float(turn))
        machine.close(one, float(turn), lost=False)
    assert len(machine._ready) < 2000
    delayed = [put(machine, 1000 + number, due=1e6) for number in range(3000)]
    other = worker(machine, 1)
    for job in delayed:
        machine.finish(other, job.place, 1.0)
        write(machine, 1.0)
    put(machine, 9000, due=1e6)
    assert len(machine._delayed) < 1500
    one = worker(machine, 200)
    machine.assign(300.0)
    assert {job.place for job in one.assigned} | {job.place for job in other.assigned} == {job.place for job in jobs}


def test_many_jobs_of_one_key_end_in_any_order_in_little_time() -> None:
    machine = QueueMachine()
    one = worker(machine, 1)
    jobs = [put(machine, number, "key") for number in range(16_384)]
    begun = time.process_time()
    for job in reversed(jobs):
        machine.finish(one, job.place, 0.0)
    write(machine, 0.0)
    assert time.process_time() - begun < 2.0
    assert not machine.jobs
