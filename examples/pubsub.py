"""Publish events, and receive those of the topics that match a pattern.

Run it: python examples/pubsub.py
Or receive in one terminal and publish from another:
    iris sub 'orders.>'
    iris pub orders.created '{"id": 7}' --json-payload
"""

import trio

import iris

ORDERS = 3


async def follow(node: iris.Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    async with node.subscribe("orders.>", overflow="wait") as events:
        task_status.started()  # from here on every node knows of this subscription
        for _ in range(ORDERS):
            event = await anext(events)
            print(f"{event.topic} {event.payload} from {event.sender.cluster}, {event.missed} missed")


async def main() -> None:
    async with iris.open_node("shop") as shop, iris.open_node("stock") as stock, trio.open_nursery() as nursery:
        await nursery.start(follow, stock)
        for number in range(ORDERS):
            await shop.publish("orders.created", {"id": number})


if __name__ == "__main__":
    trio.run(main)
