"""Spark writes each batch of orders into an Iceberg table, once."""

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

import iris.spark_bridge

lake = Path("lake").resolve()
lake.mkdir(exist_ok=True)
catalog = SqlCatalog("lake", uri=f"sqlite:///{lake}/catalog.db", warehouse=lake.as_uri())  # or your REST catalog
catalog.create_namespace_if_not_exists("shop")


def write(batch: DataFrame, number: int) -> None:
    rows = batch.toArrow()
    table = catalog.create_table_if_not_exists("shop.orders", schema=rows.schema)
    written = {snapshot.summary["orders-1"] for snapshot in table.snapshots() if snapshot.summary}
    if str(number) not in written:  # the rows and their number are one snapshot
        table.append(rows, snapshot_properties={"orders-1": str(number)})


spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE").select("item", "price")
for checkpoint in ("first", "repeated"):  # another checkpoint: the same batch comes with the same number again
    query = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
print(f"after a repeat: {catalog.load_table('shop.orders').scan().to_arrow().to_pylist()}")
