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
            match change.payload:
                case {"price": float(price)}:
                    prices.prices[item] = price
                    print(f"{item} costs {price}", flush=True)
                case other:
                    print(f"{change.topic}: {other!r} is no price", flush=True)


async def main() -> None:
    async with iris.open_node("prices") as node:
        await serve(node)


if __name__ == "__main__":
    trio.run(main)
