"""How late flights leave, by airport and three hours: a windowed mean with a watermark.

Run it: python examples/spark/delays.py
"""

from __future__ import annotations

from pathlib import Path

from airport import FLIGHT, open_bridge, open_spark, publish, read_stream, read_table
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

ROWS = 5000


def mean_delays(flights: DataFrame) -> DataFrame:
    """Mean delay in minutes; a window is told once, when no flight can come that still belongs to it."""
    return (
        flights.withWatermark("time_hour", "6 hours")
        .groupBy(F.window("time_hour", "3 hours"), "origin")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay"))
        .select(F.col("window.start").alias("start"), "origin", "flights", "mean_delay")
    )


def run(spark: SparkSession, directory: Path, rows: int = ROWS) -> list[Row]:
    """Publish flights, let Spark read what is there, and return the windows that it told."""
    publish("flights", read_table("flights.csv.zip", rows), FLIGHT)
    query = (
        mean_delays(read_stream(spark, "flights", FLIGHT))
        .writeStream.format("memory")
        .queryName("delays")
        .option("checkpointLocation", str(directory / "delays"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("delays").orderBy("start", "origin").collect()


if __name__ == "__main__":
    with open_bridge() as directory:
        for row in run(open_spark(), directory):
            print(f"{row.start} {row.origin}: {row.flights} flights, {row.mean_delay:.1f} minutes late")
