"""With Iris: a job stays in a queue on a bridge's disk until a worker has done it.

It needs a bridge:  iris bridge --topic thumbnails --data log --keep-unread
"""

import asyncio
import logging

import iris.aio


async def shrink(picture: str, attempt: int) -> None:
    if picture == "b.png" and attempt == 1:
        print(f"{picture}: the disk is full")
        raise OSError("the disk is full")
    print(f"{picture} is small now")


async def main() -> None:
    async with iris.aio.open_node("workers") as node:
        await node.wait_for("bridge")
        async with node.bridge().queue("thumbnails", attempts=3, backoff=0.1) as thumbnails:
            for picture in ("a.png", "b.png"):
                await thumbnails.put(picture)  # returns when it is on the disk
            taken = thumbnails.receive(limit=1)
            for _ in range(3):
                async with await anext(taken) as job:  # the end of the block is the ack, an error is not
                    await shrink(job.payload, job.attempt)


logging.basicConfig(level=logging.CRITICAL)  # failed attempts are logged, with their tracebacks
asyncio.run(main())
