"""With NATS: a queue group answers, a subscriber follows.  It needs nats-server, here at $NATS_URL."""

import asyncio
import os

import nats
from nats.aio.msg import Msg


async def greet(message: Msg) -> None:
    await message.respond(b"hello " + message.data)


async def main() -> None:
    url = os.environ["NATS_URL"]
    async with await nats.connect(url) as client:
        await client.subscribe("greeters", queue="greeters", cb=greet)
        orders = await client.subscribe("orders.>")
        reply = await client.request("greeters", b"world", timeout=2)
        print(reply.data.decode())
        await client.publish("orders.created", b"7")
        order = await orders.next_msg(timeout=2)
        print(order.subject, order.data.decode())


asyncio.run(main())
