"""Ask for prices."""

import trio
from prices import Prices

import iris


async def main() -> None:
    async with iris.open_node("desk") as node:
        prices = Prices.client(node, wait=5)
        offer = await prices.look_up("tea")
        print(offer.price)
        offer = await prices.look_up("tea", count=3)
        print(offer.price)


trio.run(main)
