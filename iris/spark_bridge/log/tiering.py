"""Tiering: segments that a tier has, which is object storage or another disk, and that this disk need not have.

The index names all segments alike, and everything that goes by the index (offsets, topics, times, cursors) is the same
for those in the tier.  A segment whose file is gone from this disk has the revision ``IN_TIER``.  Its chunks are the
row groups of its object: ``ChunkPlace.position`` counts them.

A file is removed only after the index says so, and that only for an object which the tier's manifest names.  So a crash
leaves the file, or the object, or both.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, final

import msgspec
import pyarrow as pa

from iris.spark_bridge.errors import DataLost, LogDamaged, TierUnreachable
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.chunk_io import read_places
from iris.spark_bridge.log.index import Index
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.records import (
    CHUNKS,
    CONTENTS,
    IN_TIER,
    SEGMENTS,
    SHARDS,
    TIERED,
    ChunkPlace,
    Contents,
    SegmentRecord,
    ShardState,
    all_shards,
    chunk_from,
    delete_chunks,
    last_segment,
    segment_at,
    segments_of,
    spans,
)
from iris.spark_bridge.log.topics.index import places_of
from iris.spark_bridge.log.transaction import Transaction

_log: Final = logging.getLogger("iris")

_AT_ONCE: Final = 16
"""Chunks of a segment that are read at a time: 16 MiB at most, but for large events."""


@final
class TierPart(msgspec.Struct, frozen=True, array_like=True):
    """A part of an object that is read in one piece: where it begins, its size, and the BLAKE2b of its bytes."""

    start: int
    size: int
    digest: bytes


@final
class TierObject(msgspec.Struct, frozen=True, kw_only=True):
    """A segment in the tier: events ``first`` up to but not including ``end``.

    Attributes:
        name: name of the object, below the shard's folder.
        first: offset of the segment.
        end: the offset behind it.
        rows: number of its events; fewer than offsets, if some were removed before.
        size: bytes of the object.
        groups: the offset behind each of its row groups.
        since: time of its first event, microseconds since 1970.
        until: time of its last one.
        parts: row groups and footer of the object, with hashes; nothing is parsed before its bytes are verified.
    """

    name: str
    first: int
    end: int
    rows: int
    size: int
    groups: Sequence[int]
    since: int
    until: int
    parts: tuple[TierPart, ...]


class ObjectReader(Protocol):
    """Reads objects of the tier."""

    def read_group(self, shard: str, found: TierObject, group: int) -> pa.RecordBatch:
        """Return the events of a row group, verified.

        Raises:
            TierUnreachable: the storage does not answer.
            LogDamaged: the object is not what was written.
        """
        ...


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SealedSegment:
    """A segment that grows no more, and that the tier has not got."""

    shard: int
    epoch: str
    first: int
    end: int
    size: int

    @property
    def shard_id(self) -> str:
        """The shard's name: number and epoch."""
        return f"{self.shard}@{self.epoch}"


@final
class TierCatalog:
    """Objects of the tier that the log notes, and what reads them.

    Args:
        index: index of the log.
    """

    def __init__(self, index: Index) -> None:
        with index.read() as view:
            self.objects: Final = {
                place: msgspec.msgpack.decode(record, type=TierObject) for place, record in view.items(TIERED)
            }
        """Objects by shard and first offset."""
        self._reader: ObjectReader | None = None

    @property
    def is_attached(self) -> bool:
        """True once there is a tier."""
        return self._reader is not None

    def attach(self, reader: ObjectReader) -> None:
        """See ``Tiering.attach``."""
        self._reader = reader

    def read_group(self, shard: int, epoch: str, segment: int, group: int) -> pa.RecordBatch:
        """Return the events of a row group of the segment that begins at an offset; see ``ObjectReader``."""
        found = self.objects.get((shard, segment))
        if found is None:
            raise LogDamaged(f"the index of shard {shard} names no object in the tier for its segment {segment}")
        if self._reader is None:
            raise TierUnreachable(
                f"events {found.first} to {found.end} of shard {shard} are in the tier alone: give --tier"
            )
        return self._reader.read_group(f"{shard}@{epoch}", found, group)


@final
class Tiering:
    """The part of a store that a tier is made with.  Every call blocks.

    Args:
        log: the log.
        catalog: objects of the tier.
    """

    def __init__(self, log: OpenLog, catalog: TierCatalog) -> None:
        self._log = log
        self._catalog = catalog
        self._objects = catalog.objects
        self._ended: Final = log.tails.ended
        self._trusted: set[int] = set()
        with self._log.index.read() as view:
            for shard in all_shards(view):
                last = last_segment(view, shard.number)
                if last is not None and (shard.number, last.first) in self._objects:
                    self._ended.add(shard.number)

    def attach(self, reader: ObjectReader) -> None:
        """Read what lies in the tier by ``reader`` from now on, and let retention leave to the tier what that has."""
        self._catalog.attach(reader)

    @property
    def is_attached(self) -> bool:
        """True once there is a tier."""
        return self._catalog.is_attached

    def trust(self, shard: int, *, trusted: bool) -> None:
        """Note if the manifest of a shard names what the log notes; if not, no file of the shard is removed."""
        if trusted:
            self._trusted.add(shard)
        else:
            self._trusted.discard(shard)

    def objects(self, shard: int) -> list[TierObject]:
        """Return what the tier has of a shard, in order."""
        return [found for (number, _), found in sorted(self._objects.items()) if number == shard]

    @property
    def has_objects(self) -> bool:
        """True if a tier has segments of this log."""
        return bool(self._objects)

    def skip(self, shard: int, offset: int) -> int:
        """Return the first offset from ``offset`` on that can be read without a tier; ``offset`` if there is a tier."""
        if self.is_attached:
            return offset
        with self._log.index.read() as view:
            for segment in spans(view, SEGMENTS, shard, offset):
                if segment.revision != IN_TIER or segment.first > offset:
                    break
                offset = segment.end
        return offset

    def seal(self, before: int) -> None:
        """Let segments grow no more whose first event was stored before a time, in microseconds since 1970."""
        with self._log.writing, self._log.index.read() as view:
            for shard in all_shards(view):
                segment = last_segment(view, shard.number)
                first = None if segment is None else chunk_from(view, shard.number, segment.first)
                if first is not None and first.timestamp < before:
                    self._ended.add(shard.number)

    def sealed(self) -> list[SealedSegment]:
        """Return what the tier is to get, by shard the oldest first."""
        with self._log.index.read() as view:
            return [
                SealedSegment(
                    shard=shard.number,
                    epoch=shard.epoch,
                    first=segment.first,
                    end=segment.end,
                    size=segment.size,
                )
                for shard in all_shards(view)
                for segment in self._closed(view, shard)
                if (shard.number, segment.first) not in self._objects
            ]

    def _closed(self, view: Transaction, shard: ShardState) -> Sequence[SegmentRecord]:
        segments = segments_of(view, shard.number)
        return segments if shard.number in self._ended else segments[:-1]

    def chunks(self, segment: SealedSegment) -> Iterator[Chunk]:
        """Yield the chunks of a segment, verified.

        Raises:
            DataLost: it was trimmed.
            LogDamaged: it is not what was written.
        """
        with self._log.index.read() as view:
            record = segment_at(view, segment.shard, segment.first)
            if record is None or (record.first, record.end) != (segment.first, segment.end):
                raise DataLost(f"the segment {segment.first} of shard {segment.shard_id} was trimmed")
            places = places_of(view, segment.shard, record)
        for begin in range(0, len(places), _AT_ONCE):
            yield from read_places(self._log.files, segment.shard, segment.epoch, places[begin : begin + _AT_ONCE])

    def note(self, shard: int, found: TierObject) -> bool:
        """Record that the tier has a segment; return False, without that, if the log has another one there.

        Raises:
            StoreFull: there is no room to write that down.
        """
        with self._log.writing:
            with self._log.index.write() as view:
                segment = segment_at(view, shard, found.first)
                if segment is None or segment.revision == IN_TIER:
                    return False
                if (segment.first, segment.end) != (found.first, found.end) or not _is_of(view, shard, segment, found):
                    return False
                view.put(TIERED, (shard, found.first), msgspec.msgpack.encode(found))
                last = last_segment(view, shard)
            if last is not None and last.first == found.first:
                self._ended.add(shard)
            self._objects[shard, found.first] = found
        return True

    def is_local(self, shard: int, first: int, end: int) -> bool:
        """Return whether all events of a range are on this disk."""
        with self._log.index.read() as view:
            at = first
            for segment in spans(view, SEGMENTS, shard, first):
                if segment.first > at or segment.revision == IN_TIER:
                    break
                at = segment.end
                if at >= end:
                    return True
        return False

    def forget(self, shard: int, first: int) -> bool:
        """Record that the tier does not have a segment; return False if this disk does not have it either: it stays."""
        with self._log.writing:
            with self._log.index.write() as view:
                segment = segment_at(view, shard, first)
                if segment is not None and segment.first == first and segment.revision == IN_TIER:
                    return False
                view.delete(TIERED, (shard, first))
            self._objects.pop((shard, first), None)
        return True

    def trimmed(self, shard: int, first: int) -> None:
        """Note that a segment's events were removed, and its record with them; its object is removed later."""
        self._objects.pop((shard, first), None)

    def drop(self, shard: int, before: int) -> None:
        """Remove files of segments below an offset that the tier has; reading goes on from there.

        Raises:
            StoreFull: there is no room even to write that down; some of it may be done.
        """
        if shard not in self._trusted:
            return
        with self._log.index.read() as view:
            record = view.get(SHARDS, shard)
            segments = [] if record is None else segments_of(view, shard)
        for segment in segments:
            found = self._objects.get((shard, segment.first))
            if segment.end > before or found is None or segment.revision == IN_TIER or segment.topics is None:
                continue  # where its topics are not known they are in the file alone
            assert record is not None
            try:
                with self._log.writing, self._log.index.write() as view:
                    left = self._leave_to_tier(view, shard, segment, found)
            except LogDamaged as error:
                _log.error(
                    "shard %d keeps a segment that is in the tier: %s",
                    shard,
                    error,
                    extra={"shard": shard, "reason": str(error)},
                )
                continue
            if left:
                self._log.files.remove(shard, record.epoch, segment.first, segment.revision)

    @staticmethod
    def _leave_to_tier(view: Transaction, number: int, segment: SegmentRecord, found: TierObject) -> bool:
        shard = view.get(SHARDS, number)
        if shard is None or segment_at(view, number, segment.first) != segment:
            return False  # trimmed meanwhile
        for group, (places, contents) in enumerate(_groups(view, number, segment, found)):
            delete_chunks(view, number, places)
            merged = ChunkPlace(
                first=places[0].first,
                count=places[-1].end - places[0].first,
                timestamp=places[-1].timestamp,
                segment=segment.first,
                position=group,
                size=sum(place.size for place in places),
                revision=IN_TIER,
            )
            view.put(CHUNKS, (number, merged.first), merged)
            if contents is not None:
                view.put(CONTENTS, (number, merged.first), contents)
        view.put(SEGMENTS, (number, segment.first), dataclasses.replace(segment, size=0, revision=IN_TIER))
        view.put(SHARDS, number, dataclasses.replace(shard, size=shard.size - segment.size))
        return True


def _groups(
    view: Transaction, shard: int, segment: SegmentRecord, found: TierObject
) -> list[tuple[list[ChunkPlace], Contents | None]]:
    """Return the chunks of each row group, and what it holds; raise LogDamaged if the object is not this segment."""
    groups: list[tuple[list[ChunkPlace], Contents | None]] = []
    places: list[ChunkPlace] = []
    ends = iter(found.groups)
    end = next(ends, segment.end)
    for place in places_of(view, shard, segment):
        places.append(place)
        if place.end == end:
            groups.append((places, _together(view, shard, places)))
            places, end = [], next(ends, segment.end)
    held = [contents.held for _, contents in groups if contents is not None]
    if places or len(groups) != len(found.groups) or (len(held) == len(groups) and sum(held) != found.rows):
        raise LogDamaged(f"the object {found.name} in the tier is not the segment {segment.first} of shard {shard}")
    return groups


def _is_of(view: Transaction, shard: int, segment: SegmentRecord, found: TierObject) -> bool:
    try:
        return bool(_groups(view, shard, segment, found))
    except LogDamaged:
        return False


def _together(view: Transaction, shard: int, places: Sequence[ChunkPlace]) -> Contents | None:
    """Return what chunks hold together; None: of one of them that was not noted."""
    counts: dict[int, int] = {}
    for contents in _contents(view, shard, places):
        if contents is None:
            return None
        for topic, count in zip(contents.topics, contents.counts, strict=True):
            counts[topic] = counts.get(topic, 0) + count
    return Contents(topics=list(counts), counts=list(counts.values()), held=sum(counts.values()))


def _contents(view: Transaction, shard: int, places: Sequence[ChunkPlace]) -> Iterator[Contents | None]:
    for place in places:
        yield view.get(CONTENTS, (shard, place.first))
