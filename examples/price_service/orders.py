"""Orders: a service with a database, which asks another service: iris run orders:orders

In another terminal, in this folder: iris run first:prices
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator

import iris
import iris.aio


@contextlib.asynccontextmanager
async def opened(node: iris.aio.Node) -> AsyncIterator[sqlite3.Connection]:
    """Have the database open, and the prices there, from before this member is asked until it has drained."""
    await node.wait_for("prices", timeout=60)
    with contextlib.closing(sqlite3.connect("orders.db")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, item TEXT, price REAL)")
        yield database


orders = iris.aio.Service("orders", lifespan=opened)
AGAIN = iris.RequestOptions(idempotent=True)  # to look up a price twice does no harm


@orders.request
async def order(number: str, item: str, node: iris.aio.Node, database: iris.FromLifespan[sqlite3.Connection]) -> float:
    """Book an order, once, at the price of now; return the price at which it is booked."""
    price = await node.request("prices", item, reply=float, options=AGAIN)
    with database:  # one transaction
        database.execute("INSERT INTO orders VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (number, item, price))
    (booked,) = database.execute("SELECT price FROM orders WHERE number = ?", (number,)).fetchone()
    return float(booked)
