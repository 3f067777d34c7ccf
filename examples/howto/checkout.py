"""Serve the cluster checkout, which a value of the document flags pauses, until Ctrl-C.

Run it: python examples/howto/checkout.py
"""

import asyncio

import iris.aio

checkout = iris.aio.Service("checkout", paused_by="flags.checkout")


@checkout.request
async def pay(request: iris.aio.Request) -> object:
    return "paid"


async def main() -> None:
    async with iris.aio.open_node("checkout") as node, node.state("flags"), node.join("checkout", checkout):
        print("serves checkout")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
