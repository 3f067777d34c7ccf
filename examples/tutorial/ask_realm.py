"""Ask for prices in a realm: the credential says who this program is, and where the realm is found."""

import asyncio

from prices import Prices

import iris.aio


async def main() -> None:
    async with iris.aio.open_node(credential="desk.iris") as node:
        offer = await Prices.client(node, wait=5).look_up("tea")
        print(f"{offer.price}, asked by {node.name}")


asyncio.run(main())
