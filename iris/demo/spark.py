"""Spark in the demo: Structured Streaming computes flights and mean arrival delay per carrier from the bridge's log.

``python -m iris.demo.spark DIRECTORY [BOOTSTRAP TOPIC]`` is the cluster ``spark``, as soon as its query reads.  The
operation ``count`` replies with the figures when the operation ``finish`` has come and all that is there was read.  Its
checkpoint and scratch files go to the directory.  With a topic of Kafka it reads from the brokers, by Spark's own
source.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so
from pyspark.sql.streaming.query import StreamingQuery

import iris
import iris.sync
from iris import spark_bridge
from iris.demo.data import TOPICS
from iris.demo.progress import Progress

_BATCH: Final = "1 second"
"""Time between batches: each costs some 100 ms, whatever is in it, that the publisher could use."""

_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java machine that lives a minute, where optimizing costs more than it brings: 17 s of processor time and
0.7 GB with these, 29 s and 1.1 GB without."""

_FLIGHT: Final = "id BIGINT, carrier STRING, arr_delay BIGINT"


_KAFKA: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's Kafka source: the newest there is, which runs with Spark 4.3."""

_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
"""Variable of PySpark's with arguments of spark-submit, such as the files of packages that are here already."""


def open_session(directory: Path, packages: str = "") -> SparkSession:
    """Start Spark in this process, on two cores, with packages that Maven knows."""
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
    if packages and _SUBMIT not in os.environ:
        settings = {**settings, "spark.jars.packages": packages}
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


def start_query(
    session: SparkSession,
    directory: Path,
    figures: dict[str, dict[str, Any]],
    progress: Progress,
    kafka: Mapping[str, str],
) -> StreamingQuery:
    """Begin to read; ``figures`` holds what is known of each carrier after each batch."""

    def collect(batch: DataFrame, _number: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        figures.update({row.pop("carrier"): row for row in rows})
        progress.done = sum(row["flights"] for row in figures.values())

    events = spark_bridge.load(session.readStream, subscribe=TOPICS, startingOffsets="earliest", **kafka)
    return (
        by_carrier(events)
        .writeStream.outputMode("complete")
        .trigger(processingTime=_BATCH)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .foreachBatch(collect)
        .start()
    )


def serve(query: StreamingQuery, figures: dict[str, dict[str, Any]], progress: Progress) -> iris.Service:
    """Return what the airport asks for."""
    service, published = iris.Service("spark"), threading.Event()

    @service.request("count")
    def count(_request: iris.Request) -> object:
        published.wait()
        query.processAllAvailable()
        return figures

    @service.request("finish")
    def finish(_request: iris.Request) -> None:
        published.set()

    @service.request("figures")
    def so_far(_request: iris.Request) -> object:
        return dict(figures)

    service.request("progress")(progress.report)
    return service


def main(directory: Path, *topic: str) -> None:
    """Read, and serve, until the airport ends it."""
    figures: dict[str, dict[str, Any]] = {}
    progress = Progress()
    # Before the bridge is there, perhaps: then the query waits for it.
    kafka: dict[str, str] = dict(zip(("kafka", "bridge"), topic, strict=False))
    session = open_session(directory, _KAFKA if kafka else "")
    query = start_query(session, directory, figures, progress, kafka)
    with iris.sync.open_node("spark") as node, node.join("spark", serve(query, figures, progress)):
        query.awaitTermination()  # it says what was wrong, if it ends


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
