"""What fits goes to a table, and what does not to a topic of dead letters, each once."""

# [letters]
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import iris.spark_bridge

spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").option("includeShard", "true").load()
orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE")
publish_bad = iris.spark_bridge.dead_letters("bad.orders")
table = str(Path("orders").resolve())


def take(batch: DataFrame, number: int) -> None:
    batch.where("_corrupt_record IS NULL").select("item", "price").write.mode("append").parquet(table)
    publish_bad(batch, number)


query = orders.writeStream.foreachBatch(take).trigger(availableNow=True).start()
# [/letters]
query.awaitTermination()
for row in spark.read.parquet(table).orderBy("item").collect():
    print(row.item, row.price)
for row in spark.read.format("iris").option("subscribe", "bad.orders.>").load().collect():
    print(bytes(row.value).decode())
