"""Spark reads what a bridge has stored: in a batch, and in a stream that goes on where it was."""

# [session]
from pyspark.sql import SparkSession

import iris.spark_bridge

spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
# [/session]
# A batch has what the log has now.
table = spark.read.format("iris").option("subscribe", "orders.>").load()
for row in table.selectExpr("topic", "cast(value AS STRING) AS text").orderBy("text").collect():
    print(row.topic, row.text)

# [columns]
orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE")
# [/columns]
# A stream that is started again goes on where its checkpoint ends.
query = orders.writeStream.format("parquet").option("checkpointLocation", "checkpoint").trigger(availableNow=True)
query.start("orders").awaitTermination()
for row in spark.read.parquet("orders").orderBy("item").collect():
    print(row.item, row.price)
