"""The program of the first tries: copies topic ``in`` to topic ``out``, as far as it goes now.

``spark-submit ... submitted.py CHECKPOINT``: as a user would write it, on whatever cluster it is submitted to.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from iris import spark_bridge


def main(checkpoint: str) -> None:
    """Run the query until everything is copied."""
    spark = spark_bridge.configure(SparkSession.builder.appName("first")).getOrCreate()
    events = spark.readStream.format("iris").options(subscribe="in").load()
    query = (
        events.select("value")
        .writeStream.format("iris")
        .options(topic="out", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
