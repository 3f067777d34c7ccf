"""Three sites in a row: tokyo asks paris by way of berlin, which cannot read it.

Run it: python examples/federation.py
"""

from contextlib import AsyncExitStack

import trio

import iris
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy

databases = iris.Service("databases")


@databases.request
async def query(request: iris.Request) -> object:
    return f"{request.payload} from {request.sender.cluster}, answered in paris"


async def main() -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        berlin = await enter(iris.open_node("gateways", site="berlin"))
        middle = await enter(open_gateway(berlin, listen=["tcp://127.0.0.1:0"]))
        for site, exports in (("paris", ("databases",)), ("tokyo", ())):
            node = await enter(iris.open_node("gateways", site=site))
            policy = Policy(exports=exports)
            await enter(open_gateway(node, listen=["tcp://127.0.0.1:0"], peers=middle.addresses, policy=policy))
        server = await enter(iris.open_node("databases", site="paris"))
        await enter(server.join("databases", databases))
        shop = await enter(iris.open_node("shop", site="tokyo"))
        await shop.wait_for("databases", timeout=30)
        print(await shop.request("databases", "hello"))


if __name__ == "__main__":
    trio.run(main)
