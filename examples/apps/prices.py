"""Live prices: a display that starts late shows the last price at once, and then every change.

Run it: python examples/apps/prices.py
"""

import asyncio

import iris.aio


async def main() -> None:
    async with iris.aio.open_node("exchange") as exchange, iris.aio.open_node("display") as display:
        for item, price in (("tea", 3.5), ("milk", 1.2), ("tea", 3.6)):
            await exchange.retain(f"prices.{item}", price)
        async with display.subscribe("prices.*") as prices:
            last = [await anext(prices) for _ in range(2)]
            for event in sorted(last, key=lambda event: event.topic):
                print(f"{event.topic} {event.payload}, retained: {event.retained}")
            await exchange.retain("prices.tea", 3.7)
            event = await anext(prices)
            print(f"{event.topic} {event.payload}, retained: {event.retained}")


if __name__ == "__main__":
    asyncio.run(main())
