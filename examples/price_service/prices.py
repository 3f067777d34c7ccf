"""Prices that change while they are served: iris run prices:prices prices:quotes

In another terminal, in this folder: uvicorn web:app
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import iris
import iris.aio


@dataclasses.dataclass
class Change:
    item: str
    price: float


class Book:
    """The prices as this member knows them."""

    def __init__(self) -> None:
        self.prices = {"tea": 3.5, "milk": 1.2}

    async def follow(self, changes: iris.aio.Subscription) -> None:
        async for event in changes:
            change = Change(**event.payload)
            self.prices[change.item] = change.price


@contextlib.asynccontextmanager
async def book_opened(node: iris.aio.Node) -> AsyncIterator[Book]:
    """Keep a book that follows what any member publishes, from before this member is asked until it has drained."""
    book = Book()
    async with node.subscribe("prices.changed") as changes:
        following = asyncio.create_task(book.follow(changes))
        try:
            yield book
        finally:
            following.cancel()


prices = iris.aio.Service("prices", lifespan=book_opened)


@prices.request
async def price(item: str, book: iris.FromLifespan[Book]) -> float:
    """Return what one of an item costs."""
    if item not in book.prices:
        raise iris.RemoteError("unknown_item", f"we do not sell {item}")
    return book.prices[item]


@prices.request("change")
async def change(changed: Change, node: iris.aio.Node) -> None:
    """Change a price at every member."""
    await node.publish("prices.changed", changed)


quotes = iris.aio.Service("quotes")


@quotes.request
async def quote(item: str, count: int, node: iris.aio.Node) -> float:
    """Return what so many of an item cost; ten or more are cheaper by a tenth."""
    each: float = await node.request("prices", item, reply=float, options=iris.RequestOptions(idempotent=True))
    return round(count * each * (0.9 if count >= 10 else 1), 2)
