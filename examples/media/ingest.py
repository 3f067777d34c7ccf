"""Has films made smaller by another site: a queue says which, a tunnel carries each, an event tells of it.

Run it, in the folder of the films: python ingest.py
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from y4m import read_groups, read_size, write_frames, write_header

import iris.aio

AT_ONCE = 2  # films on their way
GROUP = 256 * 1024  # bytes of frames in one message


async def transcode(node: iris.aio.Node, source: Path, goes_on: Callable[[], None]) -> int:
    """Write the smaller film beside the source, whole or not at all; return how many frames it has."""
    unfinished, count = source.with_suffix(".part"), 0
    with source.open("rb") as film, unfinished.open("wb") as smaller:
        width, height = read_size(film)
        size = width * height
        write_header(smaller, width // 2, height // 2)
        async with node.open_tunnel("transcoders", wait=30) as tunnel, asyncio.TaskGroup() as tasks:

            async def send() -> None:
                await tunnel.send(width)
                for frames in read_groups(film, size, max(1, GROUP // size)):
                    await tunnel.send(frames)  # waits while the farm is busy
                await tunnel.send_eof()

            tasks.create_task(send())
            async for frames in tunnel:
                write_frames(smaller, frames)
                count += len(frames)
                goes_on()
    unfinished.rename(source.with_suffix(".small.y4m"))
    return count


async def finish(node: iris.aio.Node, job: iris.aio.Job) -> None:
    async with job:  # an error, such as a transcoder that is lost, has the job come again
        count = await transcode(node, Path(job.payload), job.extend)
        await node.publish_confirmed("films.done", {"film": job.payload, "frames": count})


async def main() -> None:
    async with (
        iris.aio.open_node("ingest", site="studio") as node,
        node.bridge().queue("films.new") as films,
        asyncio.TaskGroup() as tasks,
    ):
        async for job in films.receive(limit=AT_ONCE):
            tasks.create_task(finish(node, job))


if __name__ == "__main__":
    asyncio.run(main())
