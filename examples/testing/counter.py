"""A counter with a mistake: two requests at one time can both read the old count."""

import trio

import iris


class Counter(iris.Service):
    """Counts what it is told."""

    def __init__(self) -> None:
        super().__init__("counter")
        self.count = 0

    @iris.operation
    async def add(self, number: int) -> int:
        count = self.count
        await trio.sleep(0.002)  # a database, say
        self.count = count + number
        return self.count

    @iris.operation
    async def read(self) -> int:
        return self.count


async def serve() -> None:
    async with iris.open_node("counter") as node, node.join("counter", Counter()):
        await trio.sleep_forever()
