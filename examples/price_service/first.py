"""The smallest service that is written with asyncio: iris run first:prices"""

import iris.aio

prices = iris.aio.Service("prices")


@prices.request
async def price(item: str) -> float:
    return {"tea": 3.5, "milk": 1.2}[item]
