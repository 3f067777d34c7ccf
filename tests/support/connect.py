"""A session of Spark Connect, whose server starts with it: ``python -m tests.support.connect DIRECTORY``.

Copies topic ``in`` to topic ``out`` by a stream, reads it as a table, and prints what it has seen as JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from iris import spark_bridge


def main(directory: str) -> None:
    """Run one query."""
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse")
    spark = spark_bridge.configure(builder).getOrCreate()
    events = spark.readStream.format("iris").options(subscribe="in").load()
    query = (
        events.select("value")
        .writeStream.format("iris")
        .options(topic="out", checkpointLocation=f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    rows = spark.read.format("iris").options(subscribe="in").load().collect()
    seen = {
        "session": type(spark).__module__,
        "rows": sorted(bytes(row.value).decode() for row in rows),
        "figures": json.loads(progress["sources"][0]["latestOffset"]),
    }
    try:
        spark.read.format("iris").option("subscribePatern", "x").load().collect()
    except Exception as error:  # noqa: BLE001 -- whatever a user gets
        seen["error"] = str(error)
    sys.stdout.write(json.dumps(seen) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
