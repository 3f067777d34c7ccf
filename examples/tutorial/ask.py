"""Ask for prices."""

import asyncio

from prices import Prices

import iris.aio


async def main() -> None:
    async with iris.aio.open_node("desk") as node:
        prices = Prices.client(node, wait=5)
        offer = await prices.look_up("tea")
        print(offer.price)
        offer = await prices.look_up("tea", count=3)
        print(offer.price)


asyncio.run(main())
