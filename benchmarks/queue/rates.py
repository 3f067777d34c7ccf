"""Rates at which jobs are put, and done, beside JetStream with a synchronous store, in turns."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import trio

from benchmarks.broker import free_port, running
from benchmarks.queue.cases import Finding
from benchmarks.queue.stage import open_desk, open_stage, wait_done

_PAYLOAD: Final = b"x" * 128


def ours(jobs: int, at_a_time: int) -> float:
    """Return how many jobs are put in a second."""

    async def run() -> float:
        async with open_desk() as (_, queue):
            left = iter(range(jobs))

            async def some() -> None:
                for _ in left:
                    await queue.put(_PAYLOAD, timeout=60)

            await queue.put(_PAYLOAD, timeout=60)
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(at_a_time):
                    nursery.start_soon(some)
            return jobs / (time.perf_counter() - began)

    with open_stage(0):
        return trio.run(run)


def theirs(jobs: int, at_a_time: int) -> float:
    """Return how many messages JetStream confirms in a second; each is synchronized to the disk."""
    import nats

    async def run(url: str) -> float:
        client = await cast("Any", nats).connect(url)
        stream = client.jetstream()
        await stream.add_stream(name="jobs", subjects=["jobs"], retention="workqueue", storage="file")
        left = iter(range(jobs))

        async def some() -> None:
            for _ in left:
                await stream.publish("jobs", _PAYLOAD, timeout=60)

        await stream.publish("jobs", _PAYLOAD, timeout=60)
        began = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(at_a_time)))
        rate = jobs / (time.perf_counter() - began)
        await client.close()
        return rate

    with tempfile.TemporaryDirectory() as name:
        directory, port = Path(name), free_port()
        settings = directory / "nats.conf"
        settings.write_text(
            f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{directory / "js"}", sync_interval: always }}\n'
        )
        with running(["nats-server", "--config", str(settings)], port, directory / "nats.log"):
            return asyncio.run(run(f"nats://127.0.0.1:{port}"))


def rates(jobs: int, *, rounds: int = 3) -> list[Finding]:
    """Put jobs one at a time, and 256 at a time."""
    found: list[Finding] = []
    for at_a_time, count in ((1, max(50, jobs // 20)), (256, jobs)):
        systems: dict[str, tuple[Callable[[int, int], float], list[float]]] = {
            "iris": (ours, []),
            "JetStream": (theirs, []),
        }
        for _ in range(rounds):
            for measure, figures in systems.values():
                figures.append(measure(count, at_a_time))
        (_, mine), (_, other) = systems.values()
        one, two = statistics.median(mine), statistics.median(other)
        found.append(
            Finding(
                f"put, {at_a_time} at a time",
                f"iris {one:,.0f} jobs/s, JetStream {two:,.0f} ({one / two:.2f}); rounds "
                f"{[round(rate) for rate in mine]} and {[round(rate) for rate in other]}",
                one >= two,
            )
        )
    return found


def done(jobs: int, *, workers: int = 4) -> Finding:
    """Put jobs and do them: how many in a second, both at the same time."""
    from benchmarks.queue.stage import put_all

    with open_stage(workers, limit=64, concurrency=16):

        async def run() -> tuple[float, float]:
            async with open_desk() as (node, queue):
                began = time.perf_counter()
                await put_all(queue, range(jobs), keys=10_000)
                put = time.perf_counter() - began
                await wait_done(node, jobs)
                return jobs / put, jobs / (time.perf_counter() - began)

        put, through = trio.run(run)
    return Finding(
        "through", f"{jobs:,} jobs of 10,000 keys, {workers} workers: put {put:,.0f}/s, done {through:,.0f}/s", True
    )
