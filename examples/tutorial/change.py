"""Tell everybody a new price: python change.py tea 4.0"""

import sys

import trio

import iris


async def main(item: str, price: float) -> None:
    async with iris.open_node("desk") as node:
        await node.publish(f"prices.{item}", {"price": price})


trio.run(main, sys.argv[1], float(sys.argv[2]))
