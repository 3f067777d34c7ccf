"""``iris.spark_bridge.load`` of a bridge on Kafka: the columns of ``format("iris")``, and what becomes of repeats."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from iris.kernel.errors import ConfigError
from iris.spark_bridge import load
from iris.spark_bridge.events.schema import SCHEMA, SPARK_SCHEMA
from iris.spark_bridge.session.kafka import _options_of_kafka, _wanted, from_kafka

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def record(number: int, *, minutes: float = 0, offset: int = 0, topic: str = "orders.new") -> dict[str, Any]:
    """Return what Spark's Kafka source reads of an event."""
    return {
        "key": b"k",
        "value": b"%d" % number,
        "topic": "bridge",
        "partition": 0,
        "offset": offset,
        "timestamp": BEGIN + timedelta(minutes=minutes),
        "timestampType": 0,
        "headers": [
            {"key": "iris-topic", "value": topic.encode()},
            {"key": "iris-sender", "value": b"desk"},
            {"key": "iris-publisher", "value": b"a" * 32},
            {"key": "iris-number", "value": b"%d" % number},
        ],
    }


def foreign(offset: int) -> dict[str, Any]:
    """Return the same of a record that no bridge has written."""
    return {**record(0, offset=offset), "value": b"other", "headers": None}


def write(directory: Path, *files: Sequence[dict[str, Any]]) -> Path:
    """Write records as files, which a stream reads one at a time."""
    directory.mkdir()
    for number, records in enumerate(files):
        pq.write_table(pa.Table.from_pylist(list(records), schema=SCHEMA), str(directory / f"{number}.parquet"))
    return directory


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.collect())


def test_the_columns_are_those_of_the_format(spark: SparkSession, tmp_path: Path) -> None:
    records = spark.read.parquet(str(write(tmp_path / "in", [record(1)])))
    events = from_kafka(records, None, "10 minutes")
    expected = spark.createDataFrame([], SPARK_SCHEMA).schema
    assert [(field.name, field.dataType) for field in events.schema] == [
        (field.name, field.dataType) for field in expected
    ]
    (row,) = events.collect()
    assert row.topic == "orders.new"
    assert [header.key for header in row.headers] == ["iris-sender", "iris-publisher", "iris-number"]


def test_repeats_are_dropped_and_records_of_others_are_none(spark: SparkSession, tmp_path: Path) -> None:
    given = [
        record(1),
        record(2, offset=1),
        record(1, offset=2),
        foreign(3),
        foreign(4),
        record(1, topic="b", offset=5),
    ]
    records = spark.read.parquet(str(write(tmp_path / "in", given)))
    assert values(from_kafka(records, None, "10 minutes")) == [b"1", b"1", b"2", b"other", b"other"]
    assert values(from_kafka(records, None, None)) == [b"1", b"1", b"1", b"2", b"other", b"other"]
    assert values(from_kafka(records, _wanted({"subscribe": "orders.*"}), "10 minutes")) == [b"1", b"2"]


def test_a_stream_drops_a_repeat_within_the_watermark_and_not_one_beyond_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = write(
        tmp_path / "in",
        [record(1, minutes=0)],
        [record(1, minutes=5), record(2, minutes=5)],  # a member was killed, and another one has written it again
        [record(3, minutes=60)],
        [record(4, minutes=61)],
        [record(1, minutes=62)],  # so late that it is a row more
    )
    schema = spark.createDataFrame([], SPARK_SCHEMA).schema
    records = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))
    query = (
        from_kafka(records, None, "10 minutes")
        .writeStream.format("memory")
        .queryName("repeats")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    assert values(spark.table("repeats")) == [b"1", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("patterns", "wanted", "unwanted"),
    [
        ("orders.>", ["orders.new", "orders.a.b"], ["orders", "ordersx.new", "x.orders.new"]),
        ("orders.*", ["orders.new"], ["orders.a.b"]),
        ("a.b, c", ["a.b", "c"], ["axb", "c.d"]),
        (">", ["a", "a.b"], []),
    ],
)
def test_patterns_mean_what_they_mean_to_a_bridge(
    spark: SparkSession, tmp_path: Path, patterns: str, wanted: list[str], unwanted: list[str]
) -> None:
    given = [record(number, topic=topic) for number, topic in enumerate([*wanted, *unwanted])]
    records = spark.read.parquet(str(write(tmp_path / "in", given)))
    found = from_kafka(records, _wanted({"subscribe": patterns}), None)
    assert sorted(row.topic for row in found.collect()) == sorted(wanted)


def test_options_become_those_of_sparks_kafka_source() -> None:
    def translated(**options: str) -> dict[str, str]:
        return dict(_options_of_kafka(options, "bridge"))

    assert translated(subscribe="a") == {"startingOffsets": "earliest"}
    assert translated(startingOffsets='{"0@9b60a932724f3967": 12, "1": -2}', maxOffsetsPerTrigger="10") == {
        "startingOffsets": '{"bridge": {"0": 12, "1": -2}}',
        "maxOffsetsPerTrigger": "10",
    }
    assert translated(startingTimestamp="1", **{"kafka.security.protocol": "SSL"}) == {
        "startingTimestamp": "1",
        "kafka.security.protocol": "SSL",
    }
    with pytest.raises(ConfigError, match="with Kafka there is no option inlineRows"):
        translated(inlineRows="10")
    with pytest.raises(ConfigError, match="option startingOffsets is 'soon'"):
        translated(startingOffsets="soon")
    with pytest.raises(ConfigError, match="option subscribe has 'a b'"):
        _wanted({"subscribe": "a b"})


def test_without_kafka_it_is_the_format(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="no option nonsense"):
        load(spark.read, nonsense="1").collect()
