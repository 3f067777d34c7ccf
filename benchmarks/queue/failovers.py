"""Jobs while the primary of a bridge is killed, its directory taken away, and its copy promoted, again and again."""

from __future__ import annotations

import shutil
import signal
from contextlib import ExitStack
from functools import partial
from typing import Final

import trio

from benchmarks.bridge.children import Child, copy_child
from benchmarks.bridge.copies import promote_copy, wait_in_step
from benchmarks.queue.cases import Finding
from benchmarks.queue.stage import open_desk, open_stage, put_all, repeats, wait_done

_LIMIT: Final = 16


def failovers(
    jobs: int, *, turns: int = 5, pause: float = 2.0, workers: int = 4, keys: int = 10_000, work: float = 0.01
) -> Finding:
    """Put jobs and do them; every ``pause`` seconds the primary goes with its disk, and its copy takes its place."""
    killed_after: list[int] = []
    with (
        ExitStack() as children,
        open_stage(workers, bridge=("--min-copies", "1"), limit=_LIMIT, concurrency=8, work=work) as stage,
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
                await trio.sleep(pause)
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
                    nursery.start_soon(partial(put_all, keys=keys), queue, range(jobs // 10 * 9))
                await put_all(queue, range(jobs // 10 * 9, jobs), keys=keys)
                return await wait_done(node, jobs)

        found = trio.run(run)
        record = stage.record()
    lost = jobs - len(record.done)
    begun_twice, in_hand = repeats(record.begun), _LIMIT * workers * turns
    return Finding(
        "failovers",
        f"{jobs:,} jobs, {turns} primaries killed with their disks, when {killed_after} were done: {lost} lost, "
        f"{found['done']:,} done by the last one's count, {begun_twice} begun twice, {in_hand} in hand at most",
        lost == 0 and found["done"] == jobs and 0 < killed_after[0] < jobs and begun_twice <= in_hand,
    )
