"""Ask 200 times, and kill a member after half of that."""

import asyncio
import os
import signal

from prices import Prices

import iris
import iris.aio


async def main() -> None:
    async with iris.aio.open_node("desk") as node:
        await node.wait_for("prices", members=2)
        prices = Prices.client(node, options=iris.RequestOptions(idempotent=True))
        answered = set[int]()
        for number in range(200):
            offer = await prices.look_up("tea")
            answered.add(offer.seller)
            if number == 100:
                os.kill(offer.seller, signal.SIGKILL)
                print("member 1 of 2 is killed")
        print(f"200 replies from {len(answered)} members, no error")


asyncio.run(main())
