"""Spark in the demo: Structured Streaming computes flights and mean arrival delay per carrier from the bridge's log.

``python -m iris.demo.spark DIRECTORY`` starts a session; at the order ``start`` it begins to read, and at ``finish``
it reads what is left, reports and ends.  Its checkpoint and scratch files go to the directory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so
from pyspark.sql.streaming.query import StreamingQuery

from iris import spark_bridge
from iris.demo.control import Progress, report_news, report_result, wait_orders
from iris.demo.data import TOPICS

_BATCH: Final = "1 second"
"""Time between batches: each costs some 100 ms, whatever is in it, that the publisher could use."""

_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In a Java machine that lives a minute, optimizing costs more than it brings: 17 s of processor time and 0.7 GB with
these, 29 s and 1.1 GB without."""

_FLIGHT: Final = "id BIGINT, carrier STRING, arr_delay BIGINT"


def open_session(directory: Path) -> SparkSession:
    """Start Spark in this process, on two cores."""
    builder = SparkSession.builder.appName("iris demo").master("local[2]")
    settings: Mapping[str, str] = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": _JAVA,
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",  # sixteen carriers need no two hundred
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = spark_bridge.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def by_carrier(events: DataFrame) -> DataFrame:
    """Return the figures of each carrier, computed from the events of the bridge."""
    flight = F.from_json(F.col("value").cast("string"), _FLIGHT)
    return (
        events.select(flight.alias("flight"))
        .select("flight.*")
        .groupBy("carrier")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("arr_delay").alias("arrived"),
            F.avg("arr_delay").alias("mean_delay"),
            F.sum("id").alias("id_sum"),
            F.sum(F.col("id") * F.col("id")).alias("id_square_sum"),
        )
    )


def start_query(session: SparkSession, directory: Path, figures: dict[str, Any]) -> StreamingQuery:
    """Begin to read; ``figures`` holds what is known of each carrier after each batch."""
    progress = Progress()

    def take(batch: DataFrame, number: int) -> None:  # noqa: ARG001 - every batch is the whole result
        rows = [row.asDict() for row in batch.collect()]
        figures.update({row.pop("carrier"): row for row in rows})
        progress.reach(sum(row["flights"] for row in figures.values()))

    events = session.readStream.format("iris").option("subscribe", TOPICS).option("startingOffsets", "earliest").load()
    return (
        by_carrier(events)
        .writeStream.outputMode("complete")
        .trigger(processingTime=_BATCH)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .foreachBatch(take)
        .start()
    )


def main(directory: Path) -> None:
    """Follow the airport's orders."""
    session = open_session(directory)
    report_news("ready")
    figures: dict[str, Any] = {}
    query: StreamingQuery | None = None
    for order in wait_orders():
        if order == "start":
            query = start_query(session, directory, figures)
            report_news("reading")
        elif order == "finish":
            assert query is not None
            query.processAllAvailable()
            report_result(carriers=figures)
            query.stop()
            break
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
