"""A program that serves orders, asks prices, and publishes each order, for the bridge to store."""

import os
import signal

import trio

import iris


async def main() -> None:
    """Serve until SIGTERM; then finish what has begun."""
    seeds = os.environ.get("IRIS_SEEDS", "").split()
    listen = os.environ.get("IRIS_LISTEN", "").split()
    credential = os.environ.get("IRIS_CREDENTIAL")
    async with iris.open_node("orders", credential=credential, seeds=seeds, listen=listen) as node:
        orders = iris.Service("orders")

        @orders.request
        async def place(request: iris.Request) -> object:
            item = str(request.payload)
            cost = await node.request("prices", item, wait=5, options=iris.RequestOptions(idempotent=True))
            await node.publish_confirmed("orders.placed", {"item": item, "pence": cost, "by": request.sender.cluster})
            return cost

        async with node.join("orders", orders):
            print(f"{node.id} serves orders", flush=True)
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                await signals.__anext__()


trio.run(main)
