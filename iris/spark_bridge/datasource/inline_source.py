"""Inline source: the process of the query's offsets reads small micro-batches, without a Python worker.

Otherwise Spark gives each range to a worker: a task of a JVM thread, a Python process that is woken up, unpickles the
reader, opens a tunnel to the bridge and collects garbage afterwards.  For one event that is more than half of the
latency from the bridge to the sink.

Spark does the same for its simple readers (``SimpleDataSourceStreamReader``).  Those have no partitions, so every batch
would be read inline.  Spark recognises them by the class that it wraps them in, which is therefore the base here.  It
is a private class of PySpark 4.3, so the inline source is used only if the option ``inlineRows`` says so.  The price is
the source's ``latestOffset`` in the progress of a query.

The rows are read while Spark writes the batch's end into its log and plans, so they are there when Spark asks for them.

The range is the batch; the rows are a cache.  A batch that is repeated after a crash is read again, by this process or
by a worker, and so is one whose rows Spark has lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, cast, final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadLimit

from iris.kernel.config import MIB
from iris.spark_bridge.client import parse_offsets, ranges_between

_BYTES: Final = MIB
"""What is more than that is left to the workers, however few rows it is."""


class StreamReader(Protocol):
    """A ``DataSourceStreamReader`` that yields Arrow."""

    def initialOffset(self) -> dict[str, Any]: ...  # noqa: N802 -- Spark's names
    def getDefaultReadLimit(self) -> ReadLimit: ...  # noqa: N802
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...  # noqa: N802
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...
    def commit(self, end: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


@final
class SeveralPartitions(InputPartition):
    """All ranges of a micro-batch: Spark takes rows along with one partition only."""

    def __init__(self, parts: Sequence[InputPartition]) -> None:
        super().__init__("; ".join(str(part.value) for part in parts))
        self.parts = tuple(parts)


_Plan = tuple[Sequence[InputPartition], list[pa.RecordBatch] | None]
"""The partitions of a micro-batch, and its rows if they have been read."""


@final
class _ReadAhead:
    """A plan that is made in a thread, because Spark will ask for it some 10 ms later.

    Errors are not reported: Spark's question is answered anew then, and so are questions about other offsets.
    """

    def __init__(self, plan: Callable[[], _Plan], start: dict[str, Any], end: dict[str, Any]) -> None:
        self._make = plan
        self._offsets = start, end
        self._plan: _Plan | None = None
        # Of this thread nobody waits for the end: Spark does not stop readers, and the process may go at any time.
        self._thread = threading.Thread(target=self._run, name="iris read ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            self._plan = self._make()

    def wait(self, start: dict[str, Any], end: dict[str, Any]) -> _Plan | None:
        """Return the plan if it is about these offsets and worked."""
        if (start, end) != self._offsets:
            return None
        self._thread.join()
        return self._plan


@final
class InlineStreamReader(_SimpleStreamReaderWrapper):
    """A reader that reads small micro-batches where they are planned.

    Args:
        reader: reads; its offsets are those of ``iris.spark_bridge.client.offsets``.
        rows: events of the largest micro-batch that is read here.
    """

    def __init__(self, reader: StreamReader, rows: int) -> None:
        super().__init__(cast("Any", reader))  # asked by Spark whether it knows Trigger.AvailableNow
        self._reader = reader
        self._rows = rows
        self._read: list[pa.RecordBatch] | None = None
        self._ahead: _ReadAhead | None = None

    # -- in the process of the query's offsets --------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Return where a new query begins."""
        return self._reader.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """Return the limit that the options set for each batch."""
        return self._reader.getDefaultReadLimit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Return the end of the next batch, and begin to read it if it is small."""
        end = self._reader.latestOffset(start, limit)
        self._ahead = None
        if self._is_small(start, end):
            self._ahead = _ReadAhead(partial(self._plan, start, end), start, end)
        return end

    def _is_small(self, start: dict[str, Any], end: dict[str, Any]) -> bool:
        if start == end:
            return False
        ranges = ranges_between(parse_offsets(start), parse_offsets(end))
        return 0 < sum(found.end - found.start for found in ranges) <= self._rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a batch: as one partition, if its rows have been read and go along with it."""
        ahead, self._ahead = self._ahead, None
        plan = None if ahead is None else ahead.wait(start, end)
        if plan is None:
            plan = self._plan(start, end)
        parts, self._read = plan
        return parts if self._read is None else [SeveralPartitions(parts)]

    def _plan(self, start: dict[str, Any], end: dict[str, Any]) -> _Plan:
        parts = self._reader.partitions(start, end)
        return parts, self._read_small(parts) if self._is_small(start, end) else None

    def _read_small(self, parts: Sequence[InputPartition]) -> list[pa.RecordBatch] | None:
        batches: list[pa.RecordBatch] = []
        size = 0
        for part in parts:
            for batch in self._reader.read(part):
                size += batch.nbytes
                if size > _BYTES:
                    return None
                batches.append(batch)
        return batches

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any] | None:  # noqa: ARG002, N802
        """Return the rows of the batch whose partitions Spark has just asked for; None: workers read it."""
        batches, self._read = self._read, None
        return None if batches is None else iter(batches)

    def commit(self, end: dict[str, Any]) -> None:
        """Note the end of a batch that Spark has finished."""
        self._reader.commit(end)

    def stop(self) -> None:
        """End."""
        self._reader.stop()

    # -- in the executors -----------------------------------------------------------------------------------

    def read(self, input_partition: InputPartition) -> Iterator[Any]:
        """Read what workers are to read."""
        parts = input_partition.parts if isinstance(input_partition, SeveralPartitions) else (input_partition,)
        return chain.from_iterable(self._reader.read(part) for part in parts)
