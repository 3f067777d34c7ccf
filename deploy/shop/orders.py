"""A service for ``iris run orders:orders``: asks prices, and publishes each order, for the bridge to store."""

import iris

orders = iris.Service("orders")


@orders.request
async def place(request: iris.Request) -> object:
    """Return what an item costs, once its order is stored."""
    item = str(request.payload)
    idempotent = iris.RequestOptions(idempotent=True)
    cost = await request.node.request("prices", item, wait=5, options=idempotent)
    await request.node.publish_confirmed("orders.placed", {"item": item, "pence": cost, "by": request.sender.cluster})
    return cost
