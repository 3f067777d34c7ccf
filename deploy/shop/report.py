"""A Spark query over what the bridge has stored: orders and takings by item, printed with each batch that has news."""

import os

from pyspark.sql import SparkSession

import iris.spark_bridge

ITEM = "item STRING, pence INT"

spark = iris.spark_bridge.configure(SparkSession.builder.master("local[1]").appName("report")).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>")
for option, variable in (("credential", "IRIS_CREDENTIAL"), ("seeds", "IRIS_SEEDS")):
    if os.environ.get(variable):
        events = events.option(option, ",".join(os.environ[variable].split()))
placed = events.load().selectExpr(f"from_json(cast(value AS STRING), '{ITEM}') AS placed").select("placed.*")
takings = placed.groupBy("item").agg({"*": "count", "pence": "sum"})
query = takings.writeStream.outputMode("complete").format("console").start()
query.awaitTermination()
