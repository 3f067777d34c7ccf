"""Inline source: the process of the query's offsets reads each micro-batch itself, without a Python worker.

Otherwise Spark gives each range to a worker: a task of a JVM thread, a Python process that is woken up, unpickles the
reader, opens a tunnel to the bridge and collects garbage afterwards.  For one event that is more than half of the
latency from the bridge to the sink.

This is a simple reader of Spark's: its rows go along with the plan of the batch.  They pass through one process, so a
batch has a bound.  The price is the source's ``latestOffset`` in the progress of a query.

The range is the batch; the rows are a cache.  A batch that is repeated after a crash is read again, by a worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow


class StreamReader(Protocol):
    """A ``DataSourceStreamReader`` that yields Arrow."""

    def initialOffset(self) -> dict[str, object]: ...
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]: ...
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...
    def commit(self, end: dict[str, object]) -> None: ...
    def prepareForTriggerAvailableNow(self) -> None: ...


@final
class InlineStreamReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that reads micro-batches where they are planned.

    Args:
        reader: reads; its offsets are those of ``iris.spark_bridge.client.offsets``.
        rows: events of the largest micro-batch.
    """

    def __init__(self, reader: StreamReader, rows: int) -> None:
        self._reader = reader
        self._limit = ReadMaxRows(rows)

    def initialOffset(self) -> dict[str, object]:
        """Return where a new query begins."""
        return self._reader.initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the present end; nothing beyond it is read."""
        self._reader.prepareForTriggerAvailableNow()

    def read(self, start: dict[str, object]) -> tuple[Iterator[Any], dict[str, object]]:
        """Return the next batch and its end; waits for up to 8 s if there is nothing to read."""
        end = self._reader.latestOffset(start, self._limit)
        # A list's iterator: Spark copies it.
        return iter(list(self.readBetweenOffsets(start, end))), end

    def readBetweenOffsets(self, start: dict[str, object], end: dict[str, object]) -> Iterator[Any]:
        """Read a batch; the same rows each time."""
        for part in self._reader.partitions(start, end):
            yield from self._reader.read(part)

    def commit(self, end: dict[str, object]) -> None:
        """Note the end of a batch that Spark has finished."""
        self._reader.commit(end)
