"""The index of a log: which events exist and where their chunks lie.  An LMDB environment; the truth about the log.

Everything that one append changes is changed in one transaction, which is synchronous and happens after the chunk's
bytes are on the disk: the events, their place, the publishers' windows.  LMDB never overwrites a page that a
committed state uses, so a crash leaves the state before or after.

Why LMDB for the index and plain files for the chunks, measured with 1,000 events of 1 KB per append: all in LMDB
285,000 events/s with a growing file, this 981,000; and removing a file gives the room back to a full disk at once,
while deleting in LMDB first needs some.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, final

import lmdb

from iris.spark_bridge.dedup import BLOCK_BYTES
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.segment import is_full

MAP_BYTES: Final = 16 * 1024 * 1024 * 1024
"""Address space, not memory: room for the index of about 100 million chunks."""

_FORMAT: Final = b"iris log 1"
_PLACE: Final = struct.Struct(">IQ")
_CHUNK: Final = struct.Struct(">QQIIq")
_SEGMENT: Final = struct.Struct(">QQqq")
_SHARD: Final = struct.Struct(">8sQQqQ")
_SEEN: Final = struct.Struct(">q")
_SINK: Final = struct.Struct(">Qq")
_BLOCK: Final = struct.Struct(">Q")


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One shard: its events are numbered from ``earliest`` up to but not including ``next``."""

    number: int
    epoch: str
    earliest: int
    next: int
    timestamp: int = 0
    """Microseconds since 1970 of the newest event; the next one is not older."""
    size: int = 0
    """Bytes of its chunks."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlace:
    """Where the chunk that starts with event ``first`` lies."""

    first: int
    count: int
    timestamp: int
    segment: int
    position: int
    size: int

    @property
    def end(self) -> int:
        """The offset behind its last event."""
        return self.first + self.count


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """One segment file: events from ``first`` up to but not including ``end``, in ``size`` bytes."""

    first: int
    end: int
    size: int
    first_timestamp: int
    last_timestamp: int


class IndexView:
    """The index as one transaction sees it."""

    def __init__(self, transaction: lmdb.Transaction[bytes], tables: _Tables) -> None:
        self._transaction = transaction
        self._tables = tables

    # -- shards ---------------------------------------------------------------------------------------------

    def shard(self, number: int) -> ShardRecord | None:
        """Return a shard, or None if there is none of that number."""
        value = self._transaction.get(_BLOCK.pack(number), db=self._tables.shards)
        return None if value is None else _unpack_shard(number, value)

    def shards(self) -> list[ShardRecord]:
        """Return every shard by number."""
        with self._transaction.cursor(self._tables.shards) as cursor:
            return [_unpack_shard(_BLOCK.unpack(key)[0], value) for key, value in cursor]

    def put_shard(self, shard: ShardRecord) -> None:
        """Write a shard."""
        body = _SHARD.pack(bytes.fromhex(shard.epoch), shard.earliest, shard.next, shard.timestamp, shard.size)
        key = _BLOCK.pack(shard.number)
        self._transaction.put(key, body + zlib.crc32(key + body).to_bytes(4), db=self._tables.shards)

    # -- chunks and segments --------------------------------------------------------------------------------

    def chunks(self, shard: int, start: int) -> Iterator[ChunkPlace]:
        """Yield the chunks of a shard in order, beginning with the one that holds the event ``start``."""
        place = _PLACE.pack(shard, start)
        with self._transaction.cursor(self._tables.chunks) as cursor:
            found = cursor.set_range(place)
            if not (found and cursor.key() == place):
                # No chunk begins with it: the one before may hold it.
                before = cursor.prev() if found else cursor.last()
                if not (before and _PLACE.unpack(cursor.key())[0] == shard) and not cursor.set_range(place):
                    return
            for key, value in cursor.iternext():
                number, first = _PLACE.unpack(key)
                if number != shard:
                    return
                segment, position, size, count, timestamp = _CHUNK.unpack(value)
                if first + count > start:
                    yield ChunkPlace(
                        first=first, count=count, timestamp=timestamp, segment=segment, position=position, size=size
                    )

    def chunk_from(self, shard: int, start: int) -> ChunkPlace | None:
        """Return the first chunk of a shard that begins at or behind ``start``."""
        with self._transaction.cursor(self._tables.chunks) as cursor:
            if not cursor.set_range(_PLACE.pack(shard, start)):
                return None
            number, first = _PLACE.unpack(cursor.key())
            if number != shard:
                return None
            segment, position, size, count, timestamp = _CHUNK.unpack(cursor.value())
            return ChunkPlace(
                first=first, count=count, timestamp=timestamp, segment=segment, position=position, size=size
            )

    def put_chunk(self, shard: int, chunk: ChunkPlace) -> None:
        """Write the place of a chunk."""
        self._transaction.put(
            _PLACE.pack(shard, chunk.first),
            _CHUNK.pack(chunk.segment, chunk.position, chunk.size, chunk.count, chunk.timestamp),
            db=self._tables.chunks,
        )

    def delete_chunks(self, shard: int, before: int, limit: int) -> int:
        """Delete chunks that end at or before ``before``, at most ``limit``; return how many."""
        deleted = 0
        with self._transaction.cursor(self._tables.chunks) as cursor:
            cursor.set_range(_PLACE.pack(shard, 0))
            while cursor.key() and deleted < limit:
                number, first = _PLACE.unpack(cursor.key())
                if number != shard or first + _CHUNK.unpack(cursor.value())[3] > before:
                    break
                cursor.delete()
                deleted += 1
        return deleted

    def segments(self, shard: int) -> list[SegmentRecord]:
        """Return the segments of a shard, oldest first."""
        found: list[SegmentRecord] = []
        with self._transaction.cursor(self._tables.segments) as cursor:
            if cursor.set_range(_PLACE.pack(shard, 0)):
                for key, value in cursor.iternext():
                    number, first = _PLACE.unpack(key)
                    if number != shard:
                        break
                    found.append(_unpack_segment(first, value))
        return found

    def last_segment(self, shard: int) -> SegmentRecord | None:
        """Return the segment that a shard is appended to."""
        with self._transaction.cursor(self._tables.segments) as cursor:
            found = cursor.set_range(_PLACE.pack(shard + 1, 0))
            if not (cursor.prev() if found else cursor.last()):
                return None
            number, first = _PLACE.unpack(cursor.key())
            return _unpack_segment(first, cursor.value()) if number == shard else None

    def put_segment(self, shard: int, segment: SegmentRecord) -> None:
        """Write a segment."""
        self._transaction.put(
            _PLACE.pack(shard, segment.first),
            _SEGMENT.pack(segment.end, segment.size, segment.first_timestamp, segment.last_timestamp),
            db=self._tables.segments,
        )

    def delete_segment(self, shard: int, first: int) -> None:
        """Delete the record of a segment."""
        self._transaction.delete(_PLACE.pack(shard, first), db=self._tables.segments)

    # -- publishers -----------------------------------------------------------------------------------------

    def publisher_blocks(self, publisher: bytes) -> dict[int, bytes]:
        """Return the blocks of a publisher's window."""
        found: dict[int, bytes] = {}
        with self._transaction.cursor(self._tables.publishers) as cursor:
            if cursor.set_range(publisher):
                for key, value in cursor.iternext():
                    if not key.startswith(publisher):
                        break
                    if len(value) != BLOCK_BYTES:
                        raise LogDamaged(f"the record of publisher {publisher.hex()} has {len(value)} bytes")
                    found[_BLOCK.unpack(key[len(publisher) :])[0]] = value
        return found

    def put_publisher_block(self, publisher: bytes, block: int, bits: bytes) -> None:
        """Write one block of a publisher's window."""
        self._transaction.put(publisher + _BLOCK.pack(block), bits, db=self._tables.publishers)

    def delete_publisher_block(self, publisher: bytes, block: int) -> None:
        """Delete one block of a publisher's window."""
        self._transaction.delete(publisher + _BLOCK.pack(block), db=self._tables.publishers)

    def put_publisher_seen(self, publisher: bytes, timestamp: int) -> None:
        """Write when a publisher was last heard."""
        self._transaction.put(publisher, _SEEN.pack(timestamp), db=self._tables.seen)

    def publishers_seen_before(self, timestamp: int) -> list[bytes]:
        """Return the publishers that were last heard before ``timestamp``."""
        with self._transaction.cursor(self._tables.seen) as cursor:
            return [key for key, value in cursor if _SEEN.unpack(value)[0] < timestamp]

    def delete_publisher(self, publisher: bytes) -> None:
        """Delete all that is known of a publisher."""
        for block in self.publisher_blocks(publisher):
            self.delete_publisher_block(publisher, block)
        self._transaction.delete(publisher, db=self._tables.seen)

    # -- sinks ----------------------------------------------------------------------------------------------

    def sink(self, query: bytes) -> tuple[int, int] | None:
        """Return the last batch of a query that was committed, and when."""
        value = self._transaction.get(query, db=self._tables.sinks)
        return None if value is None else _SINK.unpack(value)

    def put_sink(self, query: bytes, batch: int, timestamp: int) -> None:
        """Write that a batch of a query is part of the log."""
        self._transaction.put(query, _SINK.pack(batch, timestamp), db=self._tables.sinks)

    def delete_sinks(self, prefix: bytes, before: int) -> None:
        """Forget the queries whose id begins with ``prefix`` and that were last heard before ``before``."""
        with self._transaction.cursor(self._tables.sinks) as cursor:
            found = [key for key, value in cursor if key.startswith(prefix) and _SINK.unpack(value)[1] < before]
        for key in found:
            self._transaction.delete(key, db=self._tables.sinks)

    # -- cursors --------------------------------------------------------------------------------------------

    def cursor(self, name: bytes) -> bytes | None:
        """Return a cursor's record."""
        return self._transaction.get(name, db=self._tables.cursors)

    def cursors(self) -> dict[bytes, bytes]:
        """Return every cursor's record by name."""
        with self._transaction.cursor(self._tables.cursors) as cursor:
            return dict(cursor)

    def put_cursor(self, name: bytes, record: bytes) -> None:
        """Write a cursor's record."""
        self._transaction.put(name, record, db=self._tables.cursors)

    def delete_cursor(self, name: bytes) -> bool:
        """Delete a cursor; tell whether it was there."""
        return self._transaction.delete(name, db=self._tables.cursors)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Tables:
    shards: lmdb._Database
    chunks: lmdb._Database
    segments: lmdb._Database
    publishers: lmdb._Database
    seen: lmdb._Database
    cursors: lmdb._Database
    sinks: lmdb._Database


@final
class Index:
    """The open index.  Reading is safe in any thread; one thread at a time may write.

    Raises:
        LogDamaged: what lies at ``path`` is not an index of this version.
        StoreFull: there is no room to make one.
    """

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES, readonly: bool = False) -> None:
        with _translated():
            self._environment = lmdb.open(
                str(path),
                map_size=map_bytes,
                max_dbs=16,
                max_readers=512,
                mode=0o600,
                readonly=readonly,
                create=not readonly,
            )
        try:
            with _translated():
                self._check_format(readonly)
                self._tables = _Tables(
                    *(
                        self._environment.open_db(name.encode(), create=not readonly)
                        for name in ("shards", "chunks", "segments", "publishers", "seen", "cursors", "sinks")
                    )
                )
        except BaseException:
            self._environment.close()
            raise

    def _check_format(self, readonly: bool) -> None:
        with self._environment.begin(write=not readonly) as transaction:
            found = transaction.get(b"format")
            if found is None and not readonly and self._environment.stat()["entries"] == 0:
                transaction.put(b"format", _FORMAT)
            elif found != _FORMAT:
                raise LogDamaged(f"{self._environment.path()} is not the index of a log of this version")

    @contextlib.contextmanager
    def read(self) -> Generator[IndexView]:
        """See the index as it is now; later changes do not show."""
        with _translated(), self._environment.begin() as transaction:
            yield IndexView(transaction, self._tables)

    @contextlib.contextmanager
    def write(self) -> Generator[IndexView]:
        """Change the index; at the end of the block it is all on the disk, after an exception nothing is.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        with _translated(), self._environment.begin(write=True) as transaction:
            yield IndexView(transaction, self._tables)

    def close(self) -> None:
        """Close the index.  No transaction may be open."""
        self._environment.close()


def _unpack_shard(number: int, value: bytes) -> ShardRecord:
    body, checksum = value[:-4], int.from_bytes(value[-4:])
    if len(body) != _SHARD.size or zlib.crc32(_BLOCK.pack(number) + body) != checksum:
        raise LogDamaged(f"the record of shard {number} is damaged")
    epoch, earliest, following, timestamp, size = _SHARD.unpack(body)
    return ShardRecord(
        number=number, epoch=epoch.hex(), earliest=earliest, next=following, timestamp=timestamp, size=size
    )


def _unpack_segment(first: int, value: bytes) -> SegmentRecord:
    end, size, first_timestamp, last_timestamp = _SEGMENT.unpack(value)
    return SegmentRecord(
        first=first, end=end, size=size, first_timestamp=first_timestamp, last_timestamp=last_timestamp
    )


@contextlib.contextmanager
def _translated() -> Generator[None]:
    """Turn LMDB's errors into the store's."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise StoreFull("the index has reached the size that was set for it: open the log with a larger one") from error
    except lmdb.Error as error:
        if is_full(OSError(getattr(error, "code", 0), "")):
            raise StoreFull(f"no room on the disk for the index: {error}") from error
        raise LogDamaged(f"the index cannot be used: {error}") from error
