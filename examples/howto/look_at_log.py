"""Print what the log of a bridge holds from the last hour."""

import asyncio
from datetime import UTC, datetime, timedelta

import iris.aio


async def main() -> None:
    hour = datetime.now(UTC) - timedelta(hours=1)
    async with (
        iris.aio.open_node("desk") as node,
        node.bridge().consume("orders.>", start=hour, until="now") as orders,
    ):
        async for batch in orders:
            for event in batch:
                print(event.topic, event.payload)


asyncio.run(main())
