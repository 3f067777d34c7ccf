"""Spark reads what a bridge has stored: three ways to open the stream, and what is in it."""

# [session]
from pyspark.sql import SparkSession

import iris.spark_bridge

spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
# [/session]
events.writeStream.format("memory").queryName("events").trigger(availableNow=True).start().awaitTermination()
for row in spark.sql("SELECT topic, cast(value AS STRING) AS text FROM events ORDER BY text").collect():
    print(row.topic, row.text)

# [columns]
orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE")
# [/columns]
orders.writeStream.format("memory").queryName("orders").trigger(availableNow=True).start().awaitTermination()
for row in spark.sql("SELECT item, price FROM orders ORDER BY item").collect():
    print(row.item, row.price)
