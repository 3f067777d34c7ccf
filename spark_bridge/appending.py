"""One append to one shard, inside a transaction: chunks into segments, their places into the index."""

from __future__ import annotations

import dataclasses
from typing import Final, Protocol, final

import pyarrow as pa

from iris.spark_bridge.frame import HEADER_SIZE, frame_header
from iris.spark_bridge.index import ChunkPlace, IndexView, SegmentRecord
from iris.spark_bridge.segment import SegmentFiles

CHUNK_EVENTS: Final = 8192
"""Spark takes batches of 10,000 rows by default."""

CHUNK_BYTES: Final = 1024 * 1024
"""Larger chunks read no faster, and a reader holds some of them at a time."""

ROOM: Final = CHUNK_BYTES - HEADER_SIZE - 2048
"""Bytes of a chunk that are there for events."""

FinishedSegment = tuple[int, str, int, int]
"""Shard, epoch, first offset and size of a segment that is complete."""


class BuildColumns(Protocol):
    """Makes the columns of a chunk's events, given the offset of the first one and the timestamp of all."""

    def __call__(self, *, first: int, timestamp: int) -> pa.RecordBatch: ...


@final
class ShardAppend:
    """Adds chunks to a shard.  ``finish`` makes them durable; they count when the transaction is committed.

    Args:
        view: the transaction.
        files: of the segments.
        number: of the shard, which exists.
        now: microseconds since 1970.
        finished: collects the segments that are complete, to be trimmed after the commit.
    """

    def __init__(
        self, view: IndexView, files: SegmentFiles, number: int, *, now: int, finished: list[FinishedSegment]
    ) -> None:
        shard = view.shard(number)
        if shard is None:
            raise ValueError(f"there is no shard {number}")
        self._view = view
        self._files = files
        self._shard = shard
        self._finished = finished
        self._now = now
        self._timestamp = max(now, shard.timestamp)
        self._first = shard.next
        self._size = shard.size
        self._segment = view.last_segment(number)
        self._written = False

    @property
    def next(self) -> int:
        """The offset of the next event."""
        return self._first

    def add(self, count: int, build: BuildColumns) -> None:
        """Add a chunk of ``count`` events."""
        number, epoch, first = self._shard.number, self._shard.epoch, self._first
        data = memoryview(build(first=first, timestamp=self._timestamp).serialize())
        size = HEADER_SIZE + len(data)
        segment = self._segment
        if segment is None or self._files.is_full(segment.size, size):
            segment = self._begin_segment(segment, size)
        header = frame_header(data, shard=number, epoch=epoch, first=first, count=count, timestamp=self._timestamp)
        self._files.write(number, epoch, segment.first, segment.size, (header, data))
        self._written = True
        place = ChunkPlace(
            first=first,
            count=count,
            timestamp=self._timestamp,
            segment=segment.first,
            position=segment.size,
            size=size,
        )
        self._view.put_chunk(number, place)
        self._segment = dataclasses.replace(
            segment, end=place.end, size=segment.size + size, written=self._now, last_timestamp=self._timestamp
        )
        self._view.put_segment(number, self._segment)
        self._first = place.end
        self._size += size

    def _begin_segment(self, before: SegmentRecord | None, size: int) -> SegmentRecord:
        shard = self._shard
        if before is not None:
            if self._written:
                self._files.sync(shard.number)
            self._finished.append((shard.number, shard.epoch, before.first, before.size))
        self._files.begin(shard.number, shard.epoch, self._first, size)
        return SegmentRecord(
            first=self._first,
            end=self._first,
            size=0,
            written=self._now,
            last_timestamp=self._timestamp,
        )

    def finish(self) -> None:
        """Wait until the chunks are on the disk, and let the shard end behind them."""
        if self._written:
            self._files.sync(self._shard.number)
            shard = dataclasses.replace(self._shard, next=self._first, timestamp=self._timestamp, size=self._size)
            self._view.put_shard(shard)
