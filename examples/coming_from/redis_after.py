"""With Iris: values and counters are in a document of which each member has a copy, messages go to who subscribes."""

import asyncio

import iris.aio


async def main() -> None:
    async with iris.aio.open_node("shop") as node, node.state("prices") as prices, node.subscribe("orders.*") as orders:
        prices["tea"] = 3.5
        prices.counter("visits").add(2)
        print(prices["tea"], int(prices.counter("visits")))
        await node.publish("orders.created", 7)
        order = await anext(orders)
        print(order.topic, order.payload)


asyncio.run(main())
