"""Do the jobs of a queue, one after another; start it as often as you want workers."""

import asyncio

import iris.aio


async def shrink(picture: str) -> None:
    if picture == "c.png":
        raise OSError("disk full")
    print(f"{picture} is small now")


async def main() -> None:
    async with (
        iris.aio.open_node("workers") as node,
        node.bridge().queue("jobs", attempts=3, backoff=0.1) as jobs,
    ):
        async for job in jobs.receive(limit=4):
            async with job:
                await shrink(job.payload)


asyncio.run(main())
