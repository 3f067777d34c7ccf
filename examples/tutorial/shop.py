"""A member of prices that follows the events: a changed price reaches all members."""

import trio
from prices import Prices

import iris


async def serve(node: iris.Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    prices = Prices()
    async with node.join("prices", prices), node.subscribe("prices.*") as changes:
        task_status.started()
        async for change in changes:
            item = change.topic.removeprefix("prices.")
            prices.prices[item] = change.payload
            print(f"{item} costs {change.payload}", flush=True)


async def main() -> None:
    async with iris.open_node("prices") as node:
        await serve(node)


if __name__ == "__main__":
    trio.run(main)
