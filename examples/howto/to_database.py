"""Spark writes each batch of orders into a database, once."""

import sqlite3

from pyspark.sql import DataFrame, SparkSession

import iris.spark_bridge

database = sqlite3.connect("orders.db", check_same_thread=False)  # Spark calls write in a thread of its own
database.execute("CREATE TABLE IF NOT EXISTS orders (item TEXT, price REAL)")
database.execute("CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY)")


def write(batch: DataFrame, number: int) -> None:
    rows = [(row.item, row.price) for row in batch.collect()]
    with database:  # one transaction: both or neither
        if database.execute("INSERT INTO batches VALUES (?) ON CONFLICT DO NOTHING", (number,)).rowcount:
            database.executemany("INSERT INTO orders VALUES (?, ?)", rows)


spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE").select("item", "price")
for checkpoint in ("first", "repeated"):  # another checkpoint: the same batch comes with the same number again
    query = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
print(f"after a repeat: {database.execute('SELECT * FROM orders').fetchall()}")
