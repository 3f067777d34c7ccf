"""Spark reads the prices that the bridge has stored."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import iris.spark_bridge

spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
changes = spark.readStream.format("iris").option("subscribe", "prices.>").load()
prices = changes.select(F.col("topic"), F.col("value").cast("string").cast("double").alias("price"))
query = prices.writeStream.format("memory").queryName("prices").trigger(availableNow=True).start()
query.awaitTermination()
top = spark.table("prices").groupBy("topic").agg(F.count("*").alias("changes"), F.max("price").alias("top"))
for row in top.orderBy("topic").collect():
    print(f"{row.topic}: {row.changes} changes, at most {row.top}")
