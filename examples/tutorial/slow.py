"""A service that takes its time, and one that asks it: the deadline goes along."""

import asyncio

import iris
import iris.aio

kitchen = iris.aio.Service("kitchen")
waiter = iris.aio.Service("waiter")
stopped = asyncio.Event()


@kitchen.request
async def cook(request: iris.aio.Request) -> object:
    try:
        await asyncio.sleep(60)
    finally:
        print("the kitchen stops")
        stopped.set()


@waiter.request
async def order(request: iris.aio.Request) -> object:
    return await request.node.request("kitchen", request.payload)  # with the time that is left


async def main() -> None:
    async with iris.aio.open_node() as node, node.join("kitchen", kitchen), node.join("waiter", waiter):
        await node.wait_for("waiter")
        try:
            await node.request("waiter", "soup", timeout=0.5)
        except iris.RequestTimeout:
            await stopped.wait()
            print("the guest left after 0.5 s")


asyncio.run(main())
