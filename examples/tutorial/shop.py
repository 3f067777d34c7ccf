"""A member of prices that follows the events: a changed price reaches all members."""

import contextlib
from collections.abc import AsyncIterator

import trio
from prices import Prices

import iris


class Shop(Prices):
    @contextlib.asynccontextmanager
    async def lifespan(self, node: iris.Node) -> AsyncIterator[None]:
        async with node.subscribe("prices.*") as changes, trio.open_nursery() as nursery:
            nursery.start_soon(self.follow, changes)
            yield
            nursery.cancel_scope.cancel()

    async def follow(self, changes: iris.Subscription) -> None:
        async for change in changes:
            item = change.topic.removeprefix("prices.")
            match change.payload:
                case {"price": float(price)}:
                    self.prices[item] = price
                    print(f"{item} costs {price}", flush=True)
                case other:
                    print(f"{change.topic}: {other!r} is no price", flush=True)


shop = Shop()
