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
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Literal, final

import msgspec

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.checked_table import Journaled
from iris.spark_bridge.log.chunk import decode_frames
from iris.spark_bridge.log.index import (
    IN_TIER,
    NO_END,
    REPLACED,
    Index,
    IndexView,
    SegmentRecord,
    ShardRecord,
    cleared_places,
    journaled_chunk,
    journaled_segment,
    journaled_shard,
    journaled_tiered,
)
from iris.spark_bridge.log.replication.journal import ChangeHead, Journal, LogChange, Write
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.topics.index import places_of

_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Largest change while a copy catches up, in bytes: some 20 ms of a disk."""

_REST_BYTES: Final = 32 * 1024 * 1024
"""Size of the tables that a copy gets in one transaction, in bytes."""

_OF_EVENTS: Final[tuple[Literal["chunks", "segments"], ...]] = ("chunks", "segments")
_STATE: Final = b"state"
_POSITION: Final = b"position"
_ALL: Final = (b"\0", b"\xff" * 512)


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

    shard: ShardRecord
    offset: int
    segment: SegmentRecord | None


@final
class Replication:
    """The part of a store that copies are made with.  Every call blocks.

    Args:
        index: index of the log.
        files: segments of the log.
        writing: lock that the caller holds while it changes the log.
    """

    def __init__(self, index: Index, files: SegmentFiles, writing: threading.Lock) -> None:
        self._index = index
        self._files = files
        self._writing = writing
        self._unsynced: tuple[int, int] | None = None
        """Shard and segment that were written last and may not be on the disk. None: all is."""
        self._written: dict[tuple[int, int], str] = {}
        """Epochs of the segments into which something was written since a change was made."""

    # -- what this log is among its copies ------------------------------------------------------------------

    def state(self) -> bytes | None:
        """Return what ``put_state`` wrote last."""
        with self._index.read() as view:
            return view.replication(_STATE)

    def put_state(self, state: bytes, *, position: Position | None = None) -> None:
        """Record this log's state, and its progress if that is given; both are on the disk when this returns.

        Raises:
            StoreFull: there is no room; it is what it was.
        """
        with self._writing, self._index.write() as view:
            view.put_replication(_STATE, state)
            if position is not None:
                view.put_replication(_POSITION, msgspec.msgpack.encode(position))

    def position(self) -> Position:
        """Return the progress of this log as a copy."""
        with self._index.read() as view:
            record = view.replication(_POSITION)
        return Position(0, 0, False) if record is None else msgspec.msgpack.decode(record, type=Position)

    def held(self) -> list[HeldShard]:
        """Return what this log has."""
        with self._index.read() as view:
            return [
                HeldShard(
                    number=shard.number,
                    epoch=shard.epoch,
                    next=shard.next,
                    segments=[
                        HeldSegment(one.first, one.end, one.size, one.revision) for one in view.segments(shard.number)
                    ],
                )
                for shard in view.shards()
            ]

    def number(self) -> int:
        """Return the number of the last change of this log."""
        with self._index.read() as view:
            return view.number

    # -- the origin of copies -------------------------------------------------------------------------------

    def listen(self, changed: Callable[[LogChange], None]) -> None:
        """Call ``changed`` with each change from now on, in the thread that makes it, until ``listen_no_more``."""
        with self._writing:
            self._index.journal = self._files.journal = Journal(changed)

    def listen_no_more(self) -> None:
        """Journal nothing."""
        with self._writing:
            self._index.journal = self._files.journal = None

    def cuts(self, held: Sequence[HeldShard], forks: Mapping[int, int]) -> list[Cut]:
        """Return up to where a copy is the same as this log.

        Args:
            held: what it has.
            forks: the offsets, by shard, up to which the copy's log and this one are of one history; where there is
                none, all is.

        Raises:
            ValueError: the copy is of another log, or has events that only this log could have given it.
        """
        with self._index.read() as view:
            shards = {shard.number: shard for shard in view.shards()}
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
        with self._index.read() as view:
            cleared: list[tuple[str, bytes, bytes]] = []
            records: list[Journaled] = []
            for cut in cuts:
                number, offset = cut.shard.number, cut.offset
                earliest = min((segment.first for segment in view.segments(number)), default=offset)
                for table in _OF_EVENTS:
                    cleared.append(cleared_places(table, number, offset, NO_END))
                    cleared.append(cleared_places(table, number, 0, min(earliest, offset)))
                shard = dataclasses.replace(cut.shard, earliest=min(cut.shard.earliest, offset), next=offset)
                records.append(journaled_shard(shard))
                if cut.segment is not None:
                    records.append(journaled_segment(number, _without_topics(cut.segment)))
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
        with self._index.read() as view:
            return self._piece(view, shard, at)

    def lacking(self, offsets: Mapping[int, int]) -> int:
        """Return how many bytes of chunks there are behind the offsets, by shard."""
        with self._index.read() as view:
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
            with self._writing:  # what has been committed has been journaled, too
                view = stack.enter_context(self._index.snapshot())
            records: list[Journaled] = []
            writes: list[Write] = []
            data: list[bytes | memoryview] = []
            cleared: list[tuple[str, bytes, bytes]] = [(name, *_ALL) for name in REPLACED]
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
            for shard in view.shards():
                segments = view.segments(shard.number)
                first = segments[0].first if segments else shard.next
                cleared += [cleared_places(table, shard.number, 0, first) for table in _OF_EVENTS]
                records += [journaled_segment(shard.number, segment) for segment in segments]
                # Also what was left to the tier after its events had been sent.
                more, left = _left_to_tier(view, shard.number, whole=True)
                cleared += more
                records += left
                records.append(journaled_shard(shard))
            size = 0
            for record in view.small_records():
                records.append(record)
                size += len(record[1]) + len(record[2] or b"")
                if size > _REST_BYTES:
                    yield LogChange(ChangeHead(view.number, False, cleared, records, writes), data)
                    cleared, records, writes, data, size = [], [], [], [], 0
            yield LogChange(ChangeHead(view.number, True, cleared, records, writes), data)

    def _piece(self, view: IndexView, number: int, at: int) -> tuple[LogChange | None, int]:
        """Return the chunks on this disk from the offset ``at``, of one segment; None: there are none."""
        shard = view.shard(number)
        local = (place for place in view.chunks(number, at) if place.revision != IN_TIER)
        first = None if shard is None else next(local, None)
        if shard is None or first is None:
            return None, at
        segment = next(one for one in view.segments(number) if one.first == first.segment)
        places = [first]
        size = first.size
        for place in view.chunks(number, first.end):
            if place.segment != first.segment or size + place.size > _PIECE_BYTES:
                break
            places.append(place)
            size += place.size
        data = self._files.read(number, shard.epoch, segment.first, first.position, size, segment.revision)
        end, behind = places[-1].end, first.position + size
        reached = dataclasses.replace(segment, end=end, size=behind, last_timestamp=places[-1].timestamp)
        # What the tier alone has before it comes along, so that a copy has all below what it has.
        cleared, records = _left_to_tier(view, number, behind=at, before=segment.first)
        records += [journaled_chunk(number, place) for place in places]
        records += [
            journaled_segment(number, _without_topics(segment if segment.end == end else reached)),
            journaled_shard(dataclasses.replace(shard, earliest=min(shard.earliest, end), next=end)),
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
        with self._writing:
            position = self._commit(changes[:committed], term) if committed else None
            # Behind the removal of files that no record names any more: the new chunks may lie in one of that name.
            for change in changes[committed:]:
                self._write(change)
            return position

    def _commit(self, changes: Sequence[LogChange], term: int) -> Position:
        for change in changes:
            self._write(change)
        self._sync()
        gone: set[tuple[int, int, int]] = set()
        last = changes[-1].head
        position = Position(term, last.number, last.whole)
        with self._index.write() as view:
            epochs = {shard.number: shard.epoch for shard in view.shards()}
            for change in changes:
                view.repeat(change.head, gone)
            view.put_replication(_POSITION, msgspec.msgpack.encode(position))
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
            if not self._files.has(write.shard, write.epoch, write.segment, write.revision):
                self._files.begin(write.shard, write.epoch, write.segment, len(data), write.revision)
            self._files.write(write.shard, write.epoch, write.segment, write.position, (data,), write.revision)
            self._unsynced = place
            self._written[place] = write.epoch

    def _sync(self) -> None:
        if self._unsynced is not None:
            self._files.sync(self._unsynced[0])
            self._unsynced = None

    def _tidy(
        self, gone: set[tuple[int, int, int]], written: Mapping[tuple[int, int], str], epochs: Mapping[int, str]
    ) -> None:
        """Remove segments that no record names any more, and free the room behind those that are full."""
        for number, first, revision in gone:
            if number in epochs:
                self._files.remove(number, epochs[number], first, revision)
        with self._index.read() as view:
            named = {number: view.segments(number) for number, _ in written}
        for (number, first), epoch in written.items():
            for one in named[number][:-1]:
                if one.first == first:
                    with suppress(OSError, LogDamaged):
                        self._files.finish(number, epoch, first, one.size, one.revision)


def _cut(view: IndexView, shard: ShardRecord, other: HeldShard | None, fork: int | None) -> Cut:
    segments = view.segments(shard.number)
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
    view: IndexView, number: int, *, behind: int = 0, before: int | None = None, whole: bool = False
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
        for segment in view.segments(number)
        if segment.revision == IN_TIER and segment.end > behind and (before is None or segment.first < before)
    ]
    objects = {first: record for shard, first, record in view.tiered() if shard == number} if segments else {}
    for segment in segments:
        cleared += [cleared_places(table, number, segment.first, segment.end) for table in _OF_EVENTS]
        records += [journaled_chunk(number, place) for place in places_of(view, number, segment)]
        records.append(journaled_segment(number, segment if whole else _without_topics(segment)))
        if segment.first in objects and not whole:
            records.append(journaled_tiered(number, segment.first, objects[segment.first]))
    return cleared, records


def _without_topics(segment: SegmentRecord) -> SegmentRecord:
    """Return a segment as a copy has it that is not whole: the tables of topics come at last."""
    return dataclasses.replace(segment, topics=None)


def _size_upto(view: IndexView, shard: int, segment: SegmentRecord, offset: int) -> int | None:
    """Return the bytes of a segment's chunks below an offset; None: it is in the middle of a chunk."""
    if offset == segment.end:
        return segment.size
    place = next(view.chunks(shard, offset), None)
    return place.position if place is not None and place.first == offset else None


def _bytes_from(view: IndexView, shard: int, offset: int) -> int:
    size = 0
    for segment in view.segments(shard):
        if segment.revision == IN_TIER:
            continue
        if segment.first >= offset:
            size += segment.size
        elif segment.end > offset:
            place = next(view.chunks(shard, offset), None)
            size += segment.size - (segment.size if place is None else place.position)
    return size
