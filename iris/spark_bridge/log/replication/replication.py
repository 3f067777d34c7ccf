"""Replication: a log as the origin of copies, and as a copy.

A copy that begins to follow first gets what it lacks of the segments, oldest first, in pieces.  Then it gets the rest
together with all tables that do not grow with the events, as of one moment: from here it is whole.  These are one
transaction, or several if they are large.  After that it repeats each transaction of the primary as it is.  In
between, a copy that is not whole has events of which it does not know who published them, so it must not be promoted.

Both logs have the same chunks at the same places of the same segments; of segments that the tier alone has, a copy gets
the records.  What a copy lacks is found by comparing the segments, so it may have been away for any time, or have
another end than the log that it follows now.

After each of these changes a copy has all events below what it has, so that it can be promoted by force at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Any, Final, final

import msgspec

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk import decode_frames
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.records import (
    CHUNKS,
    IN_TIER,
    REPLACED,
    REPLICATION,
    SEGMENTS,
    SHARDS,
    TABLES,
    TIERED,
    SegmentRecord,
    ShardState,
    all_shards,
    pack_place,
    segments_of,
    spans,
)
from iris.spark_bridge.log.replication.journal import ChangeHead, Journal, Journaled, LogChange, Write
from iris.spark_bridge.log.topics.index import places_of
from iris.spark_bridge.log.transaction import Table, Transaction

_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Largest change while a copy catches up, in bytes: some 20 ms of a disk."""

_REST_BYTES: Final = 32 * 1024 * 1024
"""Size of the tables that a copy gets in one transaction, in bytes."""

_OF_EVENTS: Final = (CHUNKS.name, SEGMENTS.name)
_NO_END: Final = -1
_STATE: Final = b"state"
_POSITION: Final = b"position"
_ALL: Final = (b"\0", b"\xff" * 512)

Files = set[tuple[int, int, int]]
"""Segment files: shard, first offset and revision."""


@final
class HeldSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment that a log has: events ``first`` up to but not including ``end``, in ``size`` bytes."""

    first: int
    end: int
    size: int
    revision: int = 0


@final
class HeldShard(msgspec.Struct, frozen=True, array_like=True):
    """Events of a shard that a log has."""

    number: int
    epoch: str
    next: int
    segments: Sequence[HeldSegment]


@final
class Position(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Progress of a copy: term of its primary, number of its last change, and True if it is whole since."""

    term: int
    number: int
    whole: bool


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The part of a copy's shard that is the same as the primary's, and the segment in which it ends.

    Attributes:
        shard: the primary's record of the shard.
        offset: offset below which the copy has the primary's events; what it has from there on differs.
        segment: segment in which the offset lies, as far as the copy has it. None: the next one begins at the offset.
    """

    shard: ShardState
    offset: int
    segment: SegmentRecord | None


@final
class Replication:
    """The part of a store that copies are made with.  Every call blocks.

    Args:
        log: the log.
    """

    def __init__(self, log: OpenLog) -> None:
        self._log = log
        self._unsynced: tuple[int, int] | None = None
        """Shard and segment that were written last and may not be on the disk. None: all is."""
        self._written: dict[tuple[int, int], str] = {}
        """Epochs of the segments into which something was written since a change was made."""

    # -- what this log is among its copies ------------------------------------------------------------------

    def state(self) -> bytes | None:
        """Return what ``put_state`` wrote last."""
        with self._log.index.read() as view:
            return view.get(REPLICATION, _STATE)

    def put_state(self, state: bytes, *, position: Position | None = None) -> None:
        """Record this log's state, and its progress if that is given; both are on the disk when this returns.

        Raises:
            StoreFull: there is no room; it is what it was.
        """
        with self._log.writing, self._log.index.write() as view:
            view.put(REPLICATION, _STATE, state)
            if position is not None:
                view.put(REPLICATION, _POSITION, msgspec.msgpack.encode(position))

    def position(self) -> Position:
        """Return the progress of this log as a copy."""
        with self._log.index.read() as view:
            record = view.get(REPLICATION, _POSITION)
        return Position(0, 0, False) if record is None else msgspec.msgpack.decode(record, type=Position)

    def held(self) -> list[HeldShard]:
        """Return what this log has."""
        with self._log.index.read() as view:
            return [
                HeldShard(
                    number=shard.number,
                    epoch=shard.epoch,
                    next=shard.next,
                    segments=[
                        HeldSegment(one.first, one.end, one.size, one.revision)
                        for one in segments_of(view, shard.number)
                    ],
                )
                for shard in all_shards(view)
            ]

    def number(self) -> int:
        """Return the number of the last change of this log."""
        with self._log.index.read() as view:
            return view.number

    # -- the origin of copies -------------------------------------------------------------------------------

    def listen(self, changed: Callable[[LogChange], None]) -> None:
        """Call ``changed`` with each change from now on, in the thread that makes it, until ``listen_no_more``."""
        with self._log.writing:
            self._log.index.journal = self._log.files.journal = Journal(changed)

    def listen_no_more(self) -> None:
        """Journal nothing."""
        with self._log.writing:
            self._log.index.journal = self._log.files.journal = None

    def cuts(self, held: Sequence[HeldShard], forks: Mapping[int, int]) -> list[Cut]:
        """Return up to where a copy is the same as this log.

        Args:
            held: what it has.
            forks: the offsets, by shard, up to which the copy's log and this one are of one history; where there is
                none, all is.

        Raises:
            ValueError: the copy is of another log, or has events that only this log could have given it.
        """
        with self._log.index.read() as view:
            shards = {shard.number: shard for shard in all_shards(view)}
            others = {shard.number: shard for shard in held}
            for other in held:
                own = shards.get(other.number)
                if own is None or own.epoch != other.epoch:
                    raise ValueError(f"it has shard {other.number}@{other.epoch}, which is of another log")
                if other.number not in forks and other.next > own.next:
                    raise ValueError(
                        f"it has shard {other.number} up to {other.next}, and the primary only up to {own.next}: the "
                        "primary's log was put back to an older state"
                    )
            return [_cut(view, shard, others.get(number), forks.get(number)) for number, shard in shards.items()]

    def begin(self, cuts: Sequence[Cut]) -> LogChange:
        """Return the change by which a copy lets go of what is not this log's."""
        with self._log.index.read() as view:
            cleared: list[tuple[str, bytes, bytes]] = []
            records: list[Journaled] = []
            for cut in cuts:
                number, offset = cut.shard.number, cut.offset
                earliest = min((segment.first for segment in segments_of(view, number)), default=offset)
                for table in _OF_EVENTS:
                    cleared.append(_cleared(table, number, offset, _NO_END))
                    cleared.append(_cleared(table, number, 0, min(earliest, offset)))
                shard = dataclasses.replace(cut.shard, earliest=min(cut.shard.earliest, offset), next=offset)
                records.append(SHARDS.journaled(shard.number, shard))
                if cut.segment is not None:
                    records.append(_journaled(number, _without_topics(cut.segment)))
                more, left = _left_to_tier(view, number, before=offset)
                cleared += more
                records += left
            return LogChange(ChangeHead(view.number, False, cleared, records, ()), ())

    def piece(self, shard: int, at: int) -> tuple[LogChange | None, int]:
        """Return a change with the chunks of a shard from an offset on, 4 MiB or one, and the offset behind them.

        None: there are none.

        Raises:
            LogDamaged: a segment was removed meanwhile, or is damaged.
        """
        with self._log.index.read() as view:
            return self._piece(view, shard, at)

    def lacking(self, offsets: Mapping[int, int]) -> int:
        """Return how many bytes of chunks there are behind the offsets, by shard."""
        with self._log.index.read() as view:
            return sum(_bytes_from(view, number, offset) for number, offset in offsets.items())

    def rest(self, offsets: Mapping[int, int], begin: LogChange | None) -> Generator[LogChange]:
        """Yield the changes by which a copy that has the events below ``offsets`` becomes as this log is now.

        All have the same number, and the last one makes it whole.

        Args:
            offsets: end of the copy's events in each shard.
            begin: change that the copy makes together with the first one. None: it was made.

        Changes of the log with a greater number are not part of them.

        Raises:
            LogDamaged: see ``piece``.
        """
        with ExitStack() as stack:
            with self._log.writing:  # what has been committed has been journaled, too
                view = stack.enter_context(self._log.index.snapshot())
            records: list[Journaled] = []
            writes: list[Write] = []
            data: list[bytes | memoryview] = []
            cleared: list[tuple[str, bytes, bytes]] = [(table.name, *_ALL) for table in REPLACED]
            if begin is not None:
                cleared += begin.head.cleared
                records += begin.head.records
            for number, offset in offsets.items():
                at = offset
                while True:
                    piece, at = self._piece(view, number, at)
                    if piece is None:
                        break
                    records += piece.head.records
                    writes += piece.head.writes
                    data += piece.data
            for shard in all_shards(view):
                segments = segments_of(view, shard.number)
                first = segments[0].first if segments else shard.next
                cleared += [_cleared(table, shard.number, 0, first) for table in _OF_EVENTS]
                records += [_journaled(shard.number, segment) for segment in segments]
                # Also what was left to the tier after its events had been sent.
                more, left = _left_to_tier(view, shard.number, whole=True)
                cleared += more
                records += left
                records.append(SHARDS.journaled(shard.number, shard))
            size = 0
            for record in chain.from_iterable(map(view.sealed, REPLACED)):
                records.append(record)
                size += len(record[1]) + len(record[2] or b"")
                if size > _REST_BYTES:
                    yield LogChange(ChangeHead(view.number, False, cleared, records, writes), data)
                    cleared, records, writes, data, size = [], [], [], [], 0
            yield LogChange(ChangeHead(view.number, True, cleared, records, writes), data)

    def _piece(self, view: Transaction, number: int, at: int) -> tuple[LogChange | None, int]:
        """Return the chunks on this disk from the offset ``at``, of one segment; None: there are none."""
        shard = view.get(SHARDS, number)
        local = (place for place in spans(view, CHUNKS, number, at) if place.revision != IN_TIER)
        first = None if shard is None else next(local, None)
        if shard is None or first is None:
            return None, at
        segment = next(one for one in segments_of(view, number) if one.first == first.segment)
        places = [first]
        size = first.size
        for place in spans(view, CHUNKS, number, first.end):
            if place.segment != first.segment or size + place.size > _PIECE_BYTES:
                break
            places.append(place)
            size += place.size
        data = self._log.files.read(number, shard.epoch, segment.first, first.position, size, segment.revision)
        end, behind = places[-1].end, first.position + size
        reached = dataclasses.replace(segment, end=end, size=behind, last_timestamp=places[-1].timestamp)
        # What the tier alone has before it comes along, so that a copy has all below what it has.
        cleared, records = _left_to_tier(view, number, behind=at, before=segment.first)
        records += [CHUNKS.journaled((number, place.first), place) for place in places]
        records += [
            _journaled(number, _without_topics(segment if segment.end == end else reached)),
            SHARDS.journaled(number, dataclasses.replace(shard, earliest=min(shard.earliest, end), next=end)),
        ]
        write = Write(number, shard.epoch, segment.first, first.position, size, segment.revision)
        return LogChange(ChangeHead(view.number, False, cleared, records, [write]), [data]), end

    # -- a copy ---------------------------------------------------------------------------------------------

    def repeat(self, changes: Sequence[LogChange], *, term: int) -> Position | None:
        """Make changes of the primary of a term, all or none; they are on the disk when it returns.

        Chunks of a transaction that is not committed are written, and count with the change that names them.

        Returns:
            How far this log is now; None: as far as before.

        Raises:
            StoreFull: there is no room; nothing was changed, or there is none for the chunks that do not count yet.
            LogDamaged: what was sent is not what the primary has written.
        """
        committed = max((at for at, change in enumerate(changes, 1) if change.head.number), default=0)
        with self._log.writing:
            position = self._commit(changes[:committed], term) if committed else None
            # Behind the removal of files that no record names any more: the new chunks may lie in one of that name.
            for change in changes[committed:]:
                self._write(change)
            return position

    def _commit(self, changes: Sequence[LogChange], term: int) -> Position:
        for change in changes:
            self._write(change)
        self._sync()
        gone: Files = set()
        last = changes[-1].head
        position = Position(term, last.number, last.whole)
        with self._log.index.write() as view:
            epochs = {shard.number: shard.epoch for shard in all_shards(view)}
            for change in changes:
                _repeat(view, change.head, gone)
            view.put(REPLICATION, _POSITION, msgspec.msgpack.encode(position))
        written, self._written = self._written, {}
        self._tidy(gone, written, epochs)
        return position

    def _write(self, change: LogChange) -> None:
        for write, data in zip(change.head.writes, change.data, strict=True):
            for chunk in decode_frames(data):
                if (chunk.shard, chunk.epoch) != (write.shard, write.epoch):
                    raise LogDamaged(f"a chunk of shard {chunk.shard}@{chunk.epoch} came as another one's")
            place = (write.shard, write.segment)
            if self._unsynced != place:
                self._sync()
            if not self._log.files.has(write.shard, write.epoch, write.segment, write.revision):
                self._log.files.begin(write.shard, write.epoch, write.segment, len(data), write.revision)
            self._log.files.write(write.shard, write.epoch, write.segment, write.position, (data,), write.revision)
            self._unsynced = place
            self._written[place] = write.epoch

    def _sync(self) -> None:
        if self._unsynced is not None:
            self._log.files.sync(self._unsynced[0])
            self._unsynced = None

    def _tidy(self, gone: Files, written: Mapping[tuple[int, int], str], epochs: Mapping[int, str]) -> None:
        """Remove segments that no record names any more, and free the room behind those that are full."""
        for number, first, revision in gone:
            if number in epochs:
                self._log.files.remove(number, epochs[number], first, revision)
        with self._log.index.read() as view:
            named = {number: segments_of(view, number) for number, _ in written}
        for (number, first), epoch in written.items():
            for one in named[number][:-1]:
                if one.first == first:
                    with suppress(OSError, LogDamaged):
                        self._log.files.finish(number, epoch, first, one.size, one.revision)


def _cleared(table: str, shard: int, first: int, end: int) -> tuple[str, bytes, bytes]:
    """Return the range of a shard's records of a table that begin at offsets ``first`` up to but not including ``end``.

    An ``end`` of ``_NO_END`` is behind all of them.
    """
    return table, pack_place((shard, first)), pack_place((shard + 1, 0) if end == _NO_END else (shard, end))


def _journaled(shard: int, segment: SegmentRecord) -> Journaled:
    return SEGMENTS.journaled((shard, segment.first), segment)


def _repeat(view: Transaction, head: ChangeHead, gone: Files) -> None:
    """Take over what another log has changed; ``gone`` gets the segment files that no record names any more.

    Raises:
        LogDamaged: a table or a checksum is not right.
    """
    for name, first, end in head.cleared:
        table = _copied(name)
        if table is SEGMENTS:
            for place, segment in view.items_from(SEGMENTS, SEGMENTS.unpack_key(first)):
                if pack_place(place) >= end:
                    break
                gone |= _files_of(place[0], segment)
        view.clear(table, first, end)
    for name, key, sealed in head.records:
        table = _copied(name)
        if table is SEGMENTS:
            gone |= _named(view, key)
        if sealed is None:
            view.delete_packed(table, key)
            continue
        view.put_sealed(table, key, sealed)
        if table is SEGMENTS:
            gone -= _named(view, key)


def _copied(name: str) -> Table[Any, Any]:
    table = TABLES.get(name)
    if table is None or table.is_own:
        raise LogDamaged(f"a change that the primary sent is of a table {name!r}, which a copy has not")
    return table


def _named(view: Transaction, key: bytes) -> Files:
    place = SEGMENTS.unpack_key(key)
    segment = view.get(SEGMENTS, place)
    return set() if segment is None else _files_of(place[0], segment)


def _files_of(shard: int, segment: SegmentRecord) -> Files:
    return set() if segment.revision == IN_TIER else {(shard, segment.first, segment.revision)}


def _cut(view: Transaction, shard: ShardState, other: HeldShard | None, fork: int | None) -> Cut:
    segments = segments_of(view, shard.number)
    begin = segments[0].first if segments else shard.next
    if other is None:
        other = HeldShard(shard.number, shard.epoch, begin, ())
    held = {segment.first: segment for segment in other.segments}
    most = other.next if fork is None else min(fork, other.next)
    offset, inside = begin, None
    for segment in segments:
        if segment.revision == IN_TIER:
            offset, inside = segment.end, None  # a copy gets its records, whatever it has
            continue
        have = held.get(segment.first)
        if have is None or segment.first >= most:
            break
        if (have.end, have.size, have.revision) == (
            segment.end,
            segment.size,
            segment.revision,
        ) and segment.end <= most:
            offset = segment.end
            # An append goes on in the last one.
            inside = segment if segment is segments[-1] else None
            continue
        upto = min(have.end, segment.end, most)
        size = _size_upto(view, shard.number, segment, upto)
        same = have.revision == segment.revision and size is not None and (upto < have.end or size == have.size)
        if same and size is not None:
            offset = upto
            inside = dataclasses.replace(segment, end=upto, size=size)
        break
    return Cut(shard=shard, offset=offset, segment=inside)


def _left_to_tier(
    view: Transaction, number: int, *, behind: int = 0, before: int | None = None, whole: bool = False
) -> tuple[list[tuple[str, bytes, bytes]], list[Journaled]]:
    """Return the records of a shard's segments that only a tier has, and the ranges that they replace.

    Args:
        view: view of the log.
        number: number of the shard.
        behind: the offset behind which they end.
        before: the offset before which they begin; None: there is none.
        whole: True if the copy gets all tables with them.
    """
    cleared: list[tuple[str, bytes, bytes]] = []
    records: list[Journaled] = []
    segments = [
        segment
        for segment in segments_of(view, number)
        if segment.revision == IN_TIER and segment.end > behind and (before is None or segment.first < before)
    ]
    objects = {first: record for (shard, first), record in view.items(TIERED) if shard == number} if segments else {}
    for segment in segments:
        cleared += [_cleared(table, number, segment.first, segment.end) for table in _OF_EVENTS]
        records += [CHUNKS.journaled((number, place.first), place) for place in places_of(view, number, segment)]
        records.append(_journaled(number, segment if whole else _without_topics(segment)))
        if segment.first in objects and not whole:
            records.append(TIERED.journaled((number, segment.first), objects[segment.first]))
    return cleared, records


def _without_topics(segment: SegmentRecord) -> SegmentRecord:
    """Return a segment as a copy has it that is not whole: the tables of topics come at last."""
    return dataclasses.replace(segment, topics=None)


def _size_upto(view: Transaction, shard: int, segment: SegmentRecord, offset: int) -> int | None:
    """Return the bytes of a segment's chunks below an offset; None: it is in the middle of a chunk."""
    if offset == segment.end:
        return segment.size
    place = next(spans(view, CHUNKS, shard, offset), None)
    return place.position if place is not None and place.first == offset else None


def _bytes_from(view: Transaction, shard: int, offset: int) -> int:
    size = 0
    for segment in segments_of(view, shard):
        if segment.revision == IN_TIER:
            continue
        if segment.first >= offset:
            size += segment.size
        elif segment.end > offset:
            place = next(spans(view, CHUNKS, shard, offset), None)
            size += segment.size - (segment.size if place is None else place.position)
    return size
