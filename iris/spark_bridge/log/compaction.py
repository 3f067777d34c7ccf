"""Compaction: segments are written anew without the events that the rules of their topics let go.

- Offsets stay.  A chunk keeps its offsets and timestamp, with fewer events.  Offsets without events are covered by
  chunks that hold none, so reading goes on at the next event.
- A segment that may still grow is never written anew, but what stands in it counts: an event is superseded by a later
  one of the same topic and key, wherever that is.  An event without a key has that of its topic alone.
- Nothing is lost by a crash.  The new file is on the disk before the transaction that names it in the place of the old
  one, and the old one goes behind that.  Whatever file the index does not name is removed when the log is opened.

The map of keys has a bound.  When it is full it covers the log up to some offset; what that supersedes goes, and the
next run goes on from there.  As in Kafka's log cleaner, a run begins when what was appended since the last one is as
much as what was left then, so each event is read a bounded number of times.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Final, final

import pyarrow as pa

from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.chunk_io import read_places
from iris.spark_bridge.log.index import ChunkPlace, Index, SegmentRecord
from iris.spark_bridge.log.retention import TopicRules
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.topic_filter import TopicFilter, empty_chunk, with_events
from iris.spark_bridge.log.topic_index import find_chunks
from iris.spark_bridge.schema import decode_events

MOST_KEYS: Final = 262_144
"""Keys of one run: about 50 MiB."""

_KEY_BYTES: Final = 16


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewestKeys:
    """The newest event of each key in part of a shard."""

    offsets: Mapping[bytes, int]
    """By topic and key."""
    end: int
    """Up to this offset all events were looked at."""


def find_newest(
    index: Index, files: SegmentFiles, shard: int, epoch: str, start: int, end: int, wanted: TopicFilter
) -> NewestKeys:
    """Return the newest event of each key of some topics, between two offsets.

    Raises:
        LogDamaged: what is stored is not what was written.
    """
    newest: dict[bytes, int] = {}
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
        newest.update(zip(_keys(events), offsets, strict=True))
        at = chunk.end
    return NewestKeys(offsets=newest, end=at)


def _keys(events: pa.RecordBatch) -> Iterator[bytes]:
    topics: list[str] = events.column("topic").to_pylist()
    keys: list[bytes | None] = events.column("key").to_pylist()
    for topic, key in zip(topics, keys, strict=True):
        whole = topic.encode() if key is None else b"\0".join((topic.encode(), key))
        yield hashlib.blake2b(whole, digest_size=_KEY_BYTES).digest()


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeptChunk:
    """What stays of one or more chunks of a segment."""

    place: ChunkPlace
    """In the new file."""
    topics: Mapping[str, int]
    """How many events it holds of each."""


@final
class SegmentCleaner:
    """Goes through a segment and leaves out what is to go.

    Args:
        files: of the segments.
        shard: its number.
        epoch: of the shard.
        segment: one that does not grow any more.
        places: of its chunks.
        rules: of topics.
        expired: numbers of the rules whose events in this segment go.
        newest: what supersedes events of rules that keep the last value of each key; None: nothing does.
    """

    def __init__(
        self,
        files: SegmentFiles,
        shard: int,
        epoch: str,
        segment: SegmentRecord,
        places: Sequence[ChunkPlace],
        *,
        rules: TopicRules,
        expired: Collection[int],
        newest: NewestKeys | None,
    ) -> None:
        self._files = files
        self._shard = shard
        self._epoch = epoch
        self._segment = segment
        self._places = places
        self._rules = rules
        self._expired = expired
        self._newest = newest
        self.kept: Final[list[KeptChunk]] = []
        """What ``frames`` has yielded, without the bytes."""

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
        return empty_chunk(self._shard, self._epoch, gap.first, gap.end, gap.timestamp)

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
        (chunk,) = read_places(self._files, self._shard, self._epoch, [place])
        events = decode_events(chunk.data)
        topics: list[str] = events.column("topic").to_pylist()
        rules = self._rules.of(set(topics))
        going = {topic for topic, rule in rules.items() if rule in self._expired}
        compacted = {topic for topic, rule in rules.items() if self._rules.keeps_last(rule)}
        superseded: Sequence[bool] = ()
        if self._newest is not None and compacted:
            newest = self._newest.offsets
            offsets: list[int] = events.column("offset").to_pylist()
            superseded = [newest.get(key, -1) > offset for key, offset in zip(_keys(events), offsets, strict=True)]
        elif not going:
            return chunk, events, None
        keep = [
            at
            for at, topic in enumerate(topics)
            if topic not in going and not (superseded and topic in compacted and superseded[at])
        ]
        return chunk, events, None if len(keep) == len(topics) else keep
