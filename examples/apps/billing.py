"""A log that is read by groups: each goes on where it was, or is replayed."""

import tempfile
from pathlib import Path

import trio

import iris
from iris.spark_bridge.server.bridge import open_bridge


async def main() -> None:
    async with (
        iris.open_node("bridge") as serving,
        open_bridge(serving, topics=["orders.>"], directory=Path(tempfile.mkdtemp())),
        iris.open_node("desk") as node,
    ):
        async with node.confirming() as confirmed:
            for number in (1, 2, 3):
                await confirmed.publish("orders.new", number)

        async with node.bridge().consume("orders.>", group="billing") as orders:
            async with await anext(orders) as batch:
                print("billing:", [event.payload for event in batch], "and", batch.lag, "behind")

        await node.publish_confirmed("orders.new", 4)
        for name, group, options in (
            ("billing again", "billing", {}),
            ("audit", "audit", {}),
            ("billing, replayed", "billing", {"start": 2, "replay": True}),
        ):
            payloads = []
            async with node.bridge().consume("orders.>", group=group, **options) as orders:
                while not payloads or orders.lag:
                    async with await anext(orders) as batch:
                        payloads += [event.payload for event in batch]
            print(f"{name}:", payloads)


trio.run(main)
