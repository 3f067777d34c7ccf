"""Records of the index: its tables, and how what they hold looks in bytes.

The records of queues, idempotency keys and leases are their owners' business (``iris.spark_bridge.queues``,
``iris.spark_bridge.outcomes``, ``iris.spark_bridge.server.leases``): the index has their tables.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, final

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.gaps import Gap, GapKey, read_gap
from iris.spark_bridge.log.numbering import Hole, Numbering
from iris.spark_bridge.log.transaction import Table, Transaction, raw_table, record_size

Place = tuple[int, int]
"""Number of a shard, and an offset in it."""

IN_TIER: Final = 2**32 - 1
"""Value in the place of a file's revision if the segment is in the tier, see ``iris.spark_bridge.log.tiering``."""

_PLACE: Final = struct.Struct(">IQ")
_NUMBER: Final = struct.Struct(">Q")
_SMALL: Final = struct.Struct(">I")

pack_number: Final = _NUMBER.pack


def unpack_number(data: bytes) -> int:
    """Return a number of eight bytes."""
    number: int = _NUMBER.unpack(data)[0]
    return number


def pack_place(place: Place) -> bytes:
    """Return a place as it stands in a key."""
    return _PLACE.pack(*place)


_unpack_place: Final = cast("Any", _PLACE.unpack)
"""Place of a key."""


# -- shards, segments and chunks --------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """One shard as it is now: it holds the events ``earliest`` up to but not including ``next``."""

    number: int
    epoch: str
    of: int = 0
    """Number of shards among which the members of the bridge divide the events; 0 if they do not.  It never changes."""
    earliest: int = 0
    next: int = 0
    size: int = 0
    """Size of the shard's chunks on the disk, in bytes."""
    timestamp: int = 0
    """Time of the newest event, in microseconds since 1970; 0 if there was none.  The next one is not older."""
    gap: int = -1
    """The greatest offset before which events are missing; -1: none are.  Not part of the shard's own record."""

    @property
    def id(self) -> str:
        """The shard's name in Spark's offsets: number and epoch."""
        return f"{self.number}@{self.epoch}"


_SHARD: Final = struct.Struct(">8sIQQqQ")


def _pack_shard(shard: ShardState) -> bytes:
    return _SHARD.pack(bytes.fromhex(shard.epoch), shard.of, shard.earliest, shard.next, shard.timestamp, shard.size)


def _unpack_shard(number: int, data: bytes) -> ShardState:
    epoch, of, earliest, following, timestamp, size = _SHARD.unpack(data)
    return ShardState(
        number=number, epoch=epoch.hex(), of=of, earliest=earliest, next=following, timestamp=timestamp, size=size
    )


SHARDS: Final = Table("shards", pack_number, unpack_number, _pack_shard, _unpack_shard, grows=True)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlace:
    """Place in a segment's file of the chunk that starts with event ``first``."""

    first: int
    count: int
    timestamp: int
    segment: int
    position: int
    size: int
    revision: int = 0
    """Revision of the segment's file: 0, or ``IN_TIER``."""

    @property
    def end(self) -> int:
        """First offset after the chunk."""
        return self.first + self.count

    @property
    def end_position(self) -> int:
        """End of the chunk in the segment's file, in bytes."""
        return self.position + self.size


_CHUNK: Final = struct.Struct(">QQIIq")


def _pack_chunk(chunk: ChunkPlace) -> bytes:
    data = _CHUNK.pack(chunk.segment, chunk.position, chunk.size, chunk.count, chunk.timestamp)
    return data + _SMALL.pack(chunk.revision) if chunk.revision else data


def _unpack_chunk(place: Place, data: bytes) -> ChunkPlace:
    segment, position, size, count, timestamp = _CHUNK.unpack_from(data)
    revision = _SMALL.unpack(data[_CHUNK.size :])[0] if len(data) > _CHUNK.size else 0
    return ChunkPlace(
        first=place[1],
        count=count,
        timestamp=timestamp,
        segment=segment,
        position=position,
        size=size,
        revision=revision,
    )


CHUNKS: Final[Table[Place, ChunkPlace]] = Table(
    "chunks", pack_place, _unpack_place, _pack_chunk, _unpack_chunk, grows=True
)
"""Chunks by the place of their first event."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """One segment file: events from ``first`` up to but not including ``end``, in ``size`` bytes.

    ``written`` is the wall clock when the last of them came.  ``last_timestamp`` is what that event says, which is not
    less than what those before say, whatever the clock did.
    """

    first: int
    end: int
    size: int
    written: int
    last_timestamp: int
    revision: int = 0
    """Revision of its file: 0, or ``IN_TIER``."""
    topics: int | None = None
    """Number of the segment's topics. None if they are not known: a copy that catches up gets them at last, and may be
    promoted by force before."""


_SEGMENT: Final = struct.Struct(">QQqq")
_TOPICS: Final = struct.Struct(">II")
"""Fields after a segment: its revision, and its number of topics."""
_NOT_KNOWN: Final = 2**32 - 1


def _pack_segment(segment: SegmentRecord) -> bytes:
    data = _SEGMENT.pack(segment.end, segment.size, segment.written, segment.last_timestamp)
    if segment.topics is not None or segment.revision:
        data += _TOPICS.pack(segment.revision, _NOT_KNOWN if segment.topics is None else segment.topics)
    return data


def _unpack_segment(place: Place, data: bytes) -> SegmentRecord:
    end, size, written, last_timestamp = _SEGMENT.unpack_from(data)
    revision, topics = _TOPICS.unpack(data[_SEGMENT.size :]) if len(data) > _SEGMENT.size else (0, _NOT_KNOWN)
    return SegmentRecord(
        first=place[1],
        end=end,
        size=size,
        written=written,
        last_timestamp=last_timestamp,
        revision=revision,
        topics=None if topics == _NOT_KNOWN else topics,
    )


SEGMENTS: Final[Table[Place, SegmentRecord]] = Table(
    "segments", pack_place, _unpack_place, _pack_segment, _unpack_segment, grows=True
)
"""Segments by the place of their first event."""

TIERED: Final[Table[Place, bytes]] = Table("tiered", pack_place, _unpack_place, bytes, lambda _, data: data)
"""Objects of the tier, by the place of a segment."""


class _Span(Protocol):
    @property
    def end(self) -> int: ...


S = TypeVar("S", bound=_Span)


def spans(view: Transaction, table: Table[Place, S], shard: int, start: int = 0) -> Iterator[S]:
    """Yield the chunks, or the segments, of a shard in order, beginning with the one that holds the event ``start``."""
    for (number, first), found in view.items_around(table, (shard, start)):
        if number > shard:
            return
        if number == shard and (first >= start or found.end > start):
            yield found


def all_shards(view: Transaction) -> list[ShardState]:
    """Return every shard by number."""
    return [shard for _, shard in view.items(SHARDS)]


def segments_of(view: Transaction, shard: int) -> list[SegmentRecord]:
    """Return the segments of a shard, oldest first."""
    return [*spans(view, SEGMENTS, shard)]


def sound_chunks(view: Transaction, shard: int, start: int) -> Iterator[ChunkPlace]:
    """Yield the chunks of a shard from the one that holds ``start`` on, without those whose record is damaged."""
    at = start
    for (number, _), chunk in view.sound_from(CHUNKS, (shard, start)):
        if number > shard:
            return
        if number == shard and chunk.end > at:
            yield chunk
            at = chunk.end


def chunk_from(view: Transaction, shard: int, start: int) -> ChunkPlace | None:
    """Return the first chunk of a shard that begins at or behind ``start``."""
    place, chunk = next(view.items_from(CHUNKS, (shard, start)), ((-1, 0), None))
    return chunk if place[0] == shard else None


def last_segment(view: Transaction, shard: int) -> SegmentRecord | None:
    """Return the segment that a shard is appended to."""
    found = view.last_to(SEGMENTS, (shard, 2**64 - 1))
    return found[1] if found is not None and found[0][0] == shard else None


def segment_at(view: Transaction, shard: int, start: int) -> SegmentRecord | None:
    """Return the segment that holds the event ``start``, or the next one behind it."""
    return next(spans(view, SEGMENTS, shard, start), None)


def delete_chunks(view: Transaction, shard: int, places: Sequence[ChunkPlace]) -> None:
    """Delete chunks and what they are known to hold."""
    for place in places:
        view.delete(CHUNKS, (shard, place.first))
        view.delete(CONTENTS, (shard, place.first))


# -- topics -----------------------------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Contents of a chunk."""

    topics: Sequence[int]
    """Topics of the chunk, by their numbers in its segment."""
    counts: Sequence[int]
    """Number of events on each of these topics."""
    held: int
    """Number of all events of the chunk."""


def _pack_numbers(numbers: Sequence[int]) -> bytes:
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack_numbers(data: bytes) -> Sequence[int]:
    """Return numbers; of a thousand it takes a microsecond, where ``struct`` takes thirty."""
    numbers = array("I", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _pack_contents(contents: Contents) -> bytes:
    return _SMALL.pack(contents.held) + _pack_numbers([*contents.topics, *contents.counts])


def _unpack_contents(_place: Place, data: bytes) -> Contents:
    numbers = _unpack_numbers(data[_SMALL.size :])
    half = len(numbers) // 2
    return Contents(topics=numbers[:half], counts=numbers[half:], held=_SMALL.unpack_from(data)[0])


CONTENTS: Final[Table[Place, Contents]] = Table("contents", pack_place, _unpack_place, _pack_contents, _unpack_contents)
"""Contents of chunks, by the place of their first event."""


TOPICS: Final[Table[bytes, Sequence[str]]] = Table(
    "topics", bytes, bytes, lambda topics: "\n".join(topics).encode(), lambda _, data: data.decode().split("\n")
)
"""Topics of segments, by the place of the segment and the number of the first of them."""


def put_topics(view: Transaction, shard: int, segment: int, number: int, topics: Sequence[str]) -> None:
    """Write topics that are new in a segment; ``number`` is that of the first one."""
    view.put(TOPICS, _PLACE.pack(shard, segment) + _SMALL.pack(number), topics)


def read_topics(view: Transaction, shard: int, segment: SegmentRecord, known: int = 0) -> list[str]:
    """Return the topics of a segment by their numbers, without the first ``known``."""
    if not segment.topics:
        return []
    prefix = _PLACE.pack(shard, segment.first)
    found: list[str] = []
    for key, topics in view.items_from(TOPICS, prefix + _SMALL.pack(known)):
        if not key.startswith(prefix) or _SMALL.unpack(key[len(prefix) :])[0] != known + len(found):
            break
        found += topics
    # A topic that is not found would be mistaken for one of which the segment holds nothing.
    if known + len(found) != segment.topics:
        raise LogDamaged(
            f"the index is damaged: of the segment {segment.first} of shard {shard} it has {known + len(found)} "
            f"topics, not {segment.topics}"
        )
    return found


def delete_topics(view: Transaction, shard: int, segment: int) -> None:
    """Delete the topics of a segment."""
    prefix = _PLACE.pack(shard, segment)
    for key in [key for key, _ in view.under(TOPICS, prefix)]:
        view.delete(TOPICS, prefix + key)


Removed = tuple[int, str]
"""Shard and topic; the empty topic stands for all that are not named."""


REMOVALS: Final[Table[Removed, int]] = Table(
    "removals",
    lambda removed: _SMALL.pack(removed[0]) + removed[1].encode(),
    lambda key: (_SMALL.unpack_from(key)[0], key[_SMALL.size :].decode()),
    pack_number,
    lambda _, data: unpack_number(data),
)
"""Offsets below which events of a topic have been removed."""


# -- publishers, and what is missing of them --------------------------------------------------------------------

BLOCK_BYTES: Final = 512
"""Size of a block of a publisher's window, in bytes."""

BLOCKS: Final = raw_table("blocks")
"""Blocks of publishers' windows, by publisher and number."""


class PublisherRecord(NamedTuple):
    """Record of a publisher."""

    timestamp: int = 0
    """Time at which its last event arrived, in microseconds since 1970."""
    blocks: int = 0
    """Number of blocks of its window."""
    numbered: int = 0
    """Size of its numberings, in bytes."""
    owner: str = ""
    """Cluster for which it is counted; empty if it is not known."""

    @property
    def size(self) -> int:
        """Size of all that the log keeps of it, in bytes."""
        return record_size(_PUBLISHER.size + len(self.owner.encode())) + self.blocks * _BLOCK_SIZE + self.numbered


_PUBLISHER: Final = struct.Struct(">qIQ")
_BLOCK_SIZE: Final = record_size(BLOCK_BYTES)


def _pack_publisher(record: PublisherRecord) -> bytes:
    return _PUBLISHER.pack(record.timestamp, record.blocks, record.numbered) + record.owner.encode()


def _unpack_publisher(_key: bytes, data: bytes) -> PublisherRecord:
    timestamp, blocks, numbered = _PUBLISHER.unpack_from(data)
    return PublisherRecord(timestamp, blocks, numbered, data[_PUBLISHER.size :].decode())


PUBLISHERS: Final = Table("publishers", bytes, bytes, _pack_publisher, _unpack_publisher)


class TopicNumbers(NamedTuple):
    """Record of what a publisher has numbered on one topic."""

    numbering: Numbering
    timestamp: int
    """Time at which its last event arrived, in microseconds since 1970."""


_NUMBERING: Final = struct.Struct(">Qq")
_HOLE: Final = struct.Struct(">QQIQ")


def _pack_numbers_of_topic(numbers: TopicNumbers) -> bytes:
    numbering = numbers.numbering
    data = _NUMBERING.pack(numbering.next, numbers.timestamp)
    return data + b"".join(_HOLE.pack(*hole) for hole in numbering.holes) if numbering.holes else data


def _unpack_numbers_of_topic(_key: bytes, data: bytes) -> TopicNumbers:
    following, timestamp = _NUMBERING.unpack_from(data)
    return TopicNumbers(Numbering(following, map(Hole._make, _HOLE.iter_unpack(data[_NUMBERING.size :]))), timestamp)


NUMBERINGS: Final = Table("numberings", bytes, bytes, _pack_numbers_of_topic, _unpack_numbers_of_topic)
"""Numbers that publishers have given, by publisher and topic."""

GapPlace = tuple[int, int, bytes]
"""Shard, offset, and a digest of topic and cluster."""


def gap_place(key: GapKey) -> GapPlace:
    """Return under what a gap stands."""
    shard, offset, topic, cluster = key
    return shard, offset, hashlib.blake2b(f"{topic}\0{cluster}".encode(), digest_size=8).digest()


_GAP: Final = struct.Struct(">IQ8s")


GAPS: Final[Table[GapPlace, Gap]] = Table(
    "gaps",
    lambda place: _GAP.pack(*place),
    lambda key: cast("GapPlace", _GAP.unpack(key)),
    Gap.to_record,
    lambda place, data: read_gap(place[0], place[1], data),
)


# -- readers and writers ----------------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A named position of a reader: offsets by shard id."""

    group: str
    start: Mapping[str, int]
    """First offsets of the group; they never change."""
    offsets: Mapping[str, int]
    """Next offsets of the group: it has read the events before them."""
    timestamp: int
    """Time of the last change, in microseconds since 1970."""


def _pack_cursor(cursor: Cursor) -> bytes:
    record = {"start": dict(cursor.start), "offsets": dict(cursor.offsets), "timestamp": cursor.timestamp}
    return json.dumps(record).encode()


def _unpack_cursor(group: str, data: bytes) -> Cursor:
    value: dict[str, Any] = json.loads(data)
    return Cursor(group=group, start=value["start"], offsets=value["offsets"], timestamp=value["timestamp"])


CURSORS: Final = Table("cursors", str.encode, bytes.decode, _pack_cursor, _unpack_cursor)
"""Cursors by group."""


class Owner(NamedTuple):
    """Owner of a name."""

    since: int
    """Time from which on, in microseconds since 1970."""
    cluster: str


_DATE: Final = struct.Struct(">q")


Name = tuple[str, str]
"""Kind and name: ``group`` or ``query``."""


OWNERS: Final[Table[Name, Owner]] = Table(
    "owners",
    lambda name: f"{name[0]}/{name[1]}".encode(),
    lambda key: cast("Name", tuple(key.decode().split("/", 1))),
    lambda owner: _DATE.pack(owner.since) + owner.cluster.encode(),
    lambda _, data: Owner(_DATE.unpack_from(data)[0], data[_DATE.size :].decode()),
)
"""Clusters that own the names of groups and queries."""


class SinkBatch(NamedTuple):
    """The last batch of a query that is part of the log."""

    batch: int
    timestamp: int
    """Time at which it was committed, in microseconds since 1970."""


_SINK: Final = struct.Struct(">Qq")


SINKS: Final[Table[str, SinkBatch]] = Table(
    "sinks",
    str.encode,
    bytes.decode,
    lambda last: _SINK.pack(*last),
    lambda _, data: SinkBatch._make(_SINK.unpack(data)),
)
"""Batches by query."""

SUBSCRIBERS: Final = raw_table("subscribers")
"""Records of durable subscribers that were kept, by digest."""


# -- the bridge -------------------------------------------------------------------------------------------------

MEMBERS: Final = Table("members", pack_number, unpack_number, str.encode, lambda _, data: data.decode())
"""Shards that the bridge is known to have, with the cluster at which each was found last."""

REPLICATION: Final = raw_table("replication", is_own=True)
"""State of this log among its copies."""

QUEUES: Final = raw_table("queues")
KEYS: Final = raw_table("keys")
KEY_ENDS: Final = raw_table("key_ends")
KEY_COUNTS: Final = Table("key_counts", bytes, bytes, pack_number, lambda _, data: unpack_number(data))
"""Use of each kind of record with a quota, by kind and cluster."""
LEASES: Final = raw_table("leases")


TABLES: Final[Mapping[str, Table[Any, Any]]] = {
    table.name: table
    for table in cast(
        "tuple[Table[Any, Any], ...]",
        (
            SHARDS, CHUNKS, SEGMENTS, BLOCKS, PUBLISHERS, CURSORS, SINKS, OWNERS, NUMBERINGS, GAPS, SUBSCRIBERS,
            MEMBERS, TOPICS, CONTENTS, REMOVALS, REPLICATION, TIERED, QUEUES, KEYS, KEY_ENDS, KEY_COUNTS, LEASES,
        ),
    )
}  # fmt: skip

REPLACED: Final = tuple(table for table in TABLES.values() if not table.is_own and not table.grows)
"""Tables that a copy which begins to follow receives in full: they do not grow with the events."""
