"""Micro-batches that are read where they are planned: which ones, and what Spark is given."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from iris.spark_bridge.client.offsets import Offsets, parse_offsets, ranges_between
from iris.spark_bridge.datasource.inline_source import InlineStreamReader, SeveralPartitions
from iris.spark_bridge.errors import LogDamaged

# Untyped, both.
runner: Any = importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")
serializers: Any = importlib.import_module("pyspark.serializers")

A, B = "0@0123456789abcdef", "1@0123456789abcdef"


class Numbers(SupportsTriggerAvailableNow):
    """A partition for each shard, a row for each offset, so many bytes in each."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.committed: list[Any] = []
        self.asked: list[Any] = []
        self.end: dict[str, Any] = {}
        self.reads = 0
        self.fails = False
        self.prepared = self.stopped = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"initial": True}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self.asked.append((start, limit))
        return self.end

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.prepared = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = ranges_between(parse_offsets(start), parse_offsets(end))
        return [InputPartition((found.start, found.end)) for found in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        if self.fails:
            raise LogDamaged("so it is")
        for number in range(*partition.value):
            yield pa.RecordBatch.from_pydict({"value": [b"%d" % number * self.size]})

    def commit(self, end: dict[str, Any]) -> None:
        self.committed.append(end)

    def stop(self) -> None:
        self.stopped = True


def offsets(a: int, b: int) -> dict[str, Any]:
    return Offsets(next={A: a, B: b}).to_json()


def values(batches: Iterator[pa.RecordBatch] | None) -> list[bytes] | None:
    return None if batches is None else [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_small_batch_is_one_partition_and_its_rows_go_along_once() -> None:
    reader = InlineStreamReader(Numbers(), rows=4)
    start, end = offsets(0, 5), offsets(3, 6)
    (part,) = reader.partitions(start, end)
    assert isinstance(part, SeveralPartitions)
    assert values(reader.getCache(start, end)) == [b"0", b"1", b"2", b"5"]
    assert reader.getCache(start, end) is None
    # Where Spark has lost them, a worker reads the same.
    spark = serializers.CloudPickleSerializer()
    worker = spark.loads(spark.dumps(reader))
    assert values(worker.read(spark.loads(spark.dumps(part)))) == [b"0", b"1", b"2", b"5"]


@pytest.mark.parametrize(
    ("size", "end"),
    [
        pytest.param(1, offsets(4, 6), id="more events"),
        pytest.param(400_000, offsets(2, 6), id="more bytes"),
        pytest.param(1, offsets(0, 5), id="nothing"),
    ],
)
def test_any_other_batch_is_left_to_workers(size: int, end: dict[str, Any]) -> None:
    reader = InlineStreamReader(Numbers(size), rows=4)
    start = offsets(0, 5)
    parts = reader.partitions(start, end)
    assert not any(isinstance(part, SeveralPartitions) for part in parts)
    assert reader.getCache(start, end) is None
    assert [values(reader.read(part)) for part in parts] == [values(Numbers(size).read(part)) for part in parts]


def test_rows_of_a_batch_are_not_handed_out_for_the_next_one() -> None:
    reader = InlineStreamReader(Numbers(), rows=4)
    reader.partitions(offsets(0, 5), offsets(1, 5))
    reader.partitions(offsets(1, 5), offsets(100, 5))
    assert reader.getCache(offsets(1, 5), offsets(100, 5)) is None


def test_a_small_batch_is_read_while_spark_plans() -> None:
    inner = Numbers()
    reader = InlineStreamReader(inner, rows=4)
    start, inner.end = offsets(0, 5), offsets(3, 6)
    end = reader.latestOffset(start, ReadAllAvailable())
    (part,) = reader.partitions(dict(start), dict(end))
    assert isinstance(part, SeveralPartitions)
    assert values(reader.getCache(start, end)) == [b"0", b"1", b"2", b"5"]
    assert inner.reads == 2, "once each shard"


def test_a_large_batch_is_not_read_ahead() -> None:
    inner = Numbers()
    reader = InlineStreamReader(inner, rows=4)
    inner.end = offsets(30, 6)
    reader.latestOffset(offsets(0, 5), ReadAllAvailable())
    assert len(reader.partitions(offsets(0, 5), inner.end)) == 2
    assert inner.reads == 0


def test_spark_may_ask_for_another_batch_than_the_one_that_was_read_ahead() -> None:
    inner = Numbers()
    reader = InlineStreamReader(inner, rows=4)
    inner.end = offsets(3, 6)
    reader.latestOffset(offsets(0, 5), ReadAllAvailable())
    reader.partitions(offsets(0, 5), offsets(1, 5))
    assert values(reader.getCache(offsets(0, 5), offsets(1, 5))) == [b"0"]


def test_what_goes_wrong_while_reading_ahead_is_said_when_spark_asks() -> None:
    inner = Numbers()
    reader = InlineStreamReader(inner, rows=4)
    inner.end, inner.fails = offsets(3, 6), True
    end = reader.latestOffset(offsets(0, 5), ReadAllAvailable())
    with pytest.raises(LogDamaged, match="so it is"):
        reader.partitions(offsets(0, 5), end)
    assert inner.reads == 2
    inner.fails = False
    reader.latestOffset(offsets(0, 5), ReadAllAvailable())
    assert reader.partitions(offsets(0, 5), end)
    assert values(reader.getCache(offsets(0, 5), end)) == [b"0", b"1", b"2", b"5"]


def test_everything_else_is_the_readers() -> None:
    inner = Numbers()
    reader = InlineStreamReader(inner, rows=4)
    assert reader.initialOffset() == {"initial": True}
    inner.end = offsets(7, 9)
    assert reader.latestOffset(offsets(7, 9), ReadAllAvailable()) == offsets(7, 9)
    assert inner.asked == [(offsets(7, 9), ReadAllAvailable())]
    assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
    reader.commit({"a": 2})
    reader.stop()
    assert (inner.committed, inner.stopped) == ([{"a": 2}], True)


def answers(reader: InlineStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Let the process that Spark starts for offsets ask for partitions, and return the numbers in what it says."""
    asked, said = io.BytesIO(), io.BytesIO()
    for offset in (start, end):
        serializers.write_with_length(json.dumps(offset).encode(), asked)
    asked.seek(0)
    runner.partitions_func(reader, DataSource({}), StructType().add("value", "binary"), 1000, asked, said)
    said.seek(0)
    count = serializers.read_int(said)
    for _ in range(count):
        said.read(serializers.read_int(said))
    return [count, serializers.read_int(said)]


def test_spark_takes_the_rows_with_the_plan() -> None:
    reader = InlineStreamReader(Numbers(), rows=4)
    start = offsets(0, 5)
    assert answers(reader, start, offsets(2, 6)) == [1, runner.NON_EMPTY_PYARROW_RECORD_BATCHES]
    assert answers(reader, start, offsets(2, 60)) == [2, runner.PREFETCHED_RECORDS_NOT_FOUND]


def test_spark_lets_it_limit_batches_and_end_with_what_is_there() -> None:
    inner = Numbers()
    reader = InlineStreamReader(inner, rows=4)
    said = io.BytesIO()
    runner.check_support_func(reader, said)
    runner.prepare_for_trigger_available_now_func(reader, said)
    said.seek(0)
    assert serializers.read_int(said) == runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    assert inner.prepared
