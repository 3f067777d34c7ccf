"""Three sites: paris asks tokyo, which is behind NAT and only dials out, by way of berlin, which cannot read it.

Run it: python examples/federation.py
"""

from contextlib import AsyncExitStack

import trio

import iris
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy

WEB = "ws://127.0.0.1:0/gateway"
databases = iris.Service("databases")


@databases.request
async def query(request: iris.Request) -> object:
    return f"{request.payload} from {request.sender.cluster}, answered in tokyo"


async def main() -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        berlin = await enter(open_gateway(await enter(iris.open_node("gateways", site="berlin")), listen=[WEB]))
        for site, listen, exports in (("paris", (WEB,), ()), ("tokyo", (), ("databases",))):
            node = await enter(iris.open_node("gateways", site=site))
            policy = Policy(exports=exports)
            await enter(open_gateway(node, listen=listen, peers=berlin.addresses, policy=policy))
        server = await enter(iris.open_node("databases", site="tokyo"))
        await enter(server.join("databases", databases))
        shop = await enter(iris.open_node("shop", site="paris"))
        await shop.wait_for("databases", timeout=30)
        print(await shop.request("databases", "hello"))


if __name__ == "__main__":
    trio.run(main)
