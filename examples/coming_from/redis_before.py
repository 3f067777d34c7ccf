"""With Redis: values, counters and messages are in a server, here at $REDIS_URL."""

import asyncio
import os

import redis.asyncio


async def main() -> None:
    async with redis.asyncio.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
        await client.hset("prices", "tea", "3.5")
        print(await client.hget("prices", "tea"), await client.incrby("visits", 2))
        async with client.pubsub() as orders:
            await orders.psubscribe("orders.*")
            await orders.get_message(timeout=2)  # the subscription has arrived
            await client.publish("orders.created", "7")
            order = await orders.get_message(ignore_subscribe_messages=True, timeout=2)
            print(order["channel"], order["data"])


asyncio.run(main())
