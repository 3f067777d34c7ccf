"""Batches: the chunks of a range as record batches of the wanted events, of a size that readers can use."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from iris.kernel.config import KIB, MIB
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log import Chunk, TopicFilter

_FEW_ROWS: Final = 1024
_FEW_BYTES: Final = 256 * KIB
"""A batch that has less of both is put together with others: each costs Spark about 0.1 ms."""

_MOST_ROWS: Final = 8192
_MOST_BYTES: Final = MIB
"""Limits of batches that were put together: a larger one leaves the processor's caches before Spark reads it."""


def wanted_batches(
    chunks: Iterable[Chunk], wanted: TopicFilter, passed: Sequence[TopicFilter] = (), *, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the events of chunks that are in a range and wanted, as the log has them.

    Args:
        chunks: the chunks of one shard, in the order of the log.
        wanted: keeps the events of these topics.
        passed: leaves out the events of these, of what is wanted.
        start: offset of the first event of the range.
        end: offset behind its last event.
    """
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for chunk in chunks:
        batch = decode_events(chunk.data)
        first, last = max(start, chunk.first), min(end, chunk.end)
        if last - first < chunk.count:
            batch = _between(batch, chunk, first, last)
        batch = wanted.keep(batch)
        for one in passed:
            batch = one.drop(batch)
        large = batch.num_rows >= _FEW_ROWS or batch.nbytes >= _FEW_BYTES
        if small and (large or rows + batch.num_rows > _MOST_ROWS or size + batch.nbytes > _MOST_BYTES):
            yield _together(small)
            small, rows, size = [], 0, 0
        if large:
            yield batch
        elif batch.num_rows:
            small.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if small:
        yield _together(small)


def _between(batch: pa.RecordBatch, chunk: Chunk, first: int, last: int) -> pa.RecordBatch:
    """Return the events of a chunk from offset ``first`` up to but not including ``last``."""
    if batch.num_rows == chunk.count:
        return batch.slice(first - chunk.first, last - first)
    # The member has left out those that this node may not have.
    offsets: list[int] = batch.column("offset").to_pylist()
    begin = bisect.bisect_left(offsets, first)
    return batch.slice(begin, bisect.bisect_left(offsets, last) - begin)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
