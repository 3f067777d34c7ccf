"""A chat with presence: everybody in the room is a member of a cluster, and what they say is an event.

Run it: python examples/apps/chat.py
"""

import trio

import iris

room = iris.Service("chat")


class Screen:
    """What one person sees."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.news = trio.Condition()

    async def show(self, line: str) -> None:
        print(line)
        async with self.news:
            self.lines.append(line)
            self.news.notify_all()

    async def wait_for(self, line: str) -> None:
        async with self.news:
            while line not in self.lines:
                await self.news.wait()


async def listen(node: iris.Node, screen: Screen, task_status: trio.TaskStatus[None]) -> None:
    async with node.subscribe("chat.*", overflow="wait") as lines:
        task_status.started()
        async for line in lines:
            await screen.show(f"{line.topic.removeprefix('chat.')}: {line.payload}")


async def see(node: iris.Node, screen: Screen) -> None:
    async with node.watch("chat") as changes:
        async for change in changes:
            if change.kind in ("joined", "left", "lost"):
                await screen.show(f"* {change.member.speaks_for} {change.kind}")


async def main() -> None:
    screen = Screen()
    async with iris.open_node("ann") as ann, ann.join("chat", room), trio.open_nursery() as nursery:
        await nursery.start(listen, ann, screen)
        nursery.start_soon(see, ann, screen)
        async with iris.open_node("bob") as bob, bob.join("chat", room):
            await screen.wait_for("* bob joined")
            await bob.publish("chat.bob", "is anybody here?")
            await screen.wait_for("bob: is anybody here?")
            await ann.publish("chat.ann", "two of us")
            await screen.wait_for("ann: two of us")
        await screen.wait_for("* bob left")
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
