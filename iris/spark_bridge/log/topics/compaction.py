"""Compaction: segments are written anew without the events that the rules of their topics let go.

- Offsets stay.  A chunk keeps its offsets and timestamp, with fewer events.  Offsets without events are covered by
  chunks that hold none, so reading goes on at the next event.
- A segment that may still grow is never written anew, but what stands in it counts: an event is superseded by a later
  one of the same topic and key, wherever that is.  An event without a key has that of its topic alone.
- A key is forgotten by a *tombstone*, an event whose value is null: what stands before it goes, however little of its
  segment that is, and the tombstone itself goes a day later.  It does not go before what it supersedes: then the former
  value would be the last one again.
- Nothing is lost by a crash.  The new file is on the disk before the transaction that names it in the place of the old
  one, and the old one goes behind that.  Whatever file the index does not name is removed when the log is opened.

The map of keys has a bound.  When it is full it covers the log up to some offset; what that supersedes goes, and the
next run goes on from there.  As in Kafka's log cleaner, a run begins when what was appended since the last one is as
much as what was left then, so each event is read a bounded number of times.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Final, Protocol, final

import pyarrow as pa
import pyarrow.compute as pc

from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.chunk_io import read_places
from iris.spark_bridge.log.index import Index
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.records import (
    CHUNKS,
    SEGMENTS,
    SHARDS,
    ChunkPlace,
    SegmentRecord,
    ShardState,
    chunk_from,
    delete_chunks,
    delete_topics,
    last_segment,
    segment_at,
    segments_of,
)
from iris.spark_bridge.log.retention import SegmentShares, TopicRetention, TopicRules, choose_rules
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.topics.filter import TopicFilter, empty_chunk, with_events
from iris.spark_bridge.log.topics.index import SegmentTopics, find_chunks, places_of, share_of

_log: Final = logging.getLogger("iris")

MOST_KEYS: Final = 262_144
"""Keys of one run: about 50 MiB."""

_KEY_BYTES: Final = 16

_WORTH_WRITING: Final = 4
"""A segment is written anew for superseded events if one of so many is."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewestKeys:
    """The newest event of each key in part of a shard."""

    offsets: Mapping[bytes, int]
    """Newest event of each key: its offset, by hash of topic and key."""
    end: int
    """End of the range in which all events were looked at."""
    tombstones: Mapping[bytes, int]
    """Timestamps of the newest events that are tombstones, by the same hash."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tombstones:
    """Tombstones of a shard."""

    below: int = 0
    """End of the range in which nothing is left of what they supersede."""
    oldest: float = math.inf
    """Timestamp of the oldest one there."""


def find_newest(
    index: Index, files: SegmentFiles, shard: int, epoch: str, start: int, end: int, wanted: TopicFilter
) -> NewestKeys:
    """Return the newest event of each key of topics, in a range; raise LogDamaged if it is not as written."""
    newest: dict[bytes, int] = {}
    tombstones: dict[bytes, int] = {}
    at = start
    while at < end and len(newest) < MOST_KEYS:
        with index.read() as view:
            found = next(find_chunks(view, shard, epoch, at, wanted, end), None)
        if found is None:
            at = end
            break
        (chunk,) = read_places(files, shard, epoch, [found.place])
        events = wanted.keep(decode_events(chunk.data))
        offsets: list[int] = events.column("offset").to_pylist()
        nulls: list[bool] = pc.is_null(events.column("value")).to_pylist()
        for key, offset, is_null in zip(_keys(events), offsets, nulls, strict=True):
            newest[key] = offset
            if is_null:
                tombstones[key] = chunk.timestamp
            else:
                tombstones.pop(key, None)
        at = chunk.end
    return NewestKeys(offsets=newest, end=at, tombstones=tombstones)


def _keys(events: pa.RecordBatch) -> Iterator[bytes]:
    topics: list[str] = events.column("topic").to_pylist()
    keys: list[bytes | None] = events.column("key").to_pylist()
    for topic, key in zip(topics, keys, strict=True):
        whole = topic.encode() if key is None else b"\0".join((topic.encode(), key))
        yield hashlib.blake2b(whole, digest_size=_KEY_BYTES).digest()


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeptChunk:
    """Chunk of the new file: the events kept of one or more chunks of a segment."""

    place: ChunkPlace
    """Place in the new file."""
    topics: Mapping[str, int]
    """Number of events on each topic."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Events that are to go from a segment."""

    rules: TopicRules
    """Retention rules of topics."""
    expired: Collection[int]
    """Numbers of the rules whose events in the segment go."""
    newest: NewestKeys | None
    """Newest event of each key, which supersedes others, for rules that keep the last value. None: none do."""
    below: int = 0
    """Tombstones before this offset go if their timestamp is less than ``before``."""
    before: float = 0
    """Microseconds since 1970."""


@final
class SegmentCleaner:
    """Goes through a segment and leaves out what is to go.

    Args:
        files: files of the segments.
        shard: the shard.
        segment: a segment that does not grow any more.
        places: places of the segment's chunks.
        removal: what is to go.
    """

    def __init__(
        self,
        files: SegmentFiles,
        shard: ShardState,
        segment: SegmentRecord,
        places: Sequence[ChunkPlace],
        removal: Removal,
    ) -> None:
        self._files = files
        self._shard = shard
        self._segment = segment
        self._places = places
        self._removal = removal
        self.forgets = False
        """True if an event that goes belongs to a key that is gone: then the segment is written in any case."""
        self.oldest_tombstone = math.inf
        """Timestamp of the oldest one before ``below`` that stays."""
        self.kept: Final[list[KeptChunk]] = []
        """Chunks that ``frames`` has yielded, without the bytes."""

    def count(self) -> tuple[int, int]:
        """Return how many events of the segment go, and how many it holds.

        Raises:
            LogDamaged: what is stored is not what was written.
        """
        gone = held = 0
        for place in self._places:
            _, events, keep = self._examine(place)
            held += events.num_rows
            gone += 0 if keep is None else events.num_rows - len(keep)
        return gone, held

    def frames(self) -> Iterator[bytes | memoryview]:
        """Yield the frames of the new file; ``kept`` says what they are.

        Raises:
            LogDamaged: what is stored is not what was written.
        """
        position = 0
        gap: ChunkPlace | None = None
        for place in self._places:
            chunk, events, keep = self._examine(place)
            if keep is not None:
                events = events.take(pa.array(keep, pa.int64()))
                chunk = with_events(chunk, events)
            if not events.num_rows:
                gap = place if gap is None else dataclasses.replace(place, first=gap.first, count=place.end - gap.first)
                continue
            if gap is not None:
                position += yield from self._write(self._empty(gap), {}, position)
                gap = None
            topics: dict[str, int] = {}
            for topic in events.column("topic").to_pylist():
                topics[topic] = topics.get(topic, 0) + 1
            position += yield from self._write(chunk, topics, position)
        if gap is not None:
            yield from self._write(self._empty(gap), {}, position)

    def _empty(self, gap: ChunkPlace) -> Chunk:
        return empty_chunk(self._shard.number, self._shard.epoch, gap.first, gap.end, gap.timestamp)

    def _write(
        self, chunk: Chunk, topics: Mapping[str, int], position: int
    ) -> Generator[bytes | memoryview, None, int]:
        size = len(chunk.frame)
        place = ChunkPlace(
            first=chunk.first,
            count=chunk.count,
            timestamp=chunk.timestamp,
            segment=self._segment.first,
            position=position,
            size=size,
            revision=self._segment.revision + 1,
        )
        self.kept.append(KeptChunk(place=place, topics=topics))
        yield chunk.frame
        return size

    def _examine(self, place: ChunkPlace) -> tuple[Chunk, pa.RecordBatch, list[int] | None]:
        """Return a chunk, its events, and the numbers of those that stay; None: all do."""
        (chunk,) = read_places(self._files, self._shard.number, self._shard.epoch, [place])
        events = decode_events(chunk.data)
        topics: list[str] = events.column("topic").to_pylist()
        removal = self._removal
        rules = removal.rules.of(set(topics))
        going = {topic for topic, rule in rules.items() if rule in removal.expired}
        compacted = {topic for topic, rule in rules.items() if removal.rules.keeps_last(rule)}
        superseded: Sequence[bool] = ()
        if compacted and (removal.newest is not None or place.first < removal.below):
            superseded = [
                topic in compacted and self._is_superseded(key, offset, chunk.timestamp, is_tombstone)
                for topic, key, offset, is_tombstone in zip(
                    topics,
                    _keys(events),
                    events.column("offset").to_pylist(),
                    pc.is_null(events.column("value")).to_pylist(),
                    strict=True,
                )
            ]
        elif not going:
            return chunk, events, None
        keep = [at for at, topic in enumerate(topics) if topic not in going and not (superseded and superseded[at])]
        return chunk, events, None if len(keep) == len(topics) else keep

    def _is_superseded(self, key: bytes, offset: int, timestamp: int, is_tombstone: bool) -> bool:
        """Return whether an event of a rule that keeps the last value of each key is to go."""
        newest = self._removal.newest
        if newest is not None and newest.offsets.get(key, -1) > offset:
            self.forgets = self.forgets or key in newest.tombstones
            return True
        if not is_tombstone or offset >= self._removal.below:
            return False
        if timestamp < self._removal.before:
            self.forgets = True
            return True
        self.oldest_tombstone = min(self.oldest_tombstone, timestamp)
        return False


class Trimming(Protocol):
    """Port of a cleaner to its log."""

    def trim(self, shard: int, before: int, /) -> int:
        """Remove the events of a shard below an offset; return how many those were.  It blocks."""
        ...


@final
class LogCleaner:
    """Applies the rules of topics to a log.  One thread at a time may call it.

    Args:
        log: the log.
        trimming: removes whole segments.
    """

    def __init__(self, log: OpenLog, trimming: Trimming) -> None:
        self._log = log
        self._trimming = trimming
        self._ended: Final = log.tails.ended
        self._topics = log.tails.topics
        self._shares: dict[tuple[int, SegmentRecord, Sequence[TopicRetention]], SegmentShares] = {}
        """Shares of each rule in segments that do not grow any more."""
        self._cleaned: dict[int, int] = {}
        """End of the range in which superseded events were looked for, by shard."""
        self._tombstones: dict[int, Tombstones] = {}
        """Tombstones by shard."""
        self._said: set[str] = set()

    def retain(self, number: int, rules: TopicRules, *, now: int, unread: int) -> int:
        """Remove from a shard what the rules of topics let go; return how many events.

        Args:
            number: number of an existing shard.
            rules: retention rules of topics.
            now: microseconds since 1970.
            unread: segments with events from this offset on stay as they are.
        """
        self._end_segment(number, rules.span, now)
        with self._log.index.read() as view:
            shard = view.get(SHARDS, number)
            assert shard is not None
            segments = [segment for segment in segments_of(view, number) if segment.end > shard.earliest]
            try:
                shares = {
                    segment.first: self._shares.get((number, segment, rules.rules))
                    or share_of(view, number, segment, rules)
                    for segment in segments
                }
            except LogDamaged as error:
                self._say_damage(shard, error)
                return 0
        known = {(number, segment, rules.rules): shares[segment.first] for segment in segments[:-1]}
        self._shares = {key: share for key, share in self._shares.items() if key[0] != number} | known
        expired = choose_rules(segments, shares, rules, now=now)
        closed = segments if number in self._ended else segments[:-1]
        closed = [segment for segment in closed if segment.end <= unread]
        start = max(self._cleaned.get(number, 0), shard.earliest)
        newest = self._find_superseded(shard, closed, shares, rules, start)
        tombstones = self._tombstones.get(number, Tombstones())
        buried = now - rules.tombstones * 1_000_000
        below = tombstones.below if newest is not None or tombstones.oldest < buried else 0
        oldest = math.inf if below else tombstones.oldest
        is_whole = all(share.is_known for share in shares.values())
        gone, before, is_first = 0, shard.earliest, True
        for segment in closed:
            share, going = shares[segment.first], expired[segment.first]
            held = sum(share.events)
            if is_first and all(rule in going or not count for rule, count in enumerate(share.events)):
                before = segment.end
                gone += held
                continue
            going = {rule for rule in going if share.events[rule]}
            older = newest if newest is not None and segment.first < newest.end and _of_last(share, rules) else None
            cleaned = 0
            if share.is_known and (going or older is not None or (segment.first < below and _of_last(share, rules))):
                places = self._places_of(shard, segment)
                removal = Removal(rules=rules, expired=going, newest=older, below=below, before=buried)
                cleaner = SegmentCleaner(self._log.files, shard, segment, places or (), removal)
                done = None if places is None else self._clean(shard, segment, cleaner, places, expired=bool(going))
                cleaned = done or 0
                is_whole = is_whole and done is not None
                oldest = min(oldest, cleaner.oldest_tombstone)
            gone += cleaned
            is_first = is_first and cleaned == held
            before = segment.end if is_first else before
        if before > shard.earliest:
            self._trimming.trim(number, before)
        if newest is not None:
            upto = self._cleaned[number] = min(newest.end, closed[-1].end)
            found = (at for key, at in newest.tombstones.items() if newest.offsets[key] < upto)
            is_whole = is_whole and start <= max(tombstones.below, shard.earliest)
            tombstones = Tombstones(below=upto if is_whole else tombstones.below, oldest=min(oldest, *found, math.inf))
        else:
            tombstones = dataclasses.replace(tombstones, oldest=oldest)
        self._tombstones[number] = tombstones
        return gone

    def _end_segment(self, number: int, span: float, now: int) -> None:
        """Let a segment grow no more that has begun more than ``span`` seconds ago: only then is it looked at."""
        with self._log.writing, self._log.index.read() as view:
            segment = last_segment(view, number)
            first = None if segment is None else chunk_from(view, number, segment.first)
            if first is not None and first.timestamp < now - span * 1_000_000:
                self._ended.add(number)

    def _find_superseded(
        self,
        shard: ShardState,
        closed: Sequence[SegmentRecord],
        shares: Mapping[int, SegmentShares],
        rules: TopicRules,
        start: int,
    ) -> NewestKeys | None:
        """Return by what events are superseded, if it is time to look at them."""
        cleaned = self._cleaned.get(shard.number, 0)
        dirty = sum(_of_last(shares[segment.first], rules) for segment in closed if segment.end > cleaned)
        clean = sum(_of_last(shares[segment.first], rules) for segment in closed if segment.end <= cleaned)
        if not dirty or dirty < clean:
            return None
        wanted = TopicFilter([rule.pattern for rule in rules.rules if rule.last_value])
        try:
            return find_newest(self._log.index, self._log.files, shard.number, shard.epoch, start, shard.next, wanted)
        except LogDamaged as error:
            self._say_damage(shard, error)
            return None

    def _places_of(self, shard: ShardState, segment: SegmentRecord) -> Sequence[ChunkPlace] | None:
        """Return where the chunks of a segment are; None: it was trimmed meanwhile."""
        with self._log.index.read() as view:
            if segment_at(view, shard.number, segment.first) != segment:
                return None
            return places_of(view, shard.number, segment)

    def _clean(
        self,
        shard: ShardState,
        segment: SegmentRecord,
        cleaner: SegmentCleaner,
        places: Sequence[ChunkPlace],
        *,
        expired: bool,
    ) -> int | None:
        """Write a segment anew without what is to go; return how many events are gone, None if that failed."""
        try:
            gone, held = cleaner.count()
            if not gone or not (expired or cleaner.forgets or gone * _WORTH_WRITING >= held):
                return 0
            revision = segment.revision + 1
            where = (shard.number, shard.epoch, segment.first)
            self._log.files.rewrite(*where, revision, cleaner.frames(), most=segment.size)
        except LogDamaged as error:
            self._say_damage(shard, error)
            return None
        except StoreFull:
            return None  # next time; what goes as a whole gives room back
        # Behind this line the new file is on the disk. Until the transaction commits nothing names it; from then on
        # nothing names the old one. Of either the next start removes what a crash has left.
        if not self._replace(shard, segment, cleaner.kept, places):
            self._log.files.remove(*where, revision)
            return None
        self._log.files.remove(*where, segment.revision)
        return gone

    def _replace(
        self, shard: ShardState, segment: SegmentRecord, kept: Sequence[KeptChunk], before: Sequence[ChunkPlace]
    ) -> bool:
        """Let the index name a segment's new file; return whether the segment was still there."""
        number = shard.number
        size = sum(chunk.place.size for chunk in kept)
        with self._log.writing, self._log.index.write() as view:
            record = view.get(SHARDS, number)
            if record is None or segment_at(view, number, segment.first) != segment:
                return False
            delete_chunks(view, number, before)
            delete_topics(view, number, segment.first)
            topics = SegmentTopics(segment.first, [])
            for chunk in kept:
                view.put(CHUNKS, (number, chunk.place.first), chunk.place)
                topics.note(view, number, chunk.place.first, chunk.topics)
            view.put(
                SEGMENTS,
                (number, segment.first),
                dataclasses.replace(segment, size=size, revision=segment.revision + 1, topics=len(topics)),
            )
            view.put(SHARDS, number, dataclasses.replace(record, size=record.size - segment.size + size))
            self._topics.pop(number, None)
        return True

    def _say_damage(self, shard: ShardState, error: LogDamaged) -> None:
        """Log, once, that a segment cannot be gone through."""
        if str(error) not in self._said:
            self._said.add(str(error))
            _log.error(
                "shard %d keeps events that are to go: %s",
                shard.number,
                error,
                extra={"shard": shard.number, "reason": str(error)},
            )


def _of_last(share: SegmentShares, rules: TopicRules) -> int:
    """Return about how many bytes of a segment are of topics of which the last value of each key is kept."""
    return sum(held for rule, held in enumerate(share.bytes) if rules.keeps_last(rule))
