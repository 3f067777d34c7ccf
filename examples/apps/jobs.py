"""Thumbnails by a queue that outlives its programs: put, done, failed, put aside, put back."""

import logging
import tempfile
from pathlib import Path

import trio

import iris
from iris.spark_bridge.server.bridge import open_bridge


async def shrink(image: str, *, disk_is_full: bool) -> None:
    if image == "c.png" and disk_is_full:
        raise OSError("disk full")
    print(f"{image} is small now")


async def work(jobs: iris.WorkQueue, count: int, *, disk_is_full: bool) -> None:
    taken = jobs.receive(limit=4)
    for _ in range(count):
        async with await anext(taken) as job:
            await shrink(job.payload, disk_is_full=disk_is_full)


async def main() -> None:
    async with (
        iris.open_node("bridge") as serving,
        open_bridge(serving, topics=["thumbnails"], directory=Path(tempfile.mkdtemp())),
        iris.open_node("workers") as node,
    ):
        async with node.bridge().queue("thumbnails", attempts=3, backoff=0.01) as jobs:
            for image in ("a.png", "b.png", "c.png"):
                await jobs.put(image, key="album")
            await work(jobs, 5, disk_is_full=True)
        async with node.bridge().queue("thumbnails.dead") as dead:
            async with await anext(dead.receive()) as letter:
                print("put aside:", letter.payload, letter.headers["dead-attempts"], letter.headers["dead-error"])
                async with node.bridge().queue("thumbnails") as jobs:
                    await jobs.put(letter.payload)
                    await work(jobs, 1, disk_is_full=False)


logging.basicConfig(level=logging.CRITICAL)  # each failed attempt is logged, with its traceback
trio.run(main)
