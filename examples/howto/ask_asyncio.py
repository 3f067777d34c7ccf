"""Ask a service from a program of asyncio."""

import asyncio

import iris.aio


async def main() -> None:
    async with iris.aio.open_node() as node:
        print(await node.request("greeters", "asyncio", wait=5))


if __name__ == "__main__":
    asyncio.run(main())
