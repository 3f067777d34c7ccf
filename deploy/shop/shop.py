"""A service for ``iris run shop:prices``."""

import iris

prices = iris.Service("prices")

_PENCE = {"tea": 295, "milk": 120, "bread": 180}


@prices.request
async def price(item: str) -> int:
    """Return what one of an item costs, in pence."""
    if item not in _PENCE:
        raise iris.RemoteError("no_such_item", item)
    return _PENCE[item]
