"""Makes films smaller, at the site that has the processors: each film by a tunnel, its frames in processes.

Run it: iris run farm:scalers farm:transcoders --site farm --workers 2
"""

import asyncio

from y4m import halved

import iris
import iris.aio

AHEAD = 4  # groups of frames of one film that are computed at a time
AGAIN = iris.RequestOptions(idempotent=True)  # if a worker is lost, another one does its frames

scalers = iris.aio.Service("scalers")


@scalers.request("halve", process=True)
def halve(frames: list[bytes], width: int) -> list[bytes]:
    return [halved(frame, width) for frame in frames]


transcoders = iris.aio.Service("transcoders")


@transcoders.tunnel
async def transcode(film: iris.aio.Tunnel, node: iris.aio.Node) -> None:
    """Answer each group of frames by the smaller ones, in order; have all members of this site compute."""
    width = await film.receive()
    begun: asyncio.Queue[asyncio.Task[list[bytes]] | None] = asyncio.Queue(AHEAD)

    async def scale(frames: list[bytes]) -> list[bytes]:
        asked = {"frames": frames, "width": width}
        reply = list[bytes]
        return await node.request("scalers", asked, operation="halve", reply=reply, timeout=60, wait=30, options=AGAIN)

    async def answer() -> None:
        while task := await begun.get():
            await film.send(await task)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer())
        async for frames in film:
            await begun.put(tasks.create_task(scale(frames)))
        await begun.put(None)
