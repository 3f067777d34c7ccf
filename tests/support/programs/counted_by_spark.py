"""A query of Spark over a bridge's log: ``python -m tests.support.programs.counted_by_spark CHECKPOINT``.

Reads what there is, with the checkpoint of a run before, and prints the values that are new as a JSON list.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

import iris.spark_bridge


def main(checkpoint: str) -> None:
    """Read."""
    found: list[str] = []

    def collect(batch: DataFrame, _number: int) -> None:
        found.extend(row["value"] for row in batch.selectExpr("cast(value AS STRING) AS value").collect())

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = iris.spark_bridge.configure(builder).getOrCreate()
    events = spark.readStream.format("iris").option("subscribe", "orders.>").option("startingOffsets", "earliest")
    writer = events.load().writeStream.option("checkpointLocation", checkpoint).foreachBatch(collect)
    writer.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps(found))
    print(iris.__file__, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
