"""With Iris: a bridge stores the topics, and each group reads them for itself.

It needs a bridge:  iris bridge --topic 'orders.>' --data log
"""

import asyncio

import iris.aio


async def read(node: iris.aio.Node, group: str) -> None:
    numbers: list[object] = []
    async with node.bridge().consume("orders.>", group=group, until="now") as orders:
        async for batch in orders:
            async with batch:  # commits it
                numbers += [event.payload for event in batch]
    print(group, *numbers)


async def main() -> None:
    async with iris.aio.open_node("shop") as node:
        await node.wait_for("bridge")
        async with node.confirming() as orders:  # ends when all are on the disk
            for number in range(3):
                await orders.publish("orders.created", number, key="ann")
        for group in ("billing", "audit"):
            await read(node, group)


asyncio.run(main())
