"""Micro-batches that are read where they are planned: which ones, and what Spark is given."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from iris.spark_bridge.client.offsets import Offsets, parse_offsets, ranges_between
from iris.spark_bridge.datasource.inline_source import InlineStreamReader
from iris.spark_bridge.errors import LogDamaged

# Untyped, all of them.
runner: Any = importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")
serializers: Any = importlib.import_module("pyspark.serializers")
internal: Any = importlib.import_module("pyspark.sql.datasource_internal")

SCHEMA = StructType().add("value", "binary")
A, B = "0@0123456789abcdef", "1@0123456789abcdef"


class Numbers:
    """A partition for each shard, a row for each offset."""

    def __init__(self) -> None:
        self.committed: list[Any] = []
        self.asked: list[Any] = []
        self.end: dict[str, Any] = {}
        self.fails = False
        self.prepared = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"initial": True}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self.asked.append((start, limit))
        return self.end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.prepared = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = ranges_between(parse_offsets(start), parse_offsets(end))
        return [InputPartition((found.start, found.end)) for found in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self.fails:
            raise LogDamaged("so it is")
        for number in range(*partition.value):
            yield pa.RecordBatch.from_pydict({"value": [b"%d" % number]})

    def commit(self, end: dict[str, Any]) -> None:
        self.committed.append(end)


class Source(DataSource):
    """A data source with a simple reader alone, as ``IrisSource`` is with ``inlineRows``."""

    def __init__(self, reader: InlineStreamReader) -> None:
        super().__init__({})
        self.reader_ = reader

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
        return self.reader_


def as_spark_uses_it(inner: Numbers) -> Any:
    return internal._streamReader(Source(InlineStreamReader(inner, rows=4)), SCHEMA)


def offsets(a: int, b: int) -> dict[str, Any]:
    return Offsets(next={A: a, B: b}).to_json()


def values(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_batch_has_so_many_rows_at_most_and_they_come_with_its_end() -> None:
    inner = Numbers()
    inner.end = offsets(3, 6)
    rows, end = InlineStreamReader(inner, rows=4).read(offsets(0, 5))
    assert inner.asked == [(offsets(0, 5), ReadMaxRows(4))]
    assert (values(rows), end) == ([b"0", b"1", b"2", b"5"], offsets(3, 6))


def test_a_batch_that_is_repeated_is_read_by_a_worker_with_the_same_rows() -> None:
    spark = serializers.CloudPickleSerializer()
    reader = as_spark_uses_it(Numbers())
    (part,) = reader.partitions(offsets(0, 5), offsets(3, 6))
    worker = spark.loads(spark.dumps(reader))
    assert values(worker.read(spark.loads(spark.dumps(part)))) == [b"0", b"1", b"2", b"5"]


def test_what_goes_wrong_is_said_when_spark_asks() -> None:
    inner = Numbers()
    inner.end, inner.fails = offsets(3, 6), True
    with pytest.raises(LogDamaged, match="so it is"):
        InlineStreamReader(inner, rows=4).read(offsets(0, 5))


def test_everything_else_is_the_readers() -> None:
    inner = Numbers()
    reader = InlineStreamReader(inner, rows=4)
    assert reader.initialOffset() == {"initial": True}
    reader.commit({"a": 2})
    assert inner.committed == [{"a": 2}]


def answers(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Let the process that Spark starts for offsets ask for partitions, and return the numbers in what it says."""
    asked, said = io.BytesIO(), io.BytesIO()
    for offset in (start, end):
        serializers.write_with_length(json.dumps(offset).encode(), asked)
    asked.seek(0)
    runner.partitions_func(reader, DataSource({}), SCHEMA, 1000, asked, said)
    said.seek(0)
    count = serializers.read_int(said)
    for _ in range(count):
        said.read(serializers.read_int(said))
    return [count, serializers.read_int(said)]


def test_spark_takes_the_rows_with_the_plan_also_a_second_time() -> None:
    inner = Numbers()
    reader = as_spark_uses_it(inner)
    inner.end = offsets(2, 6)
    assert reader.latestOffset(offsets(0, 5), ReadAllAvailable()) == inner.end
    for _ in range(2):
        assert answers(reader, offsets(0, 5), inner.end) == [1, runner.NON_EMPTY_PYARROW_RECORD_BATCHES]


def test_where_nothing_has_come_nothing_is_kept() -> None:
    inner = Numbers()
    reader = as_spark_uses_it(inner)
    inner.end = offsets(0, 5)
    assert reader.latestOffset(inner.end, ReadAllAvailable()) == inner.end
    assert answers(reader, inner.end, inner.end) == [1, runner.PREFETCHED_RECORDS_NOT_FOUND]


def test_spark_lets_it_limit_batches_and_end_with_what_is_there() -> None:
    inner = Numbers()
    reader = as_spark_uses_it(inner)
    said = io.BytesIO()
    runner.check_support_func(reader, said)
    runner.prepare_for_trigger_available_now_func(reader, said)
    said.seek(0)
    assert serializers.read_int(said) == runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    assert inner.prepared
