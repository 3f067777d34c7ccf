import trio

import iris

service = iris.Service("greeters")


@service.request
async def greet(request: iris.Request) -> object:
    return f"hello {request.payload}, from {request.sender.cluster}"


async def main() -> None:
    async with iris.open_node("desk") as node, node.join("greeters", service):
        print(await node.request("greeters", "world"))


trio.run(main)
