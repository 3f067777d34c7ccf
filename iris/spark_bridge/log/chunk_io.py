"""Chunk input and output: appends chunks to a shard inside a transaction, and reads and verifies stored ones.

An append writes chunks into segment files and their places into the index.  A read goes from offsets to places in the
index, and from places to verified bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, Protocol, final

import pyarrow as pa

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk import HEADER_SIZE, Chunk, decode_frames, frame_header
from iris.spark_bridge.log.index import ChunkPlace, IndexView, SegmentRecord, ShardRecord
from iris.spark_bridge.log.segments import SegmentFiles

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
        # Never backwards, whatever the wall clock does: the search by time is a binary search.
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
        # Behind the committed end of the segment: no reader sees these bytes yet, and after a crash they are
        # overwritten.
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
            # ``finish`` syncs the active segment only; the one before is left here for good.
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
            # The chunks are on disk before the transaction that names them commits: a crash in between leaves bytes
            # that nobody names.
            self._files.sync(self._shard.number)
            shard = dataclasses.replace(self._shard, next=self._first, timestamp=self._timestamp, size=self._size)
            self._view.put_shard(shard)


def take_places(view: IndexView, shard: int, start: int, end: int, max_bytes: int) -> list[ChunkPlace]:
    """Return the places of the chunks from ``start``: at least one, more up to ``end`` or ``max_bytes``.

    Raises:
        LogDamaged: the index leaves something out.
    """
    places: list[ChunkPlace] = []
    expected = start
    size = 0
    for place in view.chunks(shard, start):
        if place.first > expected:
            break
        if places and (expected >= end or size + place.size > max_bytes):
            return places
        places.append(place)
        expected = place.end
        size += place.size
    if expected < end:
        raise LogDamaged(f"the index of shard {shard} names no chunk for offset {expected}")
    return places


def find_offset(view: IndexView, shard: ShardRecord, timestamp: int) -> int:
    """Return the first offset whose event is not older than ``timestamp``; that behind the last event if there is none.

    The events of a chunk share a time, and no chunk is older than the one before.
    """
    low, high = shard.earliest, shard.next
    first = next(view.chunks(shard.number, low), None)
    if first is None or first.timestamp >= timestamp:
        return low
    while low < high:
        middle = (low + high) // 2
        chunk = view.chunk_from(shard.number, middle)
        if chunk is None or chunk.timestamp >= timestamp:
            high = middle
        else:
            low = chunk.end
    chunk = view.chunk_from(shard.number, low)
    return shard.next if chunk is None else chunk.first


def take_pieces(places: Sequence[ChunkPlace], most: int) -> list[int]:
    """Return the sizes of pieces of about ``most`` bytes that hold the first chunks, as far as they follow each other.

    Args:
        places: at least one; those of another segment, or behind a gap, are left out.
        most: a piece is larger only if it is one chunk.
    """
    sizes: list[int] = []
    end = places[0].position
    for place in places:
        if place.segment != places[0].segment or place.position != end:
            break
        end += place.size
        if sizes and sizes[-1] + place.size <= most:
            sizes[-1] += place.size
        else:
            sizes.append(place.size)
    return sizes


def read_places(files: SegmentFiles, shard: int, epoch: str, places: Sequence[ChunkPlace]) -> list[Chunk]:
    """Read chunks and verify them; those that follow each other in a file are read with one call.

    Raises:
        LogDamaged: they are not what the index says.
    """
    chunks: list[Chunk] = []
    at = 0
    while at < len(places):
        last = at + 1
        while (
            last < len(places)
            and places[last].segment == places[at].segment
            and places[last].position == places[last - 1].position + places[last - 1].size
        ):
            last += 1
        start, size = places[at].position, places[last - 1].position + places[last - 1].size - places[at].position
        data = files.read(shard, epoch, places[at].segment, start, size)
        try:
            chunks += decode_frames(data)
        except LogDamaged as error:
            path = files.path(shard, epoch, places[at].segment)
            raise LogDamaged(f"{path}, bytes {start} to {start + size}: {error}") from None
        at = last
    for place, chunk in zip(places, chunks, strict=False):
        # The checksum proves that a chunk is whole; only this proves that it is the right one, and not a write that
        # went to the wrong place.
        if (chunk.shard, chunk.epoch, chunk.first, chunk.count) != (shard, epoch, place.first, place.count):
            path = files.path(shard, epoch, place.segment)
            raise LogDamaged(f"{path}, byte {place.position}: the chunk there is not the one that the index names")
    if len(chunks) != len(places):
        raise LogDamaged(f"shard {shard}@{epoch} holds {len(chunks)} chunks where the index names {len(places)}")
    return chunks
