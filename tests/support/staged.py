"""What Spark's tasks send to a bridge, made without Spark."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import pyarrow as pa

from iris.spark_bridge.schema import SINK_SCHEMA
from iris.spark_bridge.staging import StagedPart


def written(values: Sequence[str], *, topic: str = "out.x", key: str | None = None) -> io.BytesIO:
    """What a task sends: rows with these values."""
    file = io.BytesIO()
    rows = [{"value": value.encode(), "topic": topic, "key": key and key.encode()} for value in values]
    with pa.ipc.new_stream(file, SINK_SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, schema=SINK_SCHEMA))
    return file


def rows(*rows: Mapping[str, object]) -> io.BytesIO:
    """What a task sends that does not look at its rows."""
    file = io.BytesIO()
    with pa.ipc.new_stream(file, SINK_SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, schema=SINK_SCHEMA))
    return file


def part(partition: int, *, batch: int = 0, attempt: int = 0) -> StagedPart:
    return StagedPart(query="q", batch=batch, partition=partition, attempt=attempt)
