"""Dead letters under attack: repeats after anything has changed, and ends between the table and the letters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from iris import spark_bridge
from tests.support.bridges import BridgeProcess, publish

pytestmark = pytest.mark.long


def letters(spark: SparkSession, topic: str = "bad") -> Counter[tuple[Any, ...]]:
    """Count letters by topic, offset, reason, encoding and payload."""
    rows = spark.read.format("iris").option("subscribe", f"{topic}.>").load().collect()
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        headers = {pair.key: bytes(pair.value).decode() for pair in row.headers}
        names = ("bad-topic", "bad-offset", "bad-reason", "bad-encoding")
        found[(*(headers.get(name, "") for name in names), None if row.value is None else bytes(row.value))] += 1
    return found


def test_letters_are_there_once_after_ends_and_other_readings(spark: SparkSession, realm: Path, tmp_path: Path) -> None:
    def batch(fields: str = "n INT", **options: str) -> DataFrame:
        events = spark.read.format("iris").option("includeShard", "true").options(**options).load()
        return spark_bridge.parse(events, fields)

    publish_letters = spark_bridge.dead_letters("bad")
    with BridgeProcess(tmp_path / "log"):
        strange: list[Any] = [
            b'{"n":1}', b"odd", {"n": b"bytes"}, {"n": "text"}, "a text", [1, {"n": float("nan")}], b"\xff\x00", None,
            b"", b"x" * 500_000, "\u2028\U0001f600",
        ]  # fmt: skip
        publish(strange, topic="orders.new", key="k")
        # The driver ends between the table and the letters: nothing is there, and all is in the repeat.
        batch(subscribe="orders.>").where("_corrupt_record IS NULL").collect()
        assert letters(spark) == Counter()
        # It ends while letters are published: some are there.
        publish_letters(batch(subscribe="orders.>").where("_offset % 2 = 0"), 0)
        some = letters(spark)
        publish_letters(batch(subscribe="orders.>"), 0)
        every = letters(spark)
        assert set(every.values()) == {1}
        assert some <= every
        assert len(every) > len(some) > 0
        assert {key[2] for key in every} == {"unfit"}
        offsets = {int(key[1]) for key in every}
        bad = {
            row["_offset"]: row["_corrupt_record"]
            for row in batch(subscribe="orders.>").where("_corrupt_record IS NOT NULL").collect()
        }
        assert offsets == set(bad)
        assert {int(key[1]): key[4] for key in every} == {at: bytes(value) for at, value in bad.items()}
        # Other ranges, orders, schemas and partitions, and its own letters among the events.
        for fields, options in (
            ("n INT", {"minPartitions": "4"}),
            ("m STRING", {"maxRecordsPerPartition": "1"}),
            ("n INT", {"subscribe": ">"}),
            ("n INT", {"subscribe": "bad.>"}),
        ):
            publish_letters(batch(fields, **options).repartition(3, fn.rand(1)), 7)
            assert letters(spark) == every, options


def test_letters_of_letters_and_of_topics_beside_them_are_kept(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    def batch(topic: str) -> DataFrame:
        events = spark.read.format("iris").option("includeShard", "true").option("subscribe", topic).load()
        return spark_bridge.parse(events, "n INT")

    with BridgeProcess(tmp_path / "log"):
        publish([b"one"], topic="orders", key="k")
        publish([b"two"], topic="badly.orders", key="k")
        publish([b"three"], topic="bad", key="k")
        spark_bridge.dead_letters("bad")(batch(">"), 0)
        assert {key[0] for key in letters(spark)} == {"orders", "badly.orders", "bad"}
        # Somebody else's letters, of which the log has the same facts in their headers.
        other = spark_bridge.dead_letters("worse")
        for number in (0, 1):
            other(batch("bad.>"), number)
        assert set(letters(spark, "worse").values()) == {1}
        assert len(letters(spark, "worse")) == 3
        # What stands on the topic with facts that are none hides no letter.
        rows = spark.range(2).select(
            fn.lit(b"x").alias("value"),
            fn.lit("bad.0.0").alias("topic"),
            fn.expr("array(struct('bad-offset' AS key, CAST('0' AS BINARY) AS value))").alias("headers"),
        )
        rows.write.format("iris").mode("append").save()
        publish([b"four"], topic="orders", key="k")
        for number in (2, 3):
            spark_bridge.dead_letters("bad")(batch("orders"), number)
        found = letters(spark)
        assert [count for key, count in found.items() if key[4] == b"four"] == [1]
