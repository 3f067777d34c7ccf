"""A query that moves from the embedded log to Kafka by one option, with Spark's own Kafka source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- everybody calls it so

import iris
from iris import spark_bridge
from iris.spark_bridge.kafka.bridge import open_kafka_bridge
from iris.spark_bridge.server.bridge import open_bridge
from tests.support.kafka import KafkaCluster
from tests.support.spark_packages import kafka_source

pytestmark = [
    pytest.mark.xdist_group("kafka"),
    pytest.mark.skipif(not kafka_source(), reason="Spark's Kafka source is not to be had: apt install maven"),
]


def sums(events: DataFrame) -> dict[str, tuple[int, float]]:
    """Return how many orders there are of each item, and what they cost together."""
    orders = spark_bridge.parse(events, "item STRING, price DOUBLE")
    found = orders.groupBy("item").agg(F.count("*").alias("count"), F.sum("price").alias("price")).collect()
    return {row.item: (row["count"], row.price) for row in found}


def test_sums_are_those_of_the_embedded_log_on_the_same_input(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka.create_topic("sums", partitions=3)

    async def publish() -> None:
        async with (
            iris.open_node("log") as one,
            open_bridge(one, topics=["orders.>"], directory=tmp_path / "log", name="log"),
            iris.open_node("sums") as other,
            open_kafka_bridge(other, topics=["orders.>"], kafka=kafka.bootstrap, name="sums", min_insync=1),
            iris.open_node("desk") as node,
        ):
            async with node.confirming(timeout=60) as confirmed:
                for number in range(2000):
                    order = {"item": ("tea", "milk", "bread")[number % 3], "price": float(number)}
                    await confirmed.publish(f"orders.{number % 2}", order, key=str(number % 50))
            await trio.to_thread.run_sync(compare)

    def compare() -> None:
        options: dict[str, Any] = {"subscribe": "orders.>"}
        embedded = spark_bridge.load(spark.read, bridge="log", **options)
        moved = spark_bridge.load(spark.read, bridge="sums", kafka=kafka.bootstrap, **options)
        assert [(one.name, one.dataType) for one in moved.schema] == [
            (one.name, one.dataType) for one in embedded.schema
        ]
        assert sums(moved) == sums(embedded)
        assert sums(moved)["tea"] == (667, sum(float(number) for number in range(0, 2000, 3)))
        stream = spark_bridge.load(spark.readStream, bridge="sums", kafka=kafka.bootstrap, subscribe="orders.0")
        query = stream.writeStream.format("memory").queryName("moved").trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert query.exception() is None
        assert spark.table("moved").count() == 1000

    trio.run(publish)
