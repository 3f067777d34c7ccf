"""Topic index: which chunks hold events of which topics, so that a reader is given, and waits for, its own alone.

Each segment numbers its topics as they come, and each chunk's record lists the numbers it holds, with a count of
events.  So one append of a thousand topics writes one record of 8 KB, not a thousand records; and what is known of a
topic goes with the segments that hold it, also where publishers take a new topic for each event.

A chunk names its topics itself, in its column.  The index repeats that, and can be made from chunks.  A copy that is
promoted by force may not have got that of its last chunks: they count as holding whatever is looked for, and are read.

Rejected: a record for each topic and chunk.  With 10,000 topics of unlike rates each append changes pages all over such
a table; to commit them took longer than to write the events.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, final

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.records import (
    CHUNKS,
    CONTENTS,
    SEGMENTS,
    ChunkPlace,
    Contents,
    SegmentRecord,
    put_topics,
    read_topics,
    spans,
)
from iris.spark_bridge.log.topics.filter import TopicFilter, WantedTopics
from iris.spark_bridge.log.transaction import Transaction


@final
class SegmentTopics:
    """The topics of the segment that a shard is appended to, by number.

    Args:
        segment: first offset of the segment.
        topics: topics that it has.
    """

    def __init__(self, segment: int, topics: list[str]) -> None:
        self.segment: Final = segment
        self._numbers = {topic: number for number, topic in enumerate(topics)}

    def __len__(self) -> int:
        return len(self._numbers)

    def note(self, view: Transaction, shard: int, first: int, counts: Mapping[str, int]) -> None:
        """Write which topics the chunk at ``first`` holds, each with its number of events."""
        numbers = self._numbers
        new = [topic for topic in counts if topic not in numbers]
        if new:
            at = len(numbers)
            numbers.update(zip(new, range(at, at + len(new)), strict=True))
            put_topics(view, shard, self.segment, at, new)
        contents = Contents(
            topics=[*map(numbers.__getitem__, counts)], counts=[*counts.values()], held=sum(counts.values())
        )
        view.put(CONTENTS, (shard, first), contents)


class Found(NamedTuple):
    """A chunk that holds, or may hold, wanted events."""

    place: ChunkPlace
    wanted: int
    """Number of wanted events; of all, if the topics of the chunk are not known."""
    held: int
    """Number of all events of the chunk."""
    is_known: bool
    """True if these numbers are exact."""


def find_chunks(
    view: Transaction, shard: int, epoch: str, start: int, wanted: TopicFilter, end: int
) -> Iterator[Found]:
    """Yield the chunks with wanted events, in order, from the one that holds ``start`` to the last one before ``end``.

    A segment without wanted topics is passed over in one step.

    Raises:
        LogDamaged: the index leaves something out, or contradicts itself.
    """
    at = start
    for segment in spans(view, SEGMENTS, shard, start):
        if segment.first >= end:
            break
        if at < segment.first:
            raise _left_out(shard, at)
        ids = None if wanted.is_everything else _wanted_ids(view, shard, epoch, segment, wanted)
        if ids is not None and not ids:
            at = segment.end
            continue
        upto = min(segment.end, end)
        for place in spans(view, CHUNKS, shard, at):
            if place.first >= upto:
                break
            if at < place.first:
                raise _left_out(shard, at)
            at = place.end
            contents = view.get(CONTENTS, (shard, place.first))
            if contents is None:
                yield Found(place, place.count, place.count, is_known=wanted.is_everything)
                continue
            count = contents.held
            if ids is not None:
                count = sum(itertools.compress(contents.counts, map(ids.__getitem__, contents.topics)))
            if count:
                yield Found(place, count, contents.held, is_known=True)
        if at < upto:
            raise _left_out(shard, at)
    if at < end:
        raise _left_out(shard, at)


def _left_out(shard: int, at: int) -> LogDamaged:
    """Return the error for an offset that is left out: it would count as unwanted."""
    return LogDamaged(f"the index of shard {shard} names no chunk for offset {at}")


def _wanted_ids(view: Transaction, shard: int, epoch: str, segment: SegmentRecord, wanted: TopicFilter) -> bytes | None:
    """Return 1 for each topic of a segment that is wanted, by number, else 0; nothing if none is.

    None: its topics were not noted.
    """
    if segment.topics is None:
        return None
    key = (epoch, segment.first, segment.revision)
    before = wanted.newest_segments.get(shard)
    is_newest = before is None or before.segment[0] != epoch or before.segment[1] <= segment.first
    known = before if before is not None and before.segment == key else WantedTopics(segment=key, known=0, ids=b"")
    if known.known >= segment.topics:
        return known.ids and known.ids.ljust(segment.topics, b"\0")
    topics = read_topics(view, shard, segment, known.known)
    chosen = set(wanted.choose(topics))
    ids = known.ids
    if chosen:
        ids = ids.ljust(known.known, b"\0") + bytes([topic in chosen for topic in topics])
    if is_newest:
        wanted.newest_segments[shard] = WantedTopics(segment=key, known=segment.topics, ids=ids)
    return ids and ids.ljust(segment.topics, b"\0")


def topics_of(view: Transaction, shard: int, segment: SegmentRecord, before: int) -> dict[str, int] | None:
    """Return the topics of a segment's chunks that begin below ``before``, each with the end of its last one.

    None: they are not known.
    """
    last: dict[int, int] = {}
    try:
        names = read_topics(view, shard, segment)
        for place in places_of(view, shard, segment):
            if place.first >= before:
                break
            contents = view.get(CONTENTS, (shard, place.first))
            if contents is None:
                return None
            last.update(dict.fromkeys(contents.topics, min(place.end, before)))
        return {names[number]: end for number, end in last.items()}
    except (LogDamaged, IndexError):
        return None  # it is to go, whatever was in it


def places_of(view: Transaction, shard: int, segment: SegmentRecord) -> list[ChunkPlace]:
    """Return all chunks of a segment; raise LogDamaged if the index leaves one out."""
    places = list(
        itertools.takewhile(lambda place: place.first < segment.end, spans(view, CHUNKS, shard, segment.first))
    )
    at = segment.first
    for place in places:
        if at < place.first:
            raise _left_out(shard, at)
        at = place.end
    if at < segment.end:
        raise _left_out(shard, at)
    return places
