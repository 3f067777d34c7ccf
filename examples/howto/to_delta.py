"""Spark writes each batch of orders into a Delta table, once."""

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession

import iris.spark_bridge

QUERY = "orders-1"  # the name of this query in the table, for ever


def write(batch: DataFrame, number: int) -> None:
    last = DeltaTable("orders").transaction_version(QUERY) if DeltaTable.is_deltatable("orders") else None
    if last is None or number > last:  # the rows and their number are one commit
        note = CommitProperties(app_transactions=[Transaction(QUERY, number)])
        write_deltalake("orders", batch.toArrow(), mode="append", commit_properties=note)


spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE").select("item", "price")
for checkpoint in ("first", "repeated"):  # another checkpoint: the same batch comes with the same number again
    query = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
found = QueryBuilder().register("orders", DeltaTable("orders")).execute("SELECT * FROM orders").read_all()
print(f"after a repeat: {pa.table(found).to_pylist()}")
