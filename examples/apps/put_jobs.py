"""Put jobs into a queue, and go: each is on the bridge's disk."""

import asyncio

import iris.aio


async def main() -> None:
    async with iris.aio.open_node("site") as node, node.bridge().queue("jobs") as jobs:
        for picture in ("a.png", "b.png", "c.png"):
            await jobs.put(picture)


asyncio.run(main())
