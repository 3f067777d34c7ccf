import asyncio

import iris.aio

service = iris.aio.Service("greeters")


@service.request
async def greet(request: iris.aio.Request) -> object:
    return f"hello {request.payload}, from {request.sender.cluster}"


async def main() -> None:
    async with iris.aio.open_node("desk") as node, node.join("greeters", service):
        print(await node.request("greeters", "world"))


asyncio.run(main())
