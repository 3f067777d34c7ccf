"""The driver of the kills: ``python -m benchmarks.bridge.kill_driver MASTER DIRECTORY SETTINGS [ROWS]``.

Reads the topic ``in`` and publishes every event on ``out``, through Spark, until it is killed; ROWS in a micro-batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from iris import spark_bridge


def main(master: str, directory: Path, settings: dict[str, str], *rows: str) -> None:
    """Run the query."""
    builder = SparkSession.builder.master(master).appName("kills")
    own = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.task.maxFailures": "20",
    }
    for name, value in {**own, **settings}.items():
        builder = builder.config(name, value)
    spark = spark_bridge.configure(builder, latency=True).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    limits = {"maxOffsetsPerTrigger": rows[0]} if rows else {}
    events = spark.readStream.format("iris").options(subscribe="in", minPartitions="2", **limits).load()
    query = (
        events.select("value")
        .writeStream.format("iris")
        .option("topic", "out")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    print("the query runs", file=sys.stderr, flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), *sys.argv[4:])
