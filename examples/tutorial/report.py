"""Spark reads the prices that the bridge has stored."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import iris.spark_bridge

spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "prices.>").load()
changes = iris.spark_bridge.parse(events, "price DOUBLE")
query = changes.writeStream.format("memory").queryName("prices").trigger(availableNow=True).start()
query.awaitTermination()
top = spark.table("prices").groupBy("_topic").agg(F.count("*").alias("changes"), F.max("price").alias("top"))
for row in top.orderBy("_topic").collect():
    print(f"{row._topic}: {row.changes} changes, at most {row.top}")
