"""A chat with presence: everybody in the room is a member of a cluster, and what they say is an event.

Run it: python examples/apps/chat.py
"""

import asyncio

import iris.aio

room = iris.aio.Service("chat")


class Screen:
    """What one person sees."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.news = asyncio.Condition()

    async def show(self, line: str) -> None:
        print(line)
        async with self.news:
            self.lines.append(line)
            self.news.notify_all()

    async def wait_for(self, line: str) -> None:
        async with self.news:
            while line not in self.lines:
                await self.news.wait()


async def listen(lines: iris.aio.Subscription, screen: Screen) -> None:
    async for line in lines:
        await screen.show(f"{line.topic.removeprefix('chat.')}: {line.payload}")


async def see(node: iris.aio.Node, screen: Screen) -> None:
    async with node.watch("chat") as changes:
        async for change in changes:
            if change.kind in ("joined", "left", "lost"):
                await screen.show(f"* {change.member.speaks_for} {change.kind}")


async def main() -> None:
    screen = Screen()
    async with (
        iris.aio.open_node("ann") as ann,
        ann.join("chat", room),
        ann.subscribe("chat.*", overflow="wait") as lines,
        asyncio.TaskGroup() as tasks,
    ):
        watching = [tasks.create_task(listen(lines, screen)), tasks.create_task(see(ann, screen))]
        async with iris.aio.open_node("bob") as bob, bob.join("chat", room):
            await screen.wait_for("* bob joined")
            await bob.publish("chat.bob", "is anybody here?")
            await screen.wait_for("bob: is anybody here?")
            await ann.publish("chat.ann", "two of us")
            await screen.wait_for("ann: two of us")
        await screen.wait_for("* bob left")
        for task in watching:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
