"""Writes orders from a bridge's log into PostgreSQL, each once."""

import json

import psycopg
import trio

import iris

TABLES = """
CREATE TABLE IF NOT EXISTS orders (item TEXT, price DOUBLE PRECISION);
CREATE TABLE IF NOT EXISTS places (shard TEXT PRIMARY KEY, next BIGINT NOT NULL);
"""


def write(database, batch):
    with database.transaction():  # the rows and the place behind them: both or neither
        database.execute("INSERT INTO places VALUES (%s, 0) ON CONFLICT DO NOTHING", (batch.shard,))
        look = "SELECT next FROM places WHERE shard = %s FOR UPDATE"
        (place,) = database.execute(look, (batch.shard,)).fetchone()
        orders = [json.loads(event.payload) for event in batch if event.offset >= place]
        database.cursor().executemany("INSERT INTO orders VALUES (%(item)s, %(price)s)", orders)
        behind = max(place, batch[-1].offset + 1)
        database.execute("UPDATE places SET next = %s WHERE shard = %s", (behind, batch.shard))


async def main():
    with psycopg.connect(autocommit=True) as database:  # where it is: PGHOST, PGDATABASE and so on
        database.execute(TABLES)
        async with iris.open_node("billing") as node, node.bridge().consume("orders.>", group="postgres") as orders:
            async for batch in orders:
                async with batch:  # tells the bridge at its end; a batch of which it was not told comes again
                    await trio.to_thread.run_sync(write, database, batch)
                if not orders.lag:  # leave this out, and it goes on with what arrives
                    break
        print(database.execute("SELECT item, price FROM orders").fetchall())


trio.run(main)
