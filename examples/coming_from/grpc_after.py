"""With Iris: the class says what is called, the cluster's name says where.  Links are encrypted."""

import asyncio
from dataclasses import dataclass

import iris
import iris.aio


@dataclass
class Offer:
    item: str
    price: float


class Quotes(iris.Service, cluster="quotes"):
    @iris.operation
    async def look_up(self, item: str, count: int = 1) -> Offer:
        return Offer(item, 2.5 * count)


async def main() -> None:
    async with iris.aio.open_node("server") as server, iris.aio.open_node("client") as client:
        async with server.join("quotes", Quotes()):
            offer = await Quotes.client(client, timeout=2, wait=2).look_up("tea", count=2)
            print(offer.item, offer.price)


asyncio.run(main())
