"""Cases of work queues.  Each returns its figures, and whether they are what they should be."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Final, NamedTuple

import trio

import iris
from benchmarks.queue.stage import open_desk, open_stage, put_all, repeats, wait_done

_LIMIT: Final = 16


class Finding(NamedTuple):
    """The outcome of one case."""

    case: str
    figures: str
    good: bool


def kills(jobs: int, *, pause: float = 5.0, seed: int = 0, workers: int = 4, keys: int = 10_000) -> Finding:
    """Put jobs and do them, while every ``pause`` seconds a worker or the bridge is killed and started again."""
    r = random.Random(seed)
    deaths = {"worker": 0, "bridge": 0}
    with open_stage(workers, limit=_LIMIT, concurrency=8, work=0.002) as stage:

        async def kill() -> None:
            while True:
                await trio.sleep(pause)
                if r.randrange(workers + 1) == workers:
                    deaths["bridge"] += 1
                    stage.bridge.end()
                    await trio.to_thread.run_sync(stage.bridge.start)
                else:
                    deaths["worker"] += 1
                    victim = r.choice(stage.workers)
                    victim.end()
                    await trio.to_thread.run_sync(victim.start)

        async def run() -> float:
            began = time.perf_counter()
            async with open_desk() as (node, queue), trio.open_nursery() as nursery:
                nursery.start_soon(kill)
                await put_all(queue, range(jobs), keys=keys)
                found = await wait_done(node, jobs, timeout=3600)
                nursery.cancel_scope.cancel()
            assert (found["dead"], found["expired"]) == (0, 0), found
            return time.perf_counter() - began

        seconds = trio.run(run)
        record = stage.record()
    lost = jobs - len(record.done)
    twice, begun_twice = repeats(record.done), repeats(record.begun)
    in_hand = _LIMIT * (deaths["worker"] + workers * deaths["bridge"])
    return Finding(
        "kills",
        f"{jobs:,} jobs in {seconds:.0f} s, killed: {deaths['worker']} workers, {deaths['bridge']} bridges; "
        f"{lost} lost, {twice} done twice, {begun_twice} begun twice, {in_hand} in hand at most",
        lost == 0 and begun_twice <= in_hand,
    )


def shares(jobs: int, *, workers: int = 4, keys: int = 10_000, work: float = 0.005) -> Finding:
    """Let four workers share jobs of many keys."""
    with open_stage(workers, limit=_LIMIT, concurrency=8, work=work) as stage:

        async def run() -> None:
            async with open_desk() as (node, queue):
                await put_all(queue, range(jobs), keys=keys)
                await wait_done(node, jobs)

        trio.run(run)
        counts = [len(stage.record_of(number).done) for number in range(workers)]
    ratio = max(counts) / max(1, min(counts))
    return Finding("shares", f"{jobs:,} jobs of {keys:,} keys: {counts}, max/min {ratio:.3f}", ratio <= 1.2)


def slow(seconds: float, *, rate: float = 100.0, work: float = 0.02) -> Finding:
    """Make one of four workers ten times as slow; compare what jobs at the other three take, from put to done."""

    def p99(factor: int) -> tuple[float, list[int]]:
        each = [work * factor, work, work, work]
        with open_stage(4, limit=4, concurrency=4, work=each) as stage:
            put: dict[int, float] = {}

            async def run() -> None:
                async with open_desk() as (node, queue), trio.open_nursery() as nursery:
                    for number in range(int(seconds * rate)):
                        put[number] = time.time()
                        nursery.start_soon(put_one, queue, number)
                        await trio.sleep(1 / rate)
                    await wait_done(node, len(put))

            async def put_one(queue: iris.WorkQueue, number: int) -> None:
                await queue.put(f"{number} plain".encode(), key=f"k{number % 10_000}", timeout=60)

            trio.run(run)
            records = [stage.record_of(number) for number in range(4)]
        taken = sorted(times[0] - put[job] for record in records[1:] for job, times in record.done.items())
        return taken[int(len(taken) * 0.99)], [len(record.done) for record in records]

    alike, _ = p99(1)
    beside, counts = p99(10)
    return Finding(
        "slow",
        f"p99 of the other three {alike * 1e3:.1f} ms with all alike, {beside * 1e3:.1f} ms beside one 10 times as "
        f"slow ({beside / alike:.2f}); jobs done {counts}",
        beside <= 1.5 * alike,
    )


def poison(jobs: int, *, every: int = 50) -> Finding:
    """Put jobs some of which always fail: they are tried five times and are dead letters then."""
    with open_stage(4, limit=_LIMIT, concurrency=8, attempts=5, backoff=0.05) as stage:

        async def run() -> tuple[dict[str, int], list[tuple[int, str]]]:
            async with open_desk() as (node, queue):
                bad = range(0, jobs, every)
                await put_all(queue, bad, kind="poison")
                await put_all(queue, [number for number in range(jobs) if number % every], kind="plain")
                found = await wait_done(node, jobs)
                letters: list[tuple[int, str]] = []
                async with node.queue("jobs.dead") as dead:
                    taken = dead.take(64)
                    for _ in bad:
                        with trio.fail_after(60):
                            async with await anext(taken) as letter:
                                letters.append((int(letter.payload.split()[0]), letter.headers["dead-attempts"]))
            return found, letters

        found, letters = trio.run(run)
        record = stage.record()
    bad = set(range(0, jobs, every))
    tries = {len(record.begun[number]) for number in bad}
    return Finding(
        "poison",
        f"{len(bad)} of {jobs:,} jobs: {found['dead']} dead letters, tried {sorted(tries)} times each; "
        f"{found['done']:,} done",
        tries == {5}
        and sorted(letters) == [(number, "5") for number in sorted(bad)]
        and found["done"] == jobs - len(bad),
    )


def expiry(jobs: int, *, expires: float = 1.0) -> Finding:
    """Put more jobs that expire than can be done in time, while a worker is stopped now and then."""
    with open_stage(2, limit=_LIMIT, concurrency=4, work=0.02) as stage:

        async def stop() -> None:
            while True:
                os.kill(stage.workers[0].pid, signal.SIGSTOP)
                await trio.sleep(1.5 * expires)
                os.kill(stage.workers[0].pid, signal.SIGCONT)
                await trio.sleep(expires)

        async def run() -> dict[str, int]:
            async with open_desk() as (node, queue), trio.open_nursery() as nursery:
                nursery.start_soon(stop)
                for first in range(0, jobs, 100):
                    await put_all(queue, range(first, min(jobs, first + 100)), expires=expires)
                found = await wait_done(node, jobs)
                nursery.cancel_scope.cancel()
            return found

        found = trio.run(run)
        record = stage.record()
    return Finding(
        "expiry",
        f"{jobs:,} jobs that expire after {expires:g} s: {found['done']:,} done, {found['expired']:,} expired; the "
        f"oldest was begun after {record.oldest:.3f} s",
        found["done"] + found["expired"] >= jobs and record.oldest <= expires and found["done"] > 0 < found["expired"],
    )
