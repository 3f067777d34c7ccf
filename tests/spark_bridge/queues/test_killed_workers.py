"""Jobs of a queue while workers, their bridge, or a primary with its disk are killed: real processes."""

from __future__ import annotations

import random
import shutil
import signal
from contextlib import ExitStack
from functools import partial
from typing import Final

import pytest
import trio

from tests.support.copied_bridges import promote_copy, wait_in_step
from tests.support.job_stage import open_desk, open_stage, put_all, wait_done
from tests.support.processes import Child, copy_child

_LIMIT: Final = 16


@pytest.mark.parametrize(("seed", "jobs"), [(0, 1_000), pytest.param(1, 5_000, marks=pytest.mark.long)])
def test_no_job_is_lost_by_kills_and_no_more_is_done_twice_than_was_in_hand(seed: int, jobs: int) -> None:
    """While jobs are put and done, a worker or the bridge is killed every half second, and started again."""
    workers = 2
    r = random.Random(seed)
    deaths = {"worker": 0, "bridge": 0}
    put = 0
    with open_stage(workers, limit=_LIMIT, concurrency=8, work=0.002) as stage:

        async def kill() -> None:
            while True:
                await trio.sleep(0.5)
                if r.randrange(workers + 1) == workers:
                    deaths["bridge"] += 1
                    stage.bridge.end()
                    await trio.to_thread.run_sync(stage.bridge.start)
                else:
                    deaths["worker"] += 1
                    victim = r.choice(stage.workers)
                    victim.end()
                    await trio.to_thread.run_sync(victim.start)

        async def run() -> None:
            nonlocal put
            async with open_desk() as (node, queue), trio.open_nursery() as nursery:
                nursery.start_soon(kill)
                while not put or sum(deaths.values()) < 2:  # on a quick machine they are all done before the first kill
                    await put_all(queue, range(put, put + jobs), keys=jobs // 4)
                    put += jobs
                found = await wait_done(node, put, timeout=3600)
                nursery.cancel_scope.cancel()
            assert (found["dead"], found["expired"]) == (0, 0), found

        trio.run(run)
        record = stage.record()
    in_hand = _LIMIT * (deaths["worker"] + workers * deaths["bridge"])
    assert set(record.done) == set(range(put))
    assert record.begun.total() - len(record.begun) <= in_hand


@pytest.mark.long  # tests/spark_bridge/copies/test_tables.py does it in one process
def test_no_job_is_lost_with_a_primary_and_its_disk_and_no_more_is_done_twice_than_was_in_hand() -> None:
    """While jobs are put and done, the primary goes with its disk, again and again, and its copy takes its place."""
    jobs, turns, workers = 6_000, 3, 2
    killed_after: list[int] = []
    with (
        ExitStack() as children,
        open_stage(workers, bridge=("--min-copies", "1"), limit=_LIMIT, concurrency=8, work=0.02) as stage,
    ):

        def follow(number: int) -> Child:
            copy = copy_child(stage.directory, f"copy-{number}")
            children.callback(copy.end)
            copy.start()
            trio.run(wait_in_step)
            return copy

        async def fail_over() -> None:
            primary, directory = stage.bridge, stage.directory / "log"
            for turn in range(turns):
                copy = await trio.to_thread.run_sync(follow, turn)
                await trio.sleep(0.5)
                primary.end(signal.SIGKILL)
                killed_after.append(len(stage.record().done))
                await trio.to_thread.run_sync(shutil.rmtree, directory)
                await trio.to_thread.run_sync(promote_copy, copy)
                primary, directory = copy, stage.directory / f"copy-{turn}"
            await trio.to_thread.run_sync(follow, turns)

        async def run() -> dict[str, int]:
            async with open_desk() as (node, queue):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fail_over)
                    nursery.start_soon(partial(put_all, keys=500), queue, range(jobs // 10 * 9))
                await put_all(queue, range(jobs // 10 * 9, jobs), keys=500)
                return await wait_done(node, jobs)

        found = trio.run(run)
        record = stage.record()
    assert found["done"] == jobs
    assert set(record.done) == set(range(jobs))
    assert 0 < killed_after[0] < jobs, "it was killed before the first job, or after the last"
    assert record.begun.total() - len(record.begun) <= _LIMIT * workers * turns
