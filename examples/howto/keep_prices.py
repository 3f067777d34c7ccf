"""Have the document of the cluster prices open until Ctrl-C.

Run it: python examples/howto/keep_prices.py
"""

import trio

import iris


async def main() -> None:
    async with iris.open_node("prices") as node, node.state("prices") as state:
        state["fx.usd"] = 1.0
        print("the document is open")
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
