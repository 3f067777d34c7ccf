"""Chunk input and output: appends chunks to a shard inside a transaction, and reads and verifies stored ones.

An append writes chunks into segment files and their places into the index.  A read goes from offsets to places in the
index, and from places to verified bytes.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast, final

import pyarrow as pa

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.chunk import HEADER_SIZE, Chunk, decode_frames, frame_header
from iris.spark_bridge.log.records import (
    CHUNKS,
    IN_TIER,
    SEGMENTS,
    SHARDS,
    ChunkPlace,
    SegmentRecord,
    ShardState,
    chunk_from,
    last_segment,
    read_topics,
    sound_chunks,
    spans,
)
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.spark_bridge.log.topics.index import SegmentTopics, find_chunks
from iris.spark_bridge.log.transaction import Transaction

CHUNK_EVENTS: Final = 8192
"""Most events of a chunk: Spark's batches have 10,000 rows by default."""

CHUNK_BYTES: Final = 1024 * 1024
"""Larger chunks read no faster, and a reader holds some of them at a time."""

ROOM: Final = CHUNK_BYTES - HEADER_SIZE - 2048
"""Room of a chunk for events, in bytes."""

FinishedSegment = tuple[int, str, int, int, int]
"""Shard, epoch, first offset, size and revision of a segment that is complete."""


class BuildColumns(Protocol):
    """Makes the columns of a chunk's events, given the offset of the first one and the timestamp of all."""

    def __call__(self, *, first: int, timestamp: int) -> pa.RecordBatch: ...


@final
class Tails:
    """The segments that shards are appended to.

    Attributes:
        topics: topics of these, by shard; emptied after a transaction that failed.
        ended: shards whose last segment is not to grow any more: the next append begins another one.
    """

    def __init__(self) -> None:
        self.topics: Final[dict[int, SegmentTopics]] = {}
        self.ended: Final[set[int]] = set()


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Appending:
    """A transaction that appends to shards of a log."""

    view: Transaction
    files: SegmentFiles
    now: int
    """Microseconds since 1970."""
    date: int
    """Date of the events, in microseconds since 1970."""
    tails: Tails
    finished: list[FinishedSegment] = dataclasses.field(default_factory=list[FinishedSegment])
    """Segments that are complete, to be trimmed after the commit."""
    appended: set[int] = dataclasses.field(default_factory=set[int])
    """Shards that have got events."""


@final
class ShardAppend:
    """Adds chunks to a shard.  ``finish`` makes them durable; they count when the transaction is committed.

    Args:
        appending: the transaction.
        number: number of an existing shard.
    """

    def __init__(self, appending: Appending, number: int) -> None:
        view, topics = appending.view, appending.tails.topics
        shard = view.get(SHARDS, number)
        if shard is None:
            raise ValueError(f"there is no shard {number}")
        self._view = view
        self._files = appending.files
        self._shard = shard
        self._finished = appending.finished
        self._appended = appending.appended
        self._now = appending.now
        # Never backwards, whatever the wall clock does: the search by time is a binary search.
        self._timestamp = max(appending.date, shard.timestamp)
        self._first = shard.next
        self._size = shard.size
        self._segment = last_segment(view, number)
        self._topics = topics
        begin = number in appending.tails.ended
        if self._segment is not None:
            # Not known of a copy that was promoted by force: a segment has the topics of all of its chunks, or of none.
            begin = begin or self._segment.topics is None
            if number not in topics:
                topics[number] = SegmentTopics(self._segment.first, read_topics(view, number, self._segment))
        self._begin = begin
        self._written = False

    @property
    def next(self) -> int:
        """The offset of the next event."""
        return self._first

    def add(self, topics: Mapping[str, int], build: BuildColumns) -> None:
        """Add a chunk of events; ``topics`` says how many of each topic."""
        count = sum(topics.values())
        number, epoch, first = self._shard.number, self._shard.epoch, self._first
        data = memoryview(build(first=first, timestamp=self._timestamp).serialize())
        size = HEADER_SIZE + len(data)
        segment = self._segment
        if segment is None or self._begin or self._files.is_full(segment.size, size):
            segment = self._begin_segment(segment, size)
            self._begin = False
        header = frame_header(data, shard=number, epoch=epoch, first=first, count=count, timestamp=self._timestamp)
        # Behind the committed end of the segment: no reader sees these bytes yet, and after a crash they are
        # overwritten.
        self._files.write(number, epoch, segment.first, segment.size, (header, data), segment.revision)
        self._written = True
        place = ChunkPlace(
            first=first,
            count=count,
            timestamp=self._timestamp,
            segment=segment.first,
            position=segment.size,
            size=size,
            revision=segment.revision,
        )
        self._view.put(CHUNKS, (number, first), place)
        known = self._segment_topics(segment)
        known.note(self._view, number, first, topics)
        self._segment = dataclasses.replace(
            segment,
            end=first + count,
            size=segment.size + size,
            written=self._now,
            last_timestamp=self._timestamp,
            topics=len(known),
        )
        self._view.put(SEGMENTS, (number, segment.first), self._segment)
        self._first = first + count
        self._size += size

    def _segment_topics(self, segment: SegmentRecord) -> SegmentTopics:
        number = self._shard.number
        found = self._topics.get(number)
        if found is None or found.segment != segment.first:  # it begins with this chunk
            found = self._topics[number] = SegmentTopics(segment.first, [])
        return found

    def _begin_segment(self, before: SegmentRecord | None, size: int) -> SegmentRecord:
        shard = self._shard
        if before is not None:
            # ``finish`` syncs the active segment only; the one before is left here for good.
            if self._written:
                self._files.sync(shard.number)
            self._finished.append((shard.number, shard.epoch, before.first, before.size, before.revision))
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
            self._view.put(SHARDS, shard.number, shard)
            self._appended.add(shard.number)


def find_places(view: Transaction, shard: int, start: int, end: int, max_bytes: int) -> list[ChunkPlace]:
    """Return the places of the chunks from ``start``: at least one, more up to ``end`` or ``max_bytes``.

    Raises:
        LogDamaged: the index leaves something out.
    """
    places: list[ChunkPlace] = []
    expected = start
    size = 0
    for place in spans(view, CHUNKS, shard, start):
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


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Part of a range: a chunk, or offsets whose events are not wanted."""

    place: ChunkPlace | None
    first: int
    end: int
    timestamp: int
    is_filtered: bool = False
    """True if unwanted events are removed from the chunk."""
    is_unknown: bool = False
    """True if the index does not say where its events are."""


def stretch_of(place: ChunkPlace, *, is_filtered: bool = False) -> Stretch:
    """Return a chunk as part of a range."""
    return Stretch(place=place, first=place.first, end=place.end, timestamp=place.timestamp, is_filtered=is_filtered)


def find_wanted(
    view: Transaction,
    shard: ShardState,
    start: int,
    end: int,
    max_bytes: int,
    wanted: TopicFilter,
    *,
    exact: bool = False,
) -> list[Stretch]:
    """Return the stretches from ``start``, without a gap between them: up to ``end``, or ``max_bytes`` of chunks.

    Args:
        view: the transaction.
        shard: record of the shard.
        start: an offset; events from there on that were removed are not wanted ones.
        end: the offset behind the last event.
        max_bytes: more only if it is one chunk.
        wanted: topics.
        exact: True if all unwanted events are removed; else only from chunks of which most events are unwanted, so
            that these are not sent in vain.
    """
    stretches: list[Stretch] = []
    at, size = start, 0
    for found in find_chunks(view, shard.number, shard.epoch, max(start, shard.earliest), wanted, end):
        place = found.place
        if size and size + place.size > max_bytes:
            return stretches
        if place.first > at:
            stretches.append(Stretch(place=None, first=at, end=place.first, timestamp=place.timestamp))
        filtered = found.wanted < found.held if found.is_known else exact
        stretch = stretch_of(place, is_filtered=filtered and (exact or 2 * found.wanted < found.held))
        stretches.append(stretch)
        at = stretch.end
        size += place.size
    if at < end:
        stretches.append(Stretch(place=None, first=at, end=end, timestamp=shard.timestamp))
    return stretches


def find_sound(view: Transaction, shard: ShardState, start: int, end: int, max_bytes: int) -> list[Stretch]:
    """Return the stretches from ``start`` as far as the index names their chunks, whatever else of it is damaged.

    What topics a chunk holds is not looked at.
    """
    stretches: list[Stretch] = []
    at, size = start, 0
    for place in sound_chunks(view, shard.number, start):
        if place.first > at:
            upto = min(place.first, end)
            stretches.append(Stretch(place=None, first=at, end=upto, timestamp=place.timestamp, is_unknown=True))
            at = upto
        if at >= end or (size and size + place.size > max_bytes):
            return stretches
        stretches.append(stretch_of(place))
        at = place.end
        size += place.size
    if at < end:
        stretches.append(Stretch(place=None, first=at, end=end, timestamp=shard.timestamp, is_unknown=True))
    return stretches


def find_offset(view: Transaction, shard: ShardState, timestamp: int) -> tuple[int, ChunkPlace | None]:
    """Return the first offset whose event is not older than ``timestamp``; that behind the last event if there is none.

    The events of a chunk share a time, and no chunk is older than the one before.  In the tier a chunk's time is that
    of its last event.  So the chunk is returned, too: the event is one of its own.
    """
    low, high = shard.earliest, shard.next
    first = next(spans(view, CHUNKS, shard.number, low), None)
    if first is None or first.timestamp >= timestamp:
        return low, first
    while low < high:
        middle = (low + high) // 2
        chunk = chunk_from(view, shard.number, middle)
        if chunk is None or chunk.timestamp >= timestamp:
            high = middle
        else:
            low = chunk.end
    chunk = chunk_from(view, shard.number, low)
    return (shard.next if chunk is None else chunk.first), chunk


def split_pieces(places: Sequence[ChunkPlace], most: int) -> list[tuple[int, int, int]]:
    """Return first offset, position and size of pieces of about ``most`` bytes that hold chunks of one file.

    Args:
        places: those of another segment than the first one are left out.
        most: a piece is larger only if it is one chunk.
    """
    pieces: list[tuple[int, int, int]] = []
    end = offset = 0
    for place in places:
        if (place.segment, place.revision) != (places[0].segment, places[0].revision):
            break
        if pieces and place.position == end and place.first == offset and pieces[-1][2] + place.size <= most:
            first, position, size = pieces[-1]
            pieces[-1] = (first, position, size + place.size)
        else:
            pieces.append((place.first, place.position, place.size))
        end, offset = place.position + place.size, place.end
    return pieces


def read_places(files: SegmentFiles, shard: int, epoch: str, places: Sequence[ChunkPlace]) -> list[Chunk]:
    """Read chunks and verify them, neighbours with one call; raise LogDamaged if they are not as the index says."""
    chunks: list[Chunk] = []
    at = 0
    while at < len(places):
        if places[at].revision == IN_TIER:
            chunks.append(_read_from_tier(files, shard, epoch, places[at]))
            at += 1
            continue
        last = at + 1
        while (
            last < len(places)
            and places[last].segment == places[at].segment
            and places[last].revision == places[at].revision
            and places[last].position == places[last - 1].position + places[last - 1].size
        ):
            last += 1
        start, size = places[at].position, places[last - 1].position + places[last - 1].size - places[at].position
        data = files.read(shard, epoch, places[at].segment, start, size, places[at].revision)
        try:
            chunks += decode_frames(data)
        except LogDamaged as error:
            path = files.path(shard, epoch, places[at].segment, places[at].revision)
            raise LogDamaged(f"{path}, bytes {start} to {start + size}: {error}") from None
        at = last
    for place, chunk in zip(places, chunks, strict=False):
        # The checksum proves that a chunk is whole; only this proves that it is the right one, and not a write that
        # went to the wrong place.
        if (chunk.shard, chunk.epoch, chunk.first, chunk.count) != (shard, epoch, place.first, place.count):
            path = files.path(shard, epoch, place.segment, place.revision)
            raise LogDamaged(f"{path}, byte {place.position}: the chunk there is not the one that the index names")
    if len(chunks) != len(places):
        raise LogDamaged(f"shard {shard}@{epoch} holds {len(chunks)} chunks where the index names {len(places)}")
    return chunks


def read_stretches(files: SegmentFiles, shard: int, epoch: str, stretches: Sequence[Stretch]) -> list[Chunk]:
    """Read the chunks of those stretches that have one, and verify them.

    Raises:
        LogDamaged: they are not what the index says, or it does not say where they are.
    """
    for stretch in stretches:
        if stretch.is_unknown:
            raise LogDamaged(f"the index names no chunk for offset {stretch.first}")
    return read_places(files, shard, epoch, [stretch.place for stretch in stretches if stretch.place is not None])


def _read_from_tier(files: SegmentFiles, shard: int, epoch: str, place: ChunkPlace) -> Chunk:
    events = files.tier.read_group(shard, epoch, place.segment, place.position)
    offsets: list[int] = events.column("offset").to_pylist()
    if offsets and not place.first <= offsets[0] <= offsets[-1] < place.end:
        raise LogDamaged(
            f"row group {place.position} of segment {place.segment} of shard {shard}@{epoch} in the tier holds offsets "
            f"{offsets[0]} to {offsets[-1]}, and not {place.first} to {place.end - 1}"
        )
    data = memoryview(events.serialize())
    header = frame_header(
        data, shard=shard, epoch=epoch, first=place.first, count=place.count, timestamp=place.timestamp
    )
    return Chunk(
        shard=shard,
        epoch=epoch,
        first=place.first,
        count=place.count,
        timestamp=place.timestamp,
        frame=b"".join((header, data)),
    )


def find_row(chunk: Chunk, timestamp: int) -> int:
    """Return the first offset of a chunk whose event is not older than ``timestamp``; of row groups each has its own.

    Where all are older it is the offset behind the chunk.

    Raises:
        LogDamaged: it does not hold events.
    """
    events = decode_events(chunk.data)
    times: list[int] = events.column("timestamp").cast(pa.int64()).to_pylist()
    row = bisect.bisect_left(times, timestamp)
    return chunk.end if row == len(times) else cast("int", events.column("offset")[row].as_py())
