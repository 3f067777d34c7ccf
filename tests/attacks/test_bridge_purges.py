"""Jobs that are out while their queue is purged, or their log is another one than before, or their bridge is away."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import LeaseLost
from iris.patterns.pubsub.queues.job import Job
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import open_network
from tests.spark_bridge.copies.test_tables import open_pair
from tests.support.bridge_members import open_member, open_members
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.mark.parametrize("reported", ["before", "after"])
async def test_no_commit_returns_before_the_disk_knows_when_a_queue_is_purged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: str
) -> None:
    is_full = False
    write = BridgeMember.write

    async def change(self: BridgeMember, *args: Any, **options: Any) -> Any:
        if is_full:
            raise StoreFull("no room for that")
        return await write(self, *args, **options)

    monkeypatch.setattr(BridgeMember, "write", change)
    async with (
        open_network() as network,
        open_member(network, tmp_path),
        network.open_node("desk") as node,
        node.bridge().queue("jobs") as jobs,
    ):
        await node.wait_for("bridge")
        for number in range(3):
            await jobs.put(number)
        job = await anext(jobs.receive(1))
        is_full = True
        told: list[str] = []

        async def commit() -> None:
            await job.commit()
            told.append("commit")

        async def purge() -> None:
            await node.request("bridge", {"group": "queue/jobs"}, operation="purge", timeout=60)
            told.append("purge")

        async with trio.open_nursery() as nursery:
            if reported == "before":
                nursery.start_soon(commit)
                await trio.sleep(0.5)
            nursery.start_soon(purge)
            await trio.sleep(0.5)
            if reported == "after":
                nursery.start_soon(commit)
            await trio.sleep(2)
            early = [*told]
            is_full = False
        assert early == []
        assert sorted(told) == ["commit", "purge"]


async def test_a_queue_that_is_purged_while_jobs_are_out_does_none_of_them_again(tmp_path: Path) -> None:
    ran: Counter[int] = Counter()
    async with (
        open_network() as network,
        open_members(network, tmp_path, ["a"], of=1),
        network.open_node("desk") as node,
        node.bridge().queue("jobs", backoff=0.1, lease=1.0) as jobs,
    ):
        await node.wait_for("bridge")
        for number in range(20):
            await jobs.put(number, key=str(number % 3))
        taker = jobs.receive(6)
        out: list[Job] = []
        for _ in range(3):
            out.append(job := await anext(taker))
            ran[job.payload] += 1
        await node.request("bridge", {"group": "queue/jobs"}, operation="purge")
        out[0].fail("x")
        out[1].release()
        with trio.fail_after(20):
            await out[2].commit()
        for number in range(20, 26):
            await jobs.put(number, key=str(number % 3))
        with trio.fail_after(20):
            for _ in range(6):
                async with await anext(taker) as job:
                    ran[job.payload] += 1
        await trio.sleep(3)
        found = await node.request("bridge", {"group": "queue/jobs"}, operation="queue")
        assert found["waiting"] + found["delayed"] + found["in_hand"] == 0
        assert set(ran.values()) == {1}
        assert ran.keys() == {out_.payload for out_ in out} | set(range(20, 26))


async def test_a_report_of_a_job_of_a_log_that_is_gone_ends_no_job_of_the_next_log(tmp_path: Path) -> None:
    """The directory was lost: the offsets begin anew, and mean other jobs."""
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        node.bridge().queue("jobs", lease=60) as jobs,
    ):
        taker = jobs.receive(2)
        async with open_members(network, tmp_path / "first", ["a"], of=1):
            await node.wait_for("bridge")
            await jobs.put("old")
            await jobs.put("older", key="x")
            with trio.fail_after(30):
                reported, unreported = await anext(taker), await anext(taker)
        told: list[Any] = []

        async def commit(job: Job) -> None:
            try:
                await job.commit()
            except LeaseLost:
                told.append(job.payload)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, reported)
            async with open_members(network, tmp_path / "second", ["a"], of=1):
                with trio.fail_after(40):
                    await jobs.put("new")
                    await jobs.put("newer", key="x")
                    for payload in ("new", "newer"):
                        async with await anext(taker) as job:
                            assert job.payload == payload
                            await commit(unreported)
                        await job.commit()
                found = await node.request("bridge", {"group": "queue/jobs"}, operation="queue")
        assert told[:2] == ["old", "older"]
        assert found["done"] == 2


async def test_jobs_of_a_key_go_on_in_their_order_after_a_promotion(tmp_path: Path) -> None:
    ends: dict[str | None, list[int]] = defaultdict(list)
    at_work: Counter[str | None] = Counter()
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as fail_over,
        network.open_node("desk") as node,
        node.bridge().queue("jobs", lease=20, attempts=4, backoff=0.2) as jobs,
        trio.open_nursery() as nursery,
    ):
        failed: set[int] = set()

        async def work() -> None:
            async for job in jobs.receive(2):
                at_work[job.key] += 1
                assert at_work[job.key] == 1
                await trio.sleep(0.1)
                at_work[job.key] -= 1
                if job.payload % 4 == 1 and job.payload not in failed:
                    failed.add(job.payload)
                    job.fail("once")
                    continue
                if not ends[job.key] or ends[job.key][-1] != job.payload:
                    ends[job.key].append(job.payload)
                await job.commit()

        for number in range(24):
            await jobs.put(number, key=f"k{number % 3}")
        for _ in range(4):
            nursery.start_soon(work)
        await trio.sleep(0.5)
        await fail_over()
        await wait_until(lambda: sum(map(len, ends.values())) >= 24, pause=0.1)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert all(found == sorted(set(found)) for found in ends.values())


async def test_dead_letters_of_dead_letters_are_there_once_and_end_somewhere(tmp_path: Path) -> None:
    found: list[tuple[str, str]] = []
    async with (
        open_network() as network,
        open_members(network, tmp_path, ["a", "b"], of=2),
        network.open_node("desk") as node,
    ):
        await node.wait_for("bridge")
        name = "jobs"
        async with node.bridge().queue(name, attempts=1) as jobs:
            for number in range(6):
                await jobs.put(number, key=str(number), headers={"mine": "x"})
        for _ in range(3):
            payloads: list[int] = []
            async with node.bridge().queue(name, attempts=1) as jobs:
                taker = jobs.receive(6)
                with trio.fail_after(30):
                    for _ in range(6):
                        job = await anext(taker)
                        payloads.append(job.payload)
                        assert job.key == str(job.payload)
                        assert job.headers["mine"] == "x"
                        found.append((name, job.headers.get("dead-queue", "")))
                        job.fail("no", permanent=True)
            assert sorted(payloads) == [*range(6)]
            name += ".dead"
        assert Counter(found) == {("jobs", ""): 6, ("jobs.dead", "jobs"): 6, ("jobs.dead.dead", "jobs.dead"): 6}


@pytest.mark.parametrize("step", [-7200.0, 7200.0, -86_400.0 * 400])
async def test_delayed_jobs_come_at_their_time_over_a_restart_whatever_the_clock_did(
    tmp_path: Path, step: float
) -> None:
    ahead = 0.0

    def wall() -> float:
        return 1.8e9 + trio.current_time() + ahead

    async with open_network() as network, network.open_node("desk") as node:
        async with open_members(network, tmp_path, ["a"], of=1, wall_clock=wall):
            await node.wait_for("bridge")
            async with node.bridge().queue("jobs", backoff=5.0, attempts=3) as jobs:
                began = trio.current_time()
                await jobs.put("later", delay=6.0)
                await jobs.put("again")
                job = await anext(jobs.receive(1))
                assert job.payload == "again"
                job.fail("once")
        ahead += step if step < 0 else 0.0
        async with open_members(network, tmp_path, ["a"], of=1, wall_clock=wall):
            ahead += step if step > 0 else 0.0
            await node.wait_for("bridge")
            async with node.bridge().queue("jobs", backoff=5.0, attempts=3) as jobs:
                taker = jobs.receive(2)
                with trio.fail_after(60):
                    for _ in range(2):
                        job = await anext(taker)
                        passed = trio.current_time() - began
                        assert passed > 4, (job.payload, passed)
                        if job.payload == "again":
                            assert job.attempt == 2
                        await job.commit()
