"""A member of prices that follows the events: a changed price reaches all members."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from prices import Prices

import iris.aio


class Shop(Prices):
    @contextlib.asynccontextmanager
    async def lifespan(self, node: iris.aio.Node) -> AsyncIterator[None]:
        async with node.subscribe("prices.*") as changes, asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self.follow(changes))
            yield
            following.cancel()

    async def follow(self, changes: iris.aio.Subscription) -> None:
        async for change in changes:
            item = change.topic.removeprefix("prices.")
            match change.payload:
                case {"price": float(price)}:
                    self.prices[item] = price
                    print(f"{item} costs {price}", flush=True)
                case other:
                    print(f"{change.topic}: {other!r} is no price", flush=True)


shop = Shop()
