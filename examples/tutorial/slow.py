"""A service that takes its time, and one that asks it: the deadline goes along."""

import trio

import iris

kitchen = iris.Service("kitchen")
waiter = iris.Service("waiter")
stopped = trio.Event()


@kitchen.request
async def cook(request: iris.Request) -> object:
    try:
        await trio.sleep(60)
    finally:
        print("the kitchen stops")
        stopped.set()


async def main() -> None:
    async with iris.open_node() as node, node.join("kitchen", kitchen), node.join("waiter", waiter):

        @waiter.request
        async def order(request: iris.Request) -> object:
            return await node.request("kitchen", request.payload)  # with the time that is left

        await node.wait_for("waiter")
        try:
            await node.request("waiter", "soup", timeout=0.5)
        except iris.RequestTimeout:
            await stopped.wait()
            print("the guest left after 0.5 s")


trio.run(main)
