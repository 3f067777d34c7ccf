"""A program for asyncio: it asks for what is due, and publishes a reminder of each a minute later."""

import asyncio

import iris.aio


async def remind(node: iris.aio.Node, name: str) -> None:
    await asyncio.sleep(60)
    await node.publish(f"reminders.{name}", {"late": True})


async def main() -> None:
    async with iris.aio.open_node("reminders") as node, asyncio.TaskGroup() as tasks:
        for name in await node.request("due", None, wait=60):
            tasks.create_task(remind(node, name))
