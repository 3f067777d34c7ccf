"""Publish events, and receive those of the topics that match a pattern.

Run it: python examples/pubsub.py
Or receive in one terminal and publish from another:
    iris sub 'orders.>'
    iris pub orders.created '{"id": 7}' --json-payload
"""

import asyncio

import iris.aio

ORDERS = 3


async def main() -> None:
    async with (
        iris.aio.open_node("shop") as shop,
        iris.aio.open_node("stock") as stock,
        stock.subscribe("orders.>", overflow="wait") as events,  # from here on every node knows of it
    ):
        for number in range(ORDERS):
            await shop.publish("orders.created", {"id": number})
        for _ in range(ORDERS):
            event = await anext(events)
            print(f"{event.topic} {event.payload} from {event.sender.cluster}, {event.missed} missed")


if __name__ == "__main__":
    asyncio.run(main())
