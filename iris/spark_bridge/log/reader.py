"""Reader: the events of a log, verified, and what is known to be missing or damaged among them."""

from __future__ import annotations

import bisect
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar, final

from iris.spark_bridge.errors import DataLost, LogDamaged
from iris.spark_bridge.events.damage import Damage, DamageBook
from iris.spark_bridge.events.gaps import Gap
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.chunk_io import (
    CHUNK_BYTES,
    Stretch,
    find_offset,
    find_places,
    find_row,
    find_sound,
    find_wanted,
    read_places,
    read_stretches,
    split_pieces,
    stretch_of,
)
from iris.spark_bridge.log.local_read import FileRange
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.records import IN_TIER, SHARDS, TABLES, ChunkPlace, ShardState, all_shards
from iris.spark_bridge.log.tiering import Tiering
from iris.spark_bridge.log.topics.filter import EVERYTHING, TopicFilter, empty_chunk, keep_topics
from iris.spark_bridge.log.topics.index import find_chunks
from iris.spark_bridge.log.transaction import Transaction

T = TypeVar("T")

_log: Final = logging.getLogger("iris")

_VERIFIED_AT_ONCE: Final = 8 * 1024 * 1024


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Wanted events of a shard for a reader of some topics that has come to an offset."""

    earliest: int
    """Earliest offset: below it wanted events may have been removed."""
    next: int
    """First offset after the shard's last event."""
    first: int
    """First wanted event from the reader's offset on; ``next`` if there is none."""
    count: int
    """Number of wanted events, up to the limit that was asked for."""
    upto: int
    """First offset after the last of these events."""


@final
class Reader:
    """Reads a log.  Every call blocks.

    Args:
        log: the log.
        tiering: tier of the log.
    """

    def __init__(self, log: OpenLog, tiering: Tiering) -> None:
        self._log = log
        self._tiering = tiering
        self._noting = threading.Lock()
        """Held while the known damage is looked at or changed."""

    # -- what is missing ------------------------------------------------------------------------------------

    def gaps(self) -> list[Gap]:
        """Return the gaps, by shard and offset."""
        return sorted(self._log.gaps, key=lambda gap: (gap.shard, gap.offset, gap.topic))

    def gaps_of(self, shard: int, start: int, end: int) -> list[Gap]:
        """Return the gaps that a reader of the events from ``start`` up to but not including ``end`` meets."""
        if self._log.gaps.last(shard) < start:
            return []
        return [gap for gap in self._log.gaps if gap.shard == shard and gap.spans(start, end)]

    def read(
        self,
        shard: int,
        epoch: str,
        start: int,
        end: int,
        *,
        max_bytes: int,
        wanted: TopicFilter = EVERYTHING,
        exact: bool = False,
        pass_damage: bool = False,
    ) -> list[Chunk]:
        """Return the chunks that hold the events from ``start``, in order, verified.

        At least one chunk, then more up to ``end`` or ``max_bytes``.  The first and the last may hold events outside of
        the range.  Offsets whose events are not wanted are covered by chunks without events.

        Args:
            shard: number of the shard.
            epoch: epoch of the shard.
            start: offset of the first event.
            end: the offset behind the last one.
            max_bytes: limit of the chunks together, in bytes.
            wanted: topics; events of others may be left out.
            exact: True if these have to be left out.
            pass_damage: True if chunks without events stand for damaged ones.

        Raises:
            DataLost: the shard has another epoch, or wanted events from ``start`` on were trimmed.
            LogDamaged: what is stored is not what was written; the message names shard and offsets.
            ValueError: the range is empty or goes beyond the last event.
        """

        def find(view: Transaction, record: ShardState) -> list[Stretch]:
            if wanted.is_everything and start >= record.earliest:
                return [stretch_of(place) for place in find_places(view, shard, start, end, max_bytes)]
            return find_wanted(view, record, start, end, max_bytes, wanted, exact=exact)

        def read(stretches: list[Stretch]) -> list[Chunk]:
            chunks = iter(read_stretches(self._log.files, shard, epoch, stretches))
            return [
                empty_chunk(shard, epoch, stretch.first, stretch.end, stretch.timestamp)
                if stretch.place is None
                else keep_topics(next(chunks), wanted)
                if stretch.is_filtered
                else next(chunks)
                for stretch in stretches
            ]

        def find_what_is_known(view: Transaction, record: ShardState) -> list[Stretch]:
            try:
                return find(view, record)
            except LogDamaged:
                at = max(start, record.earliest)
                removed = Stretch(place=None, first=start, end=min(at, end), timestamp=record.timestamp)
                found = find_sound(view, record, at, end, max_bytes) if at < end else []
                found = [dataclasses.replace(stretch, is_filtered=exact) for stretch in found]
                return [removed, *found] if start < at else found

        def read_what_is_sound(stretches: list[Stretch]) -> tuple[list[Chunk], list[Damage]]:
            chunks: list[Chunk] = []
            damaged: list[Damage] = []
            for stretch in stretches:
                try:
                    chunks += read([stretch])
                except LogDamaged as error:
                    chunks.append(empty_chunk(shard, epoch, stretch.first, stretch.end, stretch.timestamp))
                    damaged.append(Damage(shard=shard, offset=stretch.first, end=stretch.end, reason=str(error)))
            return chunks, damaged

        try:
            return self._reading(shard, epoch, start, end, wanted, find, read)
        except LogDamaged as error:
            chunks, damaged = self._reading(shard, epoch, start, end, wanted, find_what_is_known, read_what_is_sound)
            self._note_damage(damaged)
            if pass_damage:
                return chunks
            # The topic index alone can be damaged: then all events can be read, though not for a reader of topics.
            reason = damaged[0] if damaged else Damage(shard=shard, offset=start, end=end, reason=str(error))
            raise LogDamaged(reason.describe(f"{shard}@{epoch}")) from None

    def _note_damage(self, damaged: Sequence[Damage]) -> None:
        new = DamageBook()
        with self._noting:
            for damage in damaged:
                if self._log.damage.note(damage):
                    new.note(damage)
        say_damage(new, self._log.directory)

    def trimmed(self, shard: int, earliest: int) -> None:
        """Note that the events below an offset were removed: what was damaged there is no matter any more."""
        with self._noting:
            self._log.damage.trim(shard, earliest)

    def damage(self) -> list[Damage]:
        """Return what is known to be damaged."""
        with self._noting:
            return list(self._log.damage)

    def last_loss(self, state: ShardState) -> int:
        """Return the greatest offset that is damaged, or before which events are missing; -1: there is none."""
        with self._noting:
            return max(state.gap, self._log.damage.last(state.number))

    def damage_between(self, shard: int, start: int, end: int, wanted: TopicFilter) -> list[tuple[Damage, int]]:
        """Return what is known to be damaged in a range, each with the number of its events that are wanted.

        Where the index does not say which topics a chunk held, all of it counts as wanted.
        """
        with self._noting:
            found = self._log.damage.between(shard, start, end)
        with self._log.index.read() as view:
            record = view.get(SHARDS, shard)
            assert record is not None
            counted = [(damage, _count_wanted(view, record, damage, wanted)) for damage in found]
        return [(damage, count) for damage, count in counted if count]

    def locate(
        self, shard: int, epoch: str, start: int, end: int, *, max_bytes: int, wanted: TopicFilter = EVERYTHING
    ) -> FileRange:
        """Return the file in which the first wanted events from ``start`` on lie, for a reader on this machine.

        It names at least one chunk, then more up to ``end``, to ``max_bytes`` or to the end of the file; none if no
        event up to ``end`` is wanted.  Nothing is read or verified.  Errors are those of ``read``.  If these events lie
        in the tier it names nothing, up to ``start``.
        """

        def find(view: Transaction, record: ShardState) -> list[Stretch]:
            return find_wanted(view, record, start, end, max_bytes, wanted)

        def name(stretches: list[Stretch]) -> FileRange:
            places = [stretch.place for stretch in stretches if stretch.place is not None]
            if not places:
                return FileRange(path="", device=0, inode=0, end=stretches[-1].end, pieces=[])
            segment, revision = places[0].segment, places[0].revision
            if revision == IN_TIER:
                return FileRange(path="", device=0, inode=0, end=start, pieces=[])
            path, device, inode = self._log.files.identify(shard, epoch, segment, revision)
            ends = [place.end for place in places if (place.segment, place.revision) == (segment, revision)]
            upto = stretches[-1].end if len(ends) == len(places) else ends[-1]
            return FileRange(path=path, device=device, inode=inode, end=upto, pieces=split_pieces(places, CHUNK_BYTES))

        return self._reading(shard, epoch, start, end, wanted, find, name)

    def _reading(
        self,
        shard: int,
        epoch: str,
        start: int,
        end: int,
        wanted: TopicFilter,
        find: Callable[[Transaction, ShardState], list[Stretch]],
        use: Callable[[list[Stretch]], T],
    ) -> T:
        """Use the places of a range; one that was trimmed or went to the tier meanwhile is not reported as damaged."""
        before: list[Stretch] | None = None
        while True:
            with self._log.index.read() as view:
                record = self._check_range(view, shard, epoch, start, end, wanted)
                stretches = find(view, record)
            try:
                return use(stretches)
            except LogDamaged:
                if stretches == before:
                    raise
                before = stretches

    def _check_range(
        self, view: Transaction, number: int, epoch: str, start: int, end: int, wanted: TopicFilter
    ) -> ShardState:
        shard = view.find(SHARDS, number)
        if shard is None or shard.epoch != epoch:
            raise DataLost(f"shard {number}@{epoch} is not there: the log was wiped or is another one")
        earliest = self._log.removals.earliest(number, shard.earliest, wanted)
        if start < earliest:
            raise DataLost(
                f"offset {start} of shard {number}@{epoch} was trimmed: the earliest event there is {earliest}"
            )
        if not start < end <= shard.next:
            raise ValueError(f"no events {start} to {end}: shard {number}@{epoch} ends at {shard.next}")
        return shard

    def earliest(self, state: ShardState, wanted: TopicFilter) -> int:
        """Return the offset below which wanted events of a shard may have been removed."""
        return self._log.removals.earliest(state.number, state.earliest, wanted)

    def look(
        self, shard: int, start: int, wanted: TopicFilter, limit: int | None = None, *, end: int | None = None
    ) -> News:
        """Return where wanted events are, from offset ``start`` on.

        Args:
            shard: number of an existing shard.
            start: an offset.
            wanted: topics.
            limit: most events to count. None: only find out if there is one.
            end: offset after the last event that may be reported. None: all may be.

        Where the log is damaged, all events count as wanted: their readers learn of it.
        """
        with self._log.index.read() as view:
            record = view.find(SHARDS, shard)
            if record is None:
                raise ValueError(f"there is no shard {shard}")
            if end is not None:
                record = dataclasses.replace(record, next=min(end, record.next))
            try:
                return self._look(view, record, start, wanted, limit)
            except LogDamaged:
                begin = min(max(start, record.earliest), record.next)
                upto = record.next if limit is None else min(begin + limit, record.next)
                return News(
                    earliest=self._log.removals.earliest(shard, record.earliest, wanted),
                    next=record.next,
                    first=begin,
                    count=upto - begin,
                    upto=upto,
                )

    def _look(self, view: Transaction, record: ShardState, start: int, wanted: TopicFilter, limit: int | None) -> News:
        shard = record.number
        earliest = self._log.removals.earliest(shard, record.earliest, wanted)
        begin = max(start, record.earliest)
        first, upto, count = record.next, record.next, 0
        for found in find_chunks(view, shard, record.epoch, begin, wanted, record.next):
            place, here = found.place, found.wanted
            offsets: Sequence[int] = ()
            if found.is_known and here == place.count:
                offsets = range(max(begin, place.first), place.end)
                here = len(offsets)
            elif place.first < begin or not found.is_known or (limit is not None and count + here > limit):
                offsets = self._offsets(shard, record.epoch, place, wanted, begin)
                here = len(offsets)
            if not here:
                continue
            first = min(first, max(begin, place.first))
            if limit is None:
                count = 1
                break
            if count + here >= limit:
                # Behind the last wanted event of a chunk there is nothing to come back for.
                upto = place.end if count + here == limit else offsets[limit - count - 1] + 1
                count = limit
                break
            count += here
        return News(earliest=earliest, next=record.next, first=first, count=count, upto=upto)

    def _offsets(self, shard: int, epoch: str, place: ChunkPlace, wanted: TopicFilter, begin: int) -> Sequence[int]:
        """Return the offsets of a chunk's wanted events from ``begin`` on; of a damaged one all."""
        try:
            (chunk,) = read_places(self._log.files, shard, epoch, [place])
        except LogDamaged:
            return range(max(begin, place.first), place.end)
        offsets: list[int] = wanted.keep(decode_events(chunk.data)).column("offset").to_pylist()
        return offsets[bisect.bisect_left(offsets, begin) :]

    def verify(self) -> Iterator[tuple[int, int, str | None]]:
        """Read everything; yield shard, offset and what is wrong there, if anything is, for each stretch of chunks.

        Damage ends nothing: verifying goes on behind the chunk that has it.  Without a tier that is attached, what lies
        in the tier alone is passed over.

        Raises:
            LogDamaged: at the end, if what the log knows besides events, such as its publishers, is damaged.
        """
        with self._log.index.read() as view:
            shards = all_shards(view)
        for shard in shards:
            at = shard.earliest
            while at < shard.next:
                if (behind := self._tiering.skip(shard.number, at)) > at:
                    at = behind
                    continue
                with self._log.index.read() as view:
                    record = view.get(SHARDS, shard.number)
                    assert record is not None
                    stretches = find_sound(view, record, at, shard.next, _VERIFIED_AT_ONCE)
                try:
                    read_stretches(self._log.files, record.number, record.epoch, stretches)
                    yield shard.number, at, None
                except LogDamaged:
                    for stretch in stretches:
                        try:
                            read_stretches(self._log.files, record.number, record.epoch, [stretch])
                        except LogDamaged as error:
                            yield shard.number, stretch.first, str(error)
                at = stretches[-1].end
        with self._log.index.read() as view:
            for table in TABLES.values():
                view.verify(table)

    def offset_at(self, shard: int, timestamp: int) -> int:
        """Return the first offset whose event is not older than ``timestamp``; ``next`` if there is none."""
        with self._log.index.read() as view:
            record = view.find(SHARDS, shard)
            if record is None:
                raise ValueError(f"there is no shard {shard}")
            offset, place = find_offset(view, record, timestamp)
        if place is None or place.revision != IN_TIER:
            return offset
        (chunk,) = read_places(self._log.files, shard, record.epoch, [place])
        return max(offset, find_row(chunk, timestamp))


def _count_wanted(view: Transaction, shard: ShardState, damage: Damage, wanted: TopicFilter) -> int:
    start, end = max(damage.offset, shard.earliest), damage.end
    if start >= end:
        return 0
    count = 0
    try:
        for found in find_chunks(view, shard.number, shard.epoch, start, wanted, end):
            place = found.place
            if start <= place.first and place.end <= end:
                count += found.wanted
            elif wanted.is_everything:
                count += min(place.end, end) - max(place.first, start)
            elif start <= place.first:  # which of its events are wanted is unknown: they count where it begins
                count += found.wanted
    except LogDamaged:
        return end - start
    return count


def say_damage(damaged: Iterable[Damage], directory: Path) -> None:
    """Log that events are damaged."""
    for damage in damaged:
        _log.error(
            "%s. Readers of them end with an error, or go on without them where they say so; put the file back if "
            "there is a copy. 'iris bridge verify --data %s' reads the whole log",
            damage.describe(str(damage.shard)),
            directory,
            extra={"shard": damage.shard, "count": damage.end - damage.offset, "reason": damage.reason},
        )
