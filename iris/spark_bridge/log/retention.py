"""Retention: which events may be removed, by age and by size, but never what a protected group has still to read.

Whole segments go, from the beginning of each shard.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar, final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, as_whole, shown
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.log.appender import write_gaps
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.owners import Owners
from iris.spark_bridge.log.reader import Reader
from iris.spark_bridge.log.records import (
    CHUNKS,
    CURSORS,
    IN_TIER,
    SEGMENTS,
    SHARDS,
    TIERED,
    ChunkPlace,
    SegmentRecord,
    ShardState,
    all_shards,
    delete_chunks,
    delete_topics,
    segments_of,
    spans,
)
from iris.spark_bridge.log.segments import Reserve
from iris.spark_bridge.log.tiering import Tiering
from iris.spark_bridge.log.topics.index import topics_of
from iris.spark_bridge.log.transaction import Transaction

T = TypeVar("T")

_DELETED_AT_ONCE: Final = 20_000
"""Chunks that one transaction deletes: about 20 ms in which nothing is appended."""


def _limit(name: str, value: object) -> float | None:
    """Return a limit as Python's own number, of bytes a whole one if it is; NaN if it is none."""
    if value is None:
        return None
    whole = as_whole(value) if name == "max_bytes" else None
    return as_float(value) if whole is None else whole


GROUP_IDLE: Final = 30 * 86_400.0
"""Seconds.  A job that runs once a month keeps its place, and so does who is away for some weeks; names that somebody
made up for a look go before a cluster has no room for more."""

_SHORTEST_IDLE: Final = 86_400.0
"""Seconds: 24 times the longest pause between two signs of life of a group in use."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention of a log's events.  Whole segments are removed, so it keeps somewhat more than asked.

    Raises:
        ConfigError: a limit is not above 0.
    """

    max_age: float | None = None
    """Seconds; None keeps events of any age."""
    max_bytes: int | None = None
    """Least that is kept of all shards of a member together, in bytes. None: no limit."""
    keep_unread: bool = False
    """Keep what a known group has not read yet, whatever the limits say."""
    group_idle: float = GROUP_IDLE
    """Seconds, a day at least, after which a group of readers that nobody uses is forgotten.  A group in use never is:
    one that has a consumer, or a query of Spark's."""

    def without_ages(self) -> Retention:
        """Return the same without what depends on the clock."""
        return dataclasses.replace(self, max_age=None)

    def __post_init__(self) -> None:
        for name in ("max_age", "max_bytes"):
            value = _limit(name, given := getattr(self, name))
            if value is not None and not value > 0:
                raise ConfigError(f"retention: {name} is {shown(given)}: use a number above 0, or None for no limit")
            object.__setattr__(self, name, value)
        idle = as_float(self.group_idle)
        if not _SHORTEST_IDLE <= idle < math.inf:
            raise ConfigError(f"retention: group_idle is {shown(self.group_idle)}: use {_SHORTEST_IDLE:g} s or more")
        object.__setattr__(self, "group_idle", idle)


def choose_expired(
    segments: Mapping[int, Sequence[SegmentRecord]],
    retention: Retention,
    *,
    now: int,
    unread: Mapping[int, int],
) -> dict[int, int]:
    """Return, by shard, the offset below which events may go.

    Args:
        segments: by shard, oldest first.
        retention: the limits.
        now: microseconds since 1970.
        unread: lowest offset that a group has still to read, by shard.
    """
    before: dict[int, int] = {}
    total = sum(segment.size for shard in segments.values() for segment in shard)
    by_age = [item for number, shard in segments.items() for item in _ages(number, shard, now)]
    by_age.sort(key=lambda item: item[:3])
    stopped: set[int] = set()
    needed = retention.max_bytes is None
    for age, number, _, segment in by_age:
        if number in stopped:
            continue
        too_old = retention.max_age is not None and age < now - retention.max_age * 1_000_000
        # Once the oldest that is left is needed, so are all behind it: a smaller one in its place would take it along.
        needed = needed or (retention.max_bytes is not None and total - segment.size < retention.max_bytes)
        if needed and not too_old:
            continue
        if retention.keep_unread and segment.end > unread.get(number, segment.end):
            stopped.add(number)
            continue
        before[number] = segment.end
        total -= segment.size
    return before


def _ages(number: int, shard: Sequence[SegmentRecord], now: int) -> list[tuple[int, int, int, SegmentRecord]]:
    """Return shard, place and segment of each of its segments, behind the time from which it is as old as it is.

    After a clock that was ahead was set right, events go on with the time that it had.  When they were written decides
    more then.  A segment that was itself written at such a time goes with the one behind it.
    """
    found: list[tuple[int, int, int, SegmentRecord]] = []
    age = sys.maxsize
    for segment in reversed(shard):
        age = min(age, segment.last_timestamp if segment.last_timestamp <= now else segment.written)
        found.append((age, number, segment.first, segment))
    return found


@final
class Retainer:
    """Makes room in a log.  Every call blocks.

    Args:
        log: the log.
        tiering: tier of the log.
        reader: reader of the log, which learns what is gone.
        owners: owners of names.
    """

    def __init__(self, log: OpenLog, tiering: Tiering, reader: Reader, owners: Owners) -> None:
        self._log = log
        self._tiering = tiering
        self._reader = reader
        self._owners = owners
        self._reserve = Reserve(log.directory / "reserve")
        self._retaining = threading.Lock()

    def trim(self, shard: int, before: int) -> int:
        """Remove the events of a shard below offset ``before``; return how many are gone now.

        Raises:
            StoreFull: there is no room even to write that down; some of it may be done.
        """
        with self._log.writing:
            with self._log.index.read() as view:
                record = view.find(SHARDS, shard)
            if record is None:
                raise ValueError(f"there is no shard {shard}")
            return self._make_room(partial(self._trim, shard, before)) - record.earliest

    def _make_room(self, remove: Callable[[], T]) -> T:
        """Remove something; a full disk gives up its reserve for that."""
        try:
            try:
                return remove()
            except StoreFull:
                self._reserve.give_up()
                return remove()
        finally:
            self._reserve.make()

    def _trim(self, number: int, before: int) -> int:
        with self._log.changing() as view:
            shard = view.get(SHARDS, number)
            assert shard is not None
            earliest = min(max(before, shard.earliest), shard.next)
            # From here no reader gets these events any more; what follows only gives their room back.
            view.put(SHARDS, number, dataclasses.replace(shard, earliest=earliest))
            self._log.gaps.trim(number, earliest)
            write_gaps(view, self._log.gaps)
            self._note_removal(view, shard, earliest)
            dead = [segment for segment in segments_of(view, number) if segment.end <= earliest]
        self._reader.trimmed(number, earliest)
        size = shard.size
        for segment in dead:
            deleted = _DELETED_AT_ONCE
            while deleted == _DELETED_AT_ONCE:
                with self._log.index.write() as view:
                    deleted = _delete_chunks(view, number, segment.end)
                    if deleted < _DELETED_AT_ONCE:
                        delete_topics(view, number, segment.first)
                        view.delete(SEGMENTS, (number, segment.first))
                        view.delete(TIERED, (number, segment.first))
                        size -= segment.size
                        view.put(SHARDS, number, dataclasses.replace(shard, earliest=earliest, size=size))
            self._tiering.trimmed(number, segment.first)
            # The index first: a crash in between leaves a file that nothing names, which the next start removes. The
            # other way round it would leave an index without its file, which is damage.
            self._log.files.remove(number, shard.epoch, segment.first, segment.revision)
        return earliest

    def _note_removal(self, view: Transaction, shard: ShardState, earliest: int) -> None:
        """Record the topics whose events below ``earliest`` go: a reader of other topics has lost nothing."""
        for segment in spans(view, SEGMENTS, shard.number, shard.earliest):
            if segment.first >= earliest:
                break
            topics = topics_of(view, shard.number, segment, earliest)
            self._log.removals.note(shard.number, topics, min(segment.end, earliest), earliest=shard.earliest)
        self._log.removals.write(view)

    def retain(self, retention: Retention, *, now: int) -> int:
        """Remove what ``retention`` no longer wants; return how many events are gone now.

        With a tier none are: files go whose segments it has, and other segments stay.
        """
        with self._retaining:
            with self._log.index.read() as view:
                shards = all_shards(view)
                segments = {shard.number: segments_of(view, shard.number) for shard in shards}
                cursors = [cursor for _, cursor in view.items(CURSORS)]
            unread = {
                shard.number: min(
                    (cursor.offsets.get(f"{shard.number}@{shard.epoch}", shard.earliest) for cursor in cursors),
                    default=shard.next,
                )
                for shard in shards
            }
            local = {
                number: [segment for segment in own if segment.revision != IN_TIER] for number, own in segments.items()
            }
            expired = choose_expired(local, retention, now=now, unread=unread)
            if self._tiering.is_attached:
                for number, before in expired.items():
                    self._make_room(partial(self._tiering.drop, number, before))
                return 0
            return sum(self.trim(shard, before) for shard, before in expired.items())

    def forget_publishers(self, before: int) -> int:
        """Forget the publishers whose last event arrived before ``before``; return how many.

        Their repeats are recognized no more.  So it is with Spark's jobs; streaming queries are remembered for ever.
        """
        with self._owners.changing() as view:
            self._owners.drop_jobs(view, before)
            return self._log.publishers.forget_silent(view, before)


def _delete_chunks(view: Transaction, shard: int, before: int) -> int:
    """Delete chunks that end at or before an offset, as many as one transaction does; return how many."""
    dead: list[ChunkPlace] = []
    for place in spans(view, CHUNKS, shard):
        if place.end > before or len(dead) == _DELETED_AT_ONCE:
            break
        dead.append(place)
    delete_chunks(view, shard, dead)
    return len(dead)
