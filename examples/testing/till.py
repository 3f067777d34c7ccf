"""A till with a mistake: an order whose request is repeated is charged again."""

import trio

import iris

charges: list[str] = []
"""What the bank has done; it goes on when a member crashes."""

till = iris.Service("till")


@till.request
async def charge(request: iris.Request) -> str:
    await trio.sleep(0.05)  # the bank
    charges.append(request.payload)
    return "paid"


async def serve() -> None:
    async with iris.open_node("till") as node, node.join("till", till):
        await trio.sleep_forever()
