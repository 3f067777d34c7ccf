"""Serve the cluster checkout, which a value of the document flags pauses, until Ctrl-C.

Run it: python examples/howto/checkout.py
"""

import trio

import iris

checkout = iris.Service("checkout", paused_by="flags.checkout")


@checkout.request
async def pay(request: iris.Request) -> object:
    return "paid"


async def main() -> None:
    async with iris.open_node("checkout") as node, node.state("flags"), node.join("checkout", checkout):
        print("serves checkout")
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
