"""Spark as ``local-cluster``: executors in a Java of their own, and no cluster beside it.

``python -m tests.support.local_cluster DIRECTORY`` reads what is on ``in``, by session, and publishes it on ``out`` in
capitals; it prints how many executors there were.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- everybody calls it so

from iris import spark_bridge


def main(directory: str) -> None:
    """Run one job."""
    builder = SparkSession.builder.master("local-cluster[1,2,512]").appName("local-cluster")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.local.dir": f"{directory}/spark",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = spark_bridge.configure(builder, latency=True).getOrCreate()
    events = spark.read.format("iris").options(subscribe="in", localFiles="false").load()
    values = events.select(F.upper(events.value.cast("string")).alias("value"))
    values.write.format("iris").option("topic", "out").mode("append").save()
    context: Any = spark.sparkContext
    executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1
    sys.stdout.write(f"{executors} executors\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
