"""A bridge whose members get other names, or are promoted, while jobs, leases and keys of others are open at it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

import iris
from iris.kernel.errors import LeaseLost
from iris.testing import open_network
from tests.spark_bridge.copies.test_tables import open_pair
from tests.support.bridge_members import open_members

pytestmark = pytest.mark.long


async def test_jobs_and_letters_are_the_same_when_members_have_other_names(tmp_path: Path) -> None:
    done: Counter[int] = Counter()
    async with open_network() as network, network.open_node("jobs") as node:
        async with node.bridge().queue("jobs", attempts=3, backoff=0.3, lease=5) as jobs:
            taker = jobs.receive(3)
            for turn, names in enumerate((["a", "b"], ["z", "b"], ["y", "x"])):
                async with open_members(network, tmp_path, names, of=2):
                    await node.wait_for("bridge")
                    with trio.fail_after(60):
                        for number in range(6):
                            await jobs.put(10 * turn + number)
                        for _ in range(4):
                            job = await anext(taker)
                            if job.payload % 10 == 3:
                                job.fail("poison")
                            else:
                                done[job.payload] += 1
                                await job.commit()
            async with open_members(network, tmp_path, ["q", "r"], of=2):
                sound = {10 * turn + number for turn in range(3) for number in range(6) if number != 3}
                with trio.move_on_after(60):
                    while done.keys() != sound:
                        job = await anext(taker)
                        if job.payload % 10 == 3:
                            job.fail("poison")
                        else:
                            done[job.payload] += 1
                            await job.commit()
        assert done == dict.fromkeys(sound, 1)


async def test_no_commit_is_taken_by_a_member_that_has_the_name_of_another_one(tmp_path: Path) -> None:
    """Two members have changed their names: each is asked for jobs of the other one's shard, which it does not know."""
    async with (
        open_network() as network,
        network.open_node("jobs") as node,
        node.bridge().queue("jobs", lease=60) as jobs,
        node.bridge().consume("jobs", group="g", start="earliest") as events,
    ):
        taker = jobs.receive(16)  # half of it at each member: the keys are not spread evenly
        async with open_members(network, tmp_path, ["a", "b"], of=2):
            await node.wait_for("bridge")
            for number in range(8):
                await jobs.put(number, key=str(number))
            with trio.fail_after(30):
                taken = [await anext(taker) for _ in range(8)]
                batches = [await anext(events), await anext(events)]
            found = [await node.request(f"bridge.{name}", {"group": "queue/jobs"}, operation="queue") for name in "ab"]
            assert all(one["in_hand"] for one in found)
        async with open_members(network, tmp_path, ["b", "a"], of=2):
            with trio.fail_after(60):
                for job in taken:
                    await job.commit()
                for batch in batches:
                    await batch.commit()
                found = [
                    await node.request(f"bridge.{name}", {"group": "queue/jobs"}, operation="queue") for name in "ab"
                ]
            assert sum(one["done"] for one in found) == 8
            assert sum(one["waiting"] + one["in_hand"] for one in found) == 0


async def test_a_commit_goes_to_the_member_that_has_another_name_by_then(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("jobs") as node:
        async with node.bridge().consume("a", group="g", start="earliest") as events:
            async with open_members(network, tmp_path, ["a", "b"], of=2):
                await node.wait_for("bridge")
                for number in range(12):
                    await node.publish_confirmed("a", number, key=str(number))
                with trio.fail_after(30):
                    first = await anext(events)
                    second = await anext(events)
            async with open_members(network, tmp_path, ["z", "y"], of=2):
                with trio.fail_after(60):
                    await first.commit()
                    await second.commit()
                    for number in range(12, 24):
                        await node.publish_confirmed("a", number, key=str(number))
                    found = [event.payload for batch in (first, second) for event in batch]
                    while len(found) < 24:
                        async with await anext(events) as batch:
                            found += [event.payload for event in batch]
        assert sorted(found) == [*range(24)]


async def test_only_one_of_two_is_told_that_a_job_is_done_when_a_copy_is_promoted_in_between(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as fail_over,
        network.open_node("jobs") as slow,
        network.open_node("jobs") as quick,
        slow.bridge().queue("jobs", lease=0.4, backoff=0.0) as some,
        quick.bridge().queue("jobs", lease=30, backoff=0.0) as others,
    ):
        with trio.fail_after(60):
            await some.put(1)
            job = await anext(some.receive(1))
            again = await anext(others.receive(1))
            await fail_over()
            told = 0
            for one in (again, job):
                try:
                    await one.commit()
                except LeaseLost:
                    continue
                told += 1
        assert told == 1


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 86_400.0])
async def test_a_lease_and_a_key_go_by_no_wall_clock(tmp_path: Path, step: float) -> None:
    ahead = 0.0

    def wall() -> float:
        return 1.8e9 + trio.current_time() + ahead

    async with (
        open_network() as network,
        open_members(network, tmp_path, ["a"], of=1, wall_clock=wall),
        network.open_node("workers") as one,
        network.open_node("workers") as two,
    ):
        await one.wait_for("bridge")
        async with one.bridge().lease("scheduler", ttl=2) as lease:
            ahead += step
            with pytest.raises(iris.RequestTimeout):
                async with two.bridge().lease("scheduler", ttl=2, timeout=0.5):
                    pass
            ahead -= 2 * step
            await trio.sleep(2.5)
            with pytest.raises(iris.RequestTimeout):
                async with two.bridge().lease("scheduler", ttl=2, timeout=0.5):
                    pass
        async with two.bridge().lease("scheduler", ttl=2, timeout=10) as later:
            assert later.token > lease.token
