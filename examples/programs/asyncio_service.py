"""A service and its client, written with asyncio.

Run it: python examples/programs/asyncio_service.py
"""

import asyncio

import iris.aio

quotes = iris.aio.Service("quotes")


@quotes.request
async def look_up(request: iris.aio.Request) -> object:
    await asyncio.sleep(0.1)  # a database, say
    return {"item": request.payload, "price": 3}


async def main() -> None:
    async with iris.aio.open_node("shop") as node, node.join("quotes", quotes):
        async with asyncio.timeout(2):
            print(await asyncio.gather(*(node.request("quotes", item) for item in ("tea", "milk"))))


asyncio.run(main())
