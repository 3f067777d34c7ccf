"""Orders by five minutes of their own time.  What comes more than ten minutes late is left out, and counted."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import iris.spark_bridge

builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", 1)
spark = iris.spark_bridge.configure(builder).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
orders = iris.spark_bridge.parse(events, "item STRING, at TIMESTAMP")
counts = orders.withWatermark("at", "10 minutes").groupBy(F.window("at", "5 minutes")).count()
rows = counts.select(F.date_format("window.start", "HH:mm").alias("start"), "count")


def show(batch: DataFrame, number: int) -> None:
    for row in batch.collect():
        print(f"{row.start}: {row['count']} orders")


query = rows.writeStream.foreachBatch(show).option("checkpointLocation", "counts").trigger(availableNow=True).start()
query.awaitTermination()
late = sum(state["numRowsDroppedByWatermark"] for done in query.recentProgress for state in done["stateOperators"])
print(f"{late} too late")
