"""Have the document of the cluster prices open until Ctrl-C.

Run it: python examples/howto/keep_prices.py
"""

import asyncio

import iris.aio


async def main() -> None:
    async with iris.aio.open_node("prices") as node, node.state("prices") as state:
        state["fx.usd"] = 1.0
        print("the document is open")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
