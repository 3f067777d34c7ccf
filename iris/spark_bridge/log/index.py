"""Index of a log: which events exist and where their chunks lie.  An LMDB environment; the truth about the log.

Everything that one append changes is changed in one transaction: the events, their place, the publishers' windows, and
what became of jobs, requests and leases meanwhile.  The transaction is synchronous and happens after the chunk's bytes
are on the disk.  LMDB never overwrites a page that a committed state uses, so a crash leaves the state before or after.

The records of queues, idempotency keys and leases are their owners' business (``iris.spark_bridge.queues``,
``iris.spark_bridge.outcomes``, ``iris.spark_bridge.server.leases``): the index has their tables.

Why LMDB for the index and plain files for the chunks, measured with 1,000 events of 1 KB per append: all in LMDB
285,000 events/s with a growing file, this 981,000.  Also, removing a file gives the room back to a full disk at once,
while deleting in LMDB first needs some.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
import struct
import sys
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal, NamedTuple, final

import lmdb

from iris.kernel.names import account_of
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.events.gaps import Gap, GapKey, read_gap
from iris.spark_bridge.log.checked_table import (
    CheckedTable,
    IndexWitness,
    Journaled,
    Quota,
    QuotaKind,
    Record,
    record_size,
    seal,
)
from iris.spark_bridge.log.numbering import Hole, Numbering
from iris.spark_bridge.log.replication.journal import ChangeHead, Journal
from iris.spark_bridge.log.segments import has_room, is_full

_log: Final = logging.getLogger("iris")

MAP_BYTES: Final = 16 * 1024 * 1024 * 1024
"""Address space, not memory: room for the index of about 100 million chunks."""

_READERS: Final = 512
_LOCK_BYTES: Final = 64 * (_READERS + 4)
"""A line of cache for each reader, and the table's head."""

_WRITTEN_BY: Final = b"iris log "
_FORMAT: Final = _WRITTEN_BY + b"8"
_PLACE: Final = struct.Struct(">IQ")
_CHUNK: Final = struct.Struct(">QQIIq")
_SEGMENT: Final = struct.Struct(">QQqq")
_REVISION: Final = struct.Struct(">I")
"""Field after a chunk whose file was written anew; the others have revision 0."""
_TOPICS: Final = struct.Struct(">II")
"""Fields after a segment: its revision, and its number of topics."""
_NOT_NOTED: Final = 2**32 - 1
"""Value in the place of the number of a segment's topics if these were not noted."""
_TOPIC: Final = struct.Struct(">I")
_REMOVAL: Final = struct.Struct(">Q")
_SHARD: Final = struct.Struct(">8sQQqQ")
_PUBLISHER: Final = struct.Struct(">qI")
_BLOCK: Final = 512
"""Size of a block of a publisher's window, in bytes."""
_SINK: Final = struct.Struct(">Qq")
_NUMBER: Final = struct.Struct(">Q")
_OWNER: Final = struct.Struct(">q")
_NUMBERING: Final = struct.Struct(">Qq")
_HOLE: Final = struct.Struct(">QQIQ")
_DIVISION: Final = b"division"

_TABLES: Final = (
    *("shards", "chunks", "segments", "blocks", "publishers", "cursors", "sinks"),
    "owners",
    *("numberings", "gaps", "subscribers"),
    "members",
    *("topics", "contents", "removals"),
    "replication",
    "tiered",
    *("queues", "keys", "key_ends", "key_counts", "leases"),
    "division",
)
_OWN: Final = frozenset({"replication"})
"""Tables with this log's own state among its copies; copies do not repeat them."""

REPLACED: Final = tuple(name for name in _TABLES if name not in _OWN and name not in {"chunks", "segments", "shards"})
"""Tables that a copy which begins to follow receives in full: they do not grow with the events."""

NO_END: Final = -1

IN_TIER: Final = 2**32 - 1
"""Value in the place of a file's revision if the segment is in the tier, see ``iris.spark_bridge.log.tiering``."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One shard: its events are numbered from ``earliest`` up to but not including ``next``."""

    number: int
    epoch: str
    earliest: int
    next: int
    timestamp: int = 0
    """Time of the newest event, in microseconds since 1970; the next one is not older."""
    size: int = 0
    """Size of the shard's chunks, in bytes."""


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
    """Revision of the segment's file."""

    @property
    def end(self) -> int:
        """First offset after the chunk."""
        return self.first + self.count

    @property
    def end_position(self) -> int:
        """End of the chunk in the segment's file, in bytes."""
        return self.position + self.size


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
    """Number of times its file was written anew, without events that were to go."""
    topics: int | None = None
    """Number of the segment's topics. None if they are not known: a copy that catches up gets them at last, and may be
    promoted by force before."""


class _PublisherSize(NamedTuple):
    """Size of a publisher's numberings, and of all its records, in bytes."""

    numbered: int
    size: int


@final
class _Table:
    """A table as an attribute of a view."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._attribute = f"_{name}"

    def __get__(self, view: IndexView, _owner: type[IndexView]) -> CheckedTable:
        found = vars(view)[self._attribute] = view._table(self._name)
        return found


class IndexView:
    """The index as one transaction sees it.  Every call may raise LogDamaged."""

    def __init__(
        self,
        index: Index,
        transaction: lmdb.Transaction[bytes],
        databases: Mapping[str, lmdb._Database],
        journal: Journal | None = None,
    ) -> None:
        self._index = index
        self._transaction = transaction
        self._journal = journal
        self._databases = databases
        self._opened: dict[str, CheckedTable] = {}

    _shards = _Table("shards")
    _chunks = _Table("chunks")
    _segments = _Table("segments")
    _blocks = _Table("blocks")
    _publishers = _Table("publishers")
    _cursors = _Table("cursors")
    _sinks = _Table("sinks")
    _owners = _Table("owners")
    _numberings = _Table("numberings")
    _gaps = _Table("gaps")
    _subscribers = _Table("subscribers")
    _members = _Table("members")
    _tiered = _Table("tiered")
    _topics = _Table("topics")
    _contents = _Table("contents")
    _removals = _Table("removals")

    def _table(self, name: str) -> CheckedTable:
        """Return a table, which is opened when it is first needed: few transactions need more than five of 23."""
        found = self._opened.get(name)
        if found is None:
            journal = self._journal
            records = None if journal is None else journal.own if name in _OWN else journal.records
            found = self._opened[name] = CheckedTable(self._transaction, self._databases[name], name, records)
        return found

    def tables(self) -> Mapping[str, CheckedTable]:
        """Return every table that the index has, by name."""
        return {name: self._table(name) for name in self._databases}

    def table(self, name: Literal["queues", "keys", "key_ends", "key_counts", "leases"]) -> CheckedTable:
        """Return a table whose records are its owner's business."""
        return self._table(name)

    def quota(self, kind: QuotaKind) -> Quota:
        """Return what is kept of a kind for each cluster."""
        return Quota(self._table("key_counts"), kind, self._index)

    def part(self) -> AbstractContextManager[IndexView]:
        """Change something within this transaction: if the block raises, of what it has changed nothing is kept.

        In the block only the view that it gets may be used.

        Raises:
            StoreFull: there is no room for that; the transaction goes on without it.
        """
        return self._index.part(self._transaction, self._journal)

    @property
    def number(self) -> int:
        """Number of this transaction; of one that reads, that of the last change that it sees."""
        return self._transaction.id()

    # -- shards ---------------------------------------------------------------------------------------------

    def shard(self, number: int) -> ShardRecord | None:
        """Return a shard, or None if there is none of that number."""
        return next((shard for shard in self.shards() if shard.number == number), None)

    def shards(self) -> list[ShardRecord]:
        """Return every shard by number."""
        return [_unpack_shard(key, value) for key, value in self._shards.records()]

    def put_shard(self, shard: ShardRecord) -> None:
        """Write a shard."""
        self._shards.put(*_pack_shard(shard))

    # -- chunks and segments --------------------------------------------------------------------------------

    def chunks(self, shard: int, start: int) -> Iterator[ChunkPlace]:
        """Yield the chunks of a shard in order, beginning with the one that holds the event ``start``."""
        place = _PLACE.pack(shard, start)
        before = self._chunks.last_to(place)
        if before is not None and _PLACE.unpack(before[0])[0] == shard:
            place = before[0]
        for key, value in self._chunks.records_from(place):
            number, first = _PLACE.unpack(key)
            if number != shard:
                return
            chunk = _unpack_chunk(first, value)
            if chunk.end > start:
                yield chunk

    def sound_chunks(self, shard: int, start: int) -> Iterator[ChunkPlace]:
        """Yield the same without those whose record is damaged."""
        at = start
        for key, value in self._chunks.sound_from(_PLACE.pack(shard, start)):
            number, first = _PLACE.unpack(key)
            if number != shard:
                if number > shard:
                    return
                continue
            chunk = _unpack_chunk(first, value)
            if chunk.end > at:
                yield chunk
                at = chunk.end

    def chunk_from(self, shard: int, start: int) -> ChunkPlace | None:
        """Return the first chunk of a shard that begins at or behind ``start``."""
        for key, value in self._chunks.records_from(_PLACE.pack(shard, start)):
            number, first = _PLACE.unpack(key)
            return _unpack_chunk(first, value) if number == shard else None
        return None

    def put_chunk(self, shard: int, chunk: ChunkPlace) -> None:
        """Write the place of a chunk."""
        self._chunks.put(*_pack_chunk(shard, chunk))

    def delete_chunks(self, shard: int, before: int, limit: int) -> int:
        """Delete chunks that end at or before ``before``, at most ``limit``; return how many."""
        dead: list[bytes] = []
        for key, value in self._chunks.records_from(_PLACE.pack(shard, 0)):
            number, first = _PLACE.unpack(key)
            if number != shard or _unpack_chunk(first, value).end > before or len(dead) == limit:
                break
            dead.append(key)
        for key in dead:
            self._chunks.delete(key)
            self._contents.delete(key)
        return len(dead)

    def delete_chunk(self, shard: int, first: int) -> None:
        """Delete a chunk and what it is known to hold."""
        key = _PLACE.pack(shard, first)
        self._chunks.delete(key)
        self._contents.delete(key)

    def segments(self, shard: int) -> list[SegmentRecord]:
        """Return the segments of a shard, oldest first."""
        found: list[SegmentRecord] = []
        for key, value in self._segments.records_from(_PLACE.pack(shard, 0)):
            number, first = _PLACE.unpack(key)
            if number != shard:
                break
            found.append(_unpack_segment(first, value))
        return found

    def segments_from(self, shard: int, start: int) -> Iterator[SegmentRecord]:
        """Yield the segments of a shard in order, beginning with the one that holds the event ``start``."""
        place = _PLACE.pack(shard, start)
        before = self._segments.last_to(place)
        if before is not None and _PLACE.unpack(before[0])[0] == shard:
            place = before[0]
        for key, value in self._segments.records_from(place):
            number, first = _PLACE.unpack(key)
            if number != shard:
                return
            segment = _unpack_segment(first, value)
            if segment.end > start:
                yield segment

    def check(self) -> None:
        """Read every record of every table: what no reader of events comes across is what repeats are known by."""
        for table in self.tables().values():
            for _ in table.records():
                pass

    def check_segments(self) -> None:
        """Verify every segment's record: a file without one counts as the rest of a crash, and is deleted."""
        for _ in self._segments.records():
            pass

    def last_segment(self, shard: int) -> SegmentRecord | None:
        """Return the segment that a shard is appended to."""
        record = self._segments.last_to(_PLACE.pack(shard, 2**64 - 1))
        if record is None:
            return None
        number, first = _PLACE.unpack(record[0])
        return _unpack_segment(first, record[1]) if number == shard else None

    def put_segment(self, shard: int, segment: SegmentRecord) -> None:
        """Write a segment."""
        self._segments.put(*_pack_segment(shard, segment))

    def delete_segment(self, shard: int, first: int) -> None:
        """Delete the record of a segment."""
        self._segments.delete(_PLACE.pack(shard, first))

    def tiered(self) -> list[tuple[int, int, bytes]]:
        """Return shard, first offset and record of each segment that the tier has."""
        return [(*_PLACE.unpack(key), value) for key, value in self._tiered.records()]

    def put_tiered(self, shard: int, segment: int, record: bytes) -> None:
        """Write that the tier has a segment."""
        self._tiered.put(_PLACE.pack(shard, segment), record)

    def delete_tiered(self, shard: int, segment: int) -> None:
        """Write that the tier has not got a segment."""
        self._tiered.delete(_PLACE.pack(shard, segment))

    # -- topics ---------------------------------------------------------------------------------------------

    def put_topics(self, shard: int, segment: int, number: int, topics: Sequence[str]) -> None:
        """Write topics that are new in a segment; ``number`` is that of the first one."""
        self._topics.put(_PLACE.pack(shard, segment) + _TOPIC.pack(number), "\n".join(topics).encode())

    def topics(self, shard: int, segment: SegmentRecord, known: int = 0) -> list[str]:
        """Return the topics of a segment by their numbers, without the first ``known``."""
        if not segment.topics:
            return []
        prefix = _PLACE.pack(shard, segment.first)
        found: list[str] = []
        for key, value in self._topics.records_from(prefix + _TOPIC.pack(known)):
            if not key.startswith(prefix):
                break
            if _TOPIC.unpack(key[len(prefix) :])[0] != known + len(found):
                break
            found += value.decode().split("\n")
        # A topic that is not found would be mistaken for one of which the segment holds nothing.
        if known + len(found) != segment.topics:
            raise LogDamaged(
                f"the index is damaged: of the segment {segment.first} of shard {shard} it has {known + len(found)} "
                f"topics, not {segment.topics}"
            )
        return found

    def delete_topics(self, shard: int, segment: int) -> None:
        """Delete the topics of a segment."""
        prefix = _PLACE.pack(shard, segment)
        for key in [key for key, _ in self._topics.records_of(prefix)]:
            self._topics.delete(prefix + key)

    def put_contents(self, shard: int, first: int, contents: Contents) -> None:
        """Write how many events of which topics a chunk holds."""
        value = b"".join((_TOPIC.pack(contents.held), _pack_numbers(contents.topics), _pack_numbers(contents.counts)))
        self._contents.put(_PLACE.pack(shard, first), value)

    def contents(self, shard: int, first: int) -> Contents | None:
        """Return how many events of which topics a chunk holds; None: that was not noted."""
        value = self._contents.get(_PLACE.pack(shard, first))
        if value is None:
            return None
        half = (len(value) + _TOPIC.size) // 2
        return Contents(
            topics=_unpack_numbers(value[_TOPIC.size : half]),
            counts=_unpack_numbers(value[half:]),
            held=_TOPIC.unpack_from(value)[0],
        )

    def removals(self) -> dict[int, dict[str, int]]:
        """Return, by shard and topic, the offset below which events have been removed.

        That of the empty topic is for all topics that are not named.
        """
        found: dict[int, dict[str, int]] = {}
        for key, value in self._removals.records():
            shard = _TOPIC.unpack_from(key)[0]
            found.setdefault(shard, {})[key[_TOPIC.size :].decode()] = _REMOVAL.unpack(value)[0]
        return found

    def put_removal(self, shard: int, topic: str, before: int) -> None:
        """Write that events of a topic below an offset have been removed."""
        self._removals.put(_TOPIC.pack(shard) + topic.encode(), _REMOVAL.pack(before))

    def delete_removal(self, shard: int, topic: str) -> None:
        """Delete what was removed of a topic."""
        self._removals.delete(_TOPIC.pack(shard) + topic.encode())

    # -- publishers -----------------------------------------------------------------------------------------

    def publisher_blocks(self, publisher: bytes) -> dict[int, bytes]:
        """Return the blocks of a publisher's window."""
        blocks = {_NUMBER.unpack(key)[0]: value for key, value in self._blocks.records_of(publisher)}
        known = self._publishers.get(publisher)
        expected = 0 if known is None else _PUBLISHER.unpack_from(known)[1]
        if len(blocks) != expected:
            raise LogDamaged(
                f"the index is damaged: of publisher {publisher.hex()} it has {len(blocks)} blocks, not {expected}"
            )
        return blocks

    def put_publisher(
        self, publisher: bytes, blocks: int, timestamp: int, *, numbered: int | None = None, owner: str = ""
    ) -> None:
        """Write how many blocks a publisher's window has, and when its last event arrived.

        Args:
            publisher: id of the publisher.
            blocks: blocks of the publisher's window.
            timestamp: microseconds since 1970.
            numbered: bytes of its numberings; None: as many as before.
            owner: the cluster for which that is counted; "": it is not known now.
        """
        before, former = self._kept(self._publishers.get(publisher))
        if numbered is None:
            numbered = before.numbered
        owner = owner or former
        value = _PUBLISHER.pack(timestamp, blocks) + _NUMBER.pack(numbered) + owner.encode()
        self._publishers.put(publisher, value)
        now, _ = self._kept(value)
        quota = self.quota("publishers")
        if owner != former:
            quota.add(former, -before.size)
            quota.add(owner, now.size)
        elif now.size != before.size:
            quota.add(owner, now.size - before.size)

    @staticmethod
    def _kept(value: bytes | None) -> tuple[_PublisherSize, str]:
        """Return what is counted for the record of a publisher, and for whom."""
        if value is None:
            return _PublisherSize(0, 0), ""
        numbered: int = _NUMBER.unpack_from(value, _PUBLISHER.size)[0]
        blocks: int = _PUBLISHER.unpack_from(value)[1]
        size = record_size(len(value)) + blocks * record_size(_BLOCK) + numbered
        return _PublisherSize(numbered, size), value[_PUBLISHER.size + _NUMBER.size :].decode()

    def oldest_publishers(self, owner: str, size: int) -> list[bytes]:
        """Return the publishers of an account whose last events are the oldest, which have so many bytes together."""
        own: list[tuple[int, bytes, int]] = []
        for key, value in self._publishers.records():
            kept, whose = self._kept(value)
            if account_of(whose) == owner and kept.size:
                own.append((_PUBLISHER.unpack_from(value)[0], key, kept.size))
        found: list[bytes] = []
        for _, key, counted in sorted(own):
            if size <= 0:
                break
            found.append(key)
            size -= counted
        return found

    def put_publisher_block(self, publisher: bytes, block: int, bits: bytes) -> None:
        """Write one block of a publisher's window."""
        self._blocks.put(publisher + _NUMBER.pack(block), bits)

    def delete_publisher_block(self, publisher: bytes, block: int) -> None:
        """Delete one block of a publisher's window."""
        self._blocks.delete(publisher + _NUMBER.pack(block))

    def publishers_seen_before(self, timestamp: int) -> list[bytes]:
        """Return the publishers whose last event arrived before ``timestamp``."""
        return [key for key, value in self._publishers.records() if _PUBLISHER.unpack_from(value)[0] < timestamp]

    def delete_publisher(self, publisher: bytes) -> None:
        """Delete all that is known of a publisher."""
        for block in self.publisher_blocks(publisher):
            self.delete_publisher_block(publisher, block)
        for topic, _ in self.numberings(publisher):
            self.delete_numbering(publisher, topic)
        kept, owner = self._kept(self._publishers.get(publisher))
        self._publishers.delete(publisher)
        if kept.size:
            self.quota("publishers").add(owner, -kept.size)

    # -- numberings and gaps --------------------------------------------------------------------------------

    def numberings(self, publisher: bytes) -> list[tuple[str, Numbering]]:
        """Return the numberings of a publisher's topics, the most recently used last."""
        found: list[tuple[int, str, Numbering]] = []
        for topic, value in self._numberings.records_of(publisher):
            following, received = _NUMBERING.unpack_from(value)
            holes = map(Hole._make, _HOLE.iter_unpack(value[_NUMBERING.size :]))
            found.append((received, topic.decode(), Numbering(following, holes)))
        found.sort(key=lambda entry: entry[0])
        return [(topic, numbering) for _, topic, numbering in found]

    def put_numberings(self, publisher: bytes, numberings: Mapping[str, Numbering], timestamp: int) -> None:
        """Write the numberings of topics of a publisher, and when the last events of these arrived."""
        records: list[Record] = []
        for topic, numbering in numberings.items():
            value = _NUMBERING.pack(numbering.next, timestamp)
            if numbering.holes:
                value += b"".join(_HOLE.pack(*hole) for hole in numbering.holes)
            records.append((publisher + topic.encode(), value))
        self._numberings.put_all(records)

    def delete_numbering(self, publisher: bytes, topic: str) -> None:
        """Forget what of a topic of a publisher has been numbered."""
        self._numberings.delete(publisher + topic.encode())

    def gaps(self) -> list[Gap]:
        """Return every gap."""
        found: list[Gap] = []
        for key, value in self._gaps.records():
            shard, offset = _PLACE.unpack_from(key)
            found.append(read_gap(shard, offset, value))
        return found

    def put_gap(self, gap: Gap) -> None:
        """Write a gap."""
        self._gaps.put(_gap_key((gap.shard, gap.offset, gap.topic, gap.cluster)), gap.to_record())

    def delete_gap(self, key: GapKey) -> None:
        """Delete a gap."""
        self._gaps.delete(_gap_key(key))

    # -- sinks ----------------------------------------------------------------------------------------------

    def sink(self, query: bytes, *, complete: bool = False) -> int | None:
        """Return the last batch of a query that was committed.

        Args:
            query: name of the query.
            complete: True if the table has been read in full already; else it is, before a query counts as new.
        """
        value = self._sinks.get(query)
        if value is None:
            if not complete:
                for _ in self._sinks.records():
                    pass
            return None
        batch: int = _SINK.unpack(value)[0]
        return batch

    def delete_sink(self, query: bytes) -> bool:
        """Forget a query; return whether it had committed a batch."""
        return self._sinks.delete(query)

    def put_sink(self, query: bytes, batch: int, timestamp: int) -> None:
        """Write that a batch of a query is part of the log."""
        self._sinks.put(query, _SINK.pack(batch, timestamp))

    def delete_sinks(self, prefix: bytes, before: int) -> None:
        """Forget the queries whose id begins with ``prefix`` and whose last commit was before ``before``."""
        found = [
            key for key, value in self._sinks.records() if key.startswith(prefix) and _SINK.unpack(value)[1] < before
        ]
        for key in found:
            self._sinks.delete(key)

    # -- owners ---------------------------------------------------------------------------------------------

    def owner(self, name: bytes) -> str | None:
        """Return the owner of a name; None if it has none yet."""
        value = self._owners.get(name)
        return None if value is None else value[_OWNER.size :].decode()

    def owners(self) -> Iterator[tuple[bytes, str]]:
        """Yield every name that has an owner, with the cluster that owns it."""
        for name, value in self._owners.records():
            yield name, value[_OWNER.size :].decode()

    def put_owner(self, name: bytes, owner: str, timestamp: int) -> None:
        """Write the owner of a name from ``timestamp`` on."""
        self._owners.put(name, _OWNER.pack(timestamp) + owner.encode())

    def delete_owner(self, name: bytes) -> bool:
        """Delete the owner of a name; return whether it had one."""
        return self._owners.delete(name)

    def owner_since(self, name: bytes) -> int:
        """Return since when a name has its owner, in microseconds since 1970; 0 if it has none."""
        value = self._owners.get(name)
        return 0 if value is None else _OWNER.unpack_from(value)[0]

    def owned_since(self, prefix: bytes) -> dict[bytes, int]:
        """Return since when names that begin with ``prefix`` have an owner, in microseconds since 1970."""
        return {name: _OWNER.unpack_from(value)[0] for name, value in self._owners.records() if name.startswith(prefix)}

    def delete_owners(self, prefix: bytes, before: int) -> int:
        """Delete the owners of names that begin with ``prefix`` and were taken before ``before``; return how many."""
        found = [name for name, since in self.owned_since(prefix).items() if since < before]
        for name in found:
            self._owners.delete(name)
        return len(found)

    # -- members --------------------------------------------------------------------------------------------

    def members(self) -> dict[int, str]:
        """Return every shard that the bridge is known to have, with the cluster at which it was found last."""
        return {_NUMBER.unpack(key)[0]: value.decode() for key, value in self._members.records()}

    def put_member(self, shard: int, address: str) -> None:
        """Write where a shard of the bridge is found."""
        self._members.put(_NUMBER.pack(shard), address.encode())

    def delete_member(self, shard: int) -> bool:
        """Delete the record of a shard of the bridge; return whether there was one."""
        return self._members.delete(_NUMBER.pack(shard))

    # -- durable subscribers --------------------------------------------------------------------------------

    def subscribers(self) -> dict[bytes, bytes]:
        """Return the records of durable subscribers that were kept, each under its digest."""
        return dict(self._subscribers.records())

    def put_subscriber(self, digest: bytes, record: bytes) -> None:
        """Write the record of a durable subscriber."""
        self._subscribers.put(digest, record)

    def delete_subscriber(self, digest: bytes) -> None:
        """Delete the record of a durable subscriber."""
        self._subscribers.delete(digest)

    # -- division -------------------------------------------------------------------------------------------

    def division(self) -> bytes | None:
        """Return the record of how the events are divided among shards; None: there is none."""
        return self._table("division").get(_DIVISION)

    def put_division(self, record: bytes) -> None:
        """Write that record."""
        self._table("division").put(_DIVISION, record)

    def publishers_from(self, begin: bytes) -> Iterator[bytes]:
        """Yield the publishers that have a window, from ``begin`` on."""
        return (key for key, _ in self._publishers.records_from(begin))

    # -- copies ---------------------------------------------------------------------------------------------

    def replication(self, name: bytes) -> bytes | None:
        """Return a record of what this log is among its copies."""
        return self._table("replication").get(name)

    def put_replication(self, name: bytes, record: bytes) -> None:
        """Write such a record."""
        self._table("replication").put(name, record)

    def small_records(self) -> Iterator[Journaled]:
        """Yield the records of all tables but those that grow with the events, in the form that another log accepts."""
        for name in REPLACED:
            yield from self._table(name).sealed()

    def repeat(self, head: ChangeHead, gone: set[tuple[int, int, int]]) -> None:
        """Take over what another log has changed.

        Args:
            head: what it is.
            gone: segment files that no record names any more: shard, first offset and revision.

        Raises:
            LogDamaged: a table or a checksum is not right.
        """
        for name, first, end in head.cleared:
            table = self._copied(name)
            if name == "segments":
                for key, value in table.records_from(first):
                    if key >= end:
                        break
                    gone |= _files_of(key, value)
            table.clear(first, end)
        for name, key, sealed in head.records:
            table = self._copied(name)
            if name == "segments":
                gone |= _files_of(key, table.get(key))
            if sealed is None:
                table.delete(key)
                continue
            table.put_sealed(key, sealed)
            if name == "segments":
                gone -= _files_of(key, table.get(key))

    def _copied(self, name: str) -> CheckedTable:
        if name not in self._databases or name in _OWN:
            raise LogDamaged(f"a change that the primary sent is of a table {name!r}, which a copy has not")
        return self._table(name)

    # -- cursors --------------------------------------------------------------------------------------------

    def cursors(self) -> dict[bytes, bytes]:
        """Return every cursor's record by name."""
        return dict(self._cursors.records())

    def cursor(self, name: bytes) -> bytes | None:
        """Return the record of one cursor; None if there is none."""
        return self._cursors.get(name)

    def put_cursor(self, name: bytes, record: bytes) -> None:
        """Write a cursor's record."""
        self._cursors.put(name, record)

    def delete_cursor(self, name: bytes) -> bool:
        """Delete a cursor; return whether it was there."""
        return self._cursors.delete(name)


@final
class Index:
    """The open index.  Reading is safe in any thread; one thread at a time may write.

    Args:
        path: directory of the index.
        map_bytes: largest size of the index, in bytes.

    Raises:
        LogDamaged: what lies at ``path`` is not an index of this version.
        StoreFull: there is no room to make one.
    """

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES) -> None:
        self._witness: IndexWitness | None = None
        self.journal: Journal | None = None
        """Gets what each transaction writes, for the copies of this log."""
        self._path = path
        self._map_bytes = map_bytes
        _allocate_locks(path / "lock.mdb")
        with self._translated():
            self._environment = lmdb.open(
                str(path),
                map_size=map_bytes,
                max_dbs=len(_TABLES),
                max_readers=_READERS,
                mode=0o600,
            )
        try:
            with self._translated():
                self._witness = IndexWitness(path, self._environment.stat()["psize"])
                self._databases = self._open_tables()
                self._witness.note()
        except BaseException:
            self.close()
            raise

    def _open_tables(self) -> dict[str, lmdb._Database]:
        """Open the tables; all are made together with the format, so one that is not there has been damaged.

        Made anew, a table whose name has a flipped bit would be empty, and a batch of Spark's be stored twice.
        """
        with self._environment.begin(write=True) as transaction:
            found, entries = transaction.get(b"format"), self._environment.stat()["entries"]
            is_new = found is None and entries == 0
            if not is_new and found != _FORMAT:
                if found is None or not found.startswith(_WRITTEN_BY):
                    raise LogDamaged(f"{self._path} is not the index of a log")
                raise LogDamaged(
                    f"{self._path} is the index of a log of another version of Iris ({found.decode(errors='replace')}; "
                    f"this one reads {_FORMAT.decode()}): start the bridge with that version, or with the copy of "
                    "--data that was made before it"
                )
            if not is_new and entries != 1 + len(_TABLES):
                raise LogDamaged(f"the index is damaged: it has {entries} tables and not {1 + len(_TABLES)}")
            if is_new:
                transaction.put(b"format", _FORMAT)
            try:
                databases = {
                    name: self._environment.open_db(name.encode(), txn=transaction, create=is_new) for name in _TABLES
                }
            except lmdb.NotFoundError:
                raise LogDamaged("the index is damaged: one of its tables is not there") from None
        return databases

    @contextlib.contextmanager
    def read(self) -> Generator[IndexView]:
        """See the index as it is now; later changes do not show."""
        with self._translated(), self._environment.begin() as transaction:
            yield IndexView(self, transaction, self._databases)

    @contextlib.contextmanager
    def write(self) -> Generator[IndexView]:
        """Change the index; at the end of the block it is all on the disk, after an exception nothing is.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        assert self._witness is not None
        journal = self.journal
        try:
            with self._translated():
                with self._environment.begin(write=True) as transaction:
                    yield IndexView(self, transaction, self._databases, journal)
                    number = transaction.id()
                with contextlib.suppress(OSError):  # committed is committed: an older note is what a power cut leaves
                    self._witness.note()
        except BaseException:
            if journal is not None:
                journal.abandon()
            raise
        if journal is not None:
            journal.commit(number)

    def room(self, used: int) -> int:
        """Return how many bytes there are for what is kept, ``used`` of them already, if nothing else comes."""
        disk = os.statvfs(self._path)
        return min(self._map_bytes, used + disk.f_bavail * disk.f_frsize)

    @contextlib.contextmanager
    def part(self, parent: lmdb.Transaction[bytes], journal: Journal | None) -> Generator[IndexView]:
        """See ``IndexView.part``."""
        with (
            contextlib.nullcontext() if journal is None else journal.part(),
            self._translated(),
            self._environment.begin(write=True, parent=parent) as transaction,
        ):
            yield IndexView(self, transaction, self._databases, journal)

    @contextlib.contextmanager
    def snapshot(self) -> Generator[IndexView]:
        """Do the same as ``read``, for a block that runs in several threads, in one at a time."""
        transaction = self._environment.begin()
        try:
            yield IndexView(self, transaction, self._databases)
        finally:
            transaction.abort()

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        """Turn LMDB's errors into the store's."""
        try:
            yield
        except struct.error as error:
            raise LogDamaged(f"the index is damaged: a record has the wrong length: {error}") from error
        except lmdb.MapFullError as error:
            raise StoreFull(
                "the index has reached the size that was set for it: open the log with a larger one"
            ) from error
        except (lmdb.Error, OSError) as error:
            number = getattr(error, "errno", None) or getattr(error, "code", 0)
            # Of a write that was cut short LMDB says EIO, whatever the reason.
            if is_full(OSError(number, "")) or (number == errno.EIO and not has_room(self._path)):
                raise StoreFull(f"no room for the index: {error}") from error
            if isinstance(error, OSError):
                raise
            raise LogDamaged(f"the index cannot be used: {error}") from error

    def close(self) -> None:
        """Close the index.  No transaction may be open."""
        if self._witness is not None:
            self._witness.close()
        self._environment.close()


def _gap_key(key: GapKey) -> bytes:
    shard, offset, topic, cluster = key
    return _PLACE.pack(shard, offset) + hashlib.blake2b(f"{topic}\0{cluster}".encode(), digest_size=8).digest()


def _pack_shard(shard: ShardRecord) -> tuple[bytes, bytes]:
    value = _SHARD.pack(bytes.fromhex(shard.epoch), shard.earliest, shard.next, shard.timestamp, shard.size)
    return _NUMBER.pack(shard.number), value


def _pack_chunk(shard: int, chunk: ChunkPlace) -> tuple[bytes, bytes]:
    value = _CHUNK.pack(chunk.segment, chunk.position, chunk.size, chunk.count, chunk.timestamp)
    return _PLACE.pack(shard, chunk.first), value + _pack_revision(chunk.revision)


def _pack_segment(shard: int, segment: SegmentRecord) -> tuple[bytes, bytes]:
    value = _SEGMENT.pack(segment.end, segment.size, segment.written, segment.last_timestamp)
    if segment.topics is not None or segment.revision:
        value += _TOPICS.pack(segment.revision, _NOT_NOTED if segment.topics is None else segment.topics)
    return _PLACE.pack(shard, segment.first), value


def journaled_shard(shard: ShardRecord) -> Journaled:
    """Return the record of a shard, in the form that another log accepts."""
    return _journaled("shards", *_pack_shard(shard))


def journaled_chunk(shard: int, chunk: ChunkPlace) -> Journaled:
    """Return the record of a chunk, in the form that another log accepts."""
    return _journaled("chunks", *_pack_chunk(shard, chunk))


def journaled_segment(shard: int, segment: SegmentRecord) -> Journaled:
    """Return the record of a segment, in the form that another log accepts."""
    return _journaled("segments", *_pack_segment(shard, segment))


def journaled_tiered(shard: int, segment: int, record: bytes) -> Journaled:
    """Return the record of a segment that the tier has, in the form that another log accepts."""
    return _journaled("tiered", _PLACE.pack(shard, segment), record)


def _journaled(table: str, key: bytes, value: bytes) -> Journaled:
    return table, key, seal(key, value)


def cleared_places(table: Literal["chunks", "segments"], shard: int, first: int, end: int) -> tuple[str, bytes, bytes]:
    """Return the range of a shard's records of a table that begin at offsets ``first`` up to but not including ``end``.

    An ``end`` of ``NO_END`` is behind all of them.
    """
    return table, _PLACE.pack(shard, first), _PLACE.pack(shard + 1, 0) if end == NO_END else _PLACE.pack(shard, end)


def _unpack_shard(key: bytes, value: bytes) -> ShardRecord:
    epoch, earliest, following, timestamp, size = _SHARD.unpack(value)
    return ShardRecord(
        number=_NUMBER.unpack(key)[0],
        epoch=epoch.hex(),
        earliest=earliest,
        next=following,
        timestamp=timestamp,
        size=size,
    )


def _unpack_chunk(first: int, value: bytes) -> ChunkPlace:
    segment, position, size, count, timestamp = _CHUNK.unpack_from(value)
    return ChunkPlace(
        first=first,
        count=count,
        timestamp=timestamp,
        segment=segment,
        position=position,
        size=size,
        revision=_unpack_revision(value[_CHUNK.size :]),
    )


def _unpack_segment(first: int, value: bytes) -> SegmentRecord:
    end, size, written, last_timestamp = _SEGMENT.unpack_from(value)
    revision, topics = _TOPICS.unpack(value[_SEGMENT.size :]) if len(value) > _SEGMENT.size else (0, None)
    return SegmentRecord(
        first=first,
        end=end,
        size=size,
        written=written,
        last_timestamp=last_timestamp,
        revision=revision,
        topics=None if topics == _NOT_NOTED else topics,
    )


def _files_of(key: bytes, value: bytes | None) -> set[tuple[int, int, int]]:
    """Return the file that the record of a segment names: shard, first offset and revision; none if it has none."""
    if value is None:
        return set()
    shard, first = _PLACE.unpack(key)
    revision = _unpack_segment(first, value).revision
    return set() if revision == IN_TIER else {(shard, first, revision)}


def _pack_numbers(numbers: Sequence[int]) -> bytes:
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack_numbers(value: bytes) -> Sequence[int]:
    """Return numbers; of a thousand it takes a microsecond, where ``struct`` takes thirty."""
    numbers = array("I", value)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _pack_revision(revision: int) -> bytes:
    return _REVISION.pack(revision) if revision else b""


def _unpack_revision(value: bytes) -> int:
    if not value:
        return 0
    revision: int = _REVISION.unpack(value)[0]
    return revision


def _allocate_locks(path: Path) -> None:
    """Give LMDB's table of readers all its room at once.

    LMDB makes it a file with holes and writes to it through memory: on a full disk that ends the process (SIGBUS).
    """
    if not hasattr(os, "posix_fallocate"):
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    except OSError as error:
        if is_full(error):
            raise StoreFull(f"no room for the index: {error.strerror}") from None
        raise
    finally:
        os.close(descriptor)
