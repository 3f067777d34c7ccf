"""With Iris: a cluster is asked by its name, a topic is followed by its name.  Nobody knows an address."""

import asyncio

import iris
import iris.aio

greeters = iris.Service("greeters")


@greeters.request
async def greet(request: iris.Request) -> object:
    return b"hello " + request.payload


async def main() -> None:
    async with iris.aio.open_node("server") as server, iris.aio.open_node("client") as client:
        async with server.join("greeters", greeters), server.subscribe("orders.>") as orders:
            reply = await client.request("greeters", b"world", timeout=2, wait=2)
            print(reply.decode())
            await client.publish("orders.created", b"7")
            order = await anext(orders)
            print(order.topic, order.payload.decode())


asyncio.run(main())
