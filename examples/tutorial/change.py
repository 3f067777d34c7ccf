"""Tell everybody a new price: python change.py tea 4.0"""

import asyncio
import sys

import iris.aio


async def main(item: str, price: float) -> None:
    async with iris.aio.open_node("desk") as node:
        await node.publish(f"prices.{item}", {"price": price})


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
