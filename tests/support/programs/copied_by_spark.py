"""Two streams of Spark over a bridge's log: ``python -m tests.support.programs.copied_by_spark DIRECTORY BATCH``.

Copies topic ``in``, as far as it goes now and BATCH events at a time, into files and, through the bridge, to topic
``out``; the checkpoints are in ``DIRECTORY/files.checkpoint`` and ``DIRECTORY/out.checkpoint``.  Prints the rows of the
files as JSON: each event, and the package of Iris with which it was copied.  It uses nothing that 0.9.0 does not have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- everybody calls it so

import iris
import iris.spark_bridge


def main(directory: Path, batch: str) -> None:
    """Run both queries until everything is copied."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    spark = iris.spark_bridge.configure(builder).getOrCreate()
    source = spark.readStream.format("iris").options(
        subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=batch
    )
    package = F.udf(lambda: str(Path(iris.__file__).parent))
    copied = source.load().select(F.col("value").cast("string").alias("value"), package().alias("package"))
    files, out = copied.writeStream.format("json"), copied.select("value").writeStream.format("iris")
    queries = [
        writer.option("checkpointLocation", str(directory / f"{name}.checkpoint")).trigger(availableNow=True).start()
        for name, writer in (
            ("files", files.option("path", str(directory / "files"))),
            ("out", out.options(topic="out")),
        )
    ]
    for query in queries:
        query.awaitTermination()
    print(json.dumps([row.asDict() for row in spark.read.json(str(directory / "files")).collect()]))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
