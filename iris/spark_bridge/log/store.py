"""Store: the durable log on a local disk, with chunks in segment files and everything else in an LMDB index.

Every call blocks (the service makes them in threads) and is all or nothing.  A shard has an *epoch*, a random id made
when the shard is made.  Offsets mean something only together with the epoch, so a log that was wiped is noticed instead
of read from a position that no longer means the same.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import hashlib
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, final

import pyarrow as pa

from iris.kernel.config import MIB
from iris.kernel.names import account_of
from iris.kernel.tasks import close_locked
from iris.kernel.wire import saturated
from iris.patterns.bridge_protocol import GROUP
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import DataLost, LogDamaged, QuotaExceeded, StaleBatch, StoreFull
from iris.spark_bridge.events.damage import Damage, DamageBook
from iris.spark_bridge.events.gaps import Gap, GapBook
from iris.spark_bridge.events.runs import count_events, count_topics, cut_runs
from iris.spark_bridge.events.schema import decode_events, encode_events, place_rows
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.chunk_io import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    ROOM,
    Appending,
    FinishedSegment,
    ShardAppend,
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
from iris.spark_bridge.log.dedup import PublisherMemory, PublisherWindow, admit_runs
from iris.spark_bridge.log.index import IN_TIER, ChunkPlace, Index, IndexView, ShardRecord
from iris.spark_bridge.log.local_read import FileRange
from iris.spark_bridge.log.numbering import PublisherNumberings
from iris.spark_bridge.log.replication.replication import Replication
from iris.spark_bridge.log.retention import (
    Removals,
    Retention,
    TopicRules,
    choose_expired,
)
from iris.spark_bridge.log.segments import Reserve, SegmentFiles
from iris.spark_bridge.log.tiering import TierCatalog, Tiering
from iris.spark_bridge.log.topics.compaction import LogCleaner
from iris.spark_bridge.log.topics.filter import EVERYTHING, TopicFilter, empty_chunk, keep_topics
from iris.spark_bridge.log.topics.index import SegmentTopics, find_chunks, topics_of

T = TypeVar("T")

Change = Callable[[IndexView], Mapping[int, Sequence[EventRun]]]
"""Changes tables of the index, and returns events that are stored with that, by number of shard."""

_log: Final = logging.getLogger("iris")

QUERY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""Ids of the queries whose batches Spark writes; Spark's own are UUIDs."""

JOB_PREFIX: Final = "job-"
"""Prefix of the ids of Spark's batch jobs; a job never comes back, unlike a streaming query."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """One shard as it is now: it holds the events ``earliest`` up to but not including ``next``."""

    number: int
    epoch: str
    earliest: int
    next: int
    size: int
    """Size of the shard's chunks on the disk, in bytes."""
    timestamp: int
    """Time of the newest event, in microseconds since 1970; 0 if there was none."""
    gap: int = -1
    """The greatest offset before which events are missing; -1: none are."""

    @property
    def id(self) -> str:
        """The shard's name in Spark's offsets: number and epoch."""
        return f"{self.number}@{self.epoch}"


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The outcome of one append."""

    count: int
    """Events that are new in the log."""
    repeats: int
    """Events that were in the log before; they may be acknowledged to their publishers."""
    stale: Sequence[EventRun]
    """Events so late that it is unknown whether they are in the log.  Not stored, not to be confirmed."""
    missed: int = 0
    """Events newly found to be missing."""


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


_SIGN_OF_LIFE: Final = 3_600_000_000
"""Microseconds after which it is written down again that a group is in use."""

_WINDOWS: Final = 512 * MIB
"""Size of publishers' windows that stay in memory, in bytes: 3,000 large ones.  Others are read again when their
publishers publish."""

_WINDOWS_OF_OWNER: Final = 128 * MIB
"""Share of the publishers of one cluster in these, in bytes."""

_NUMBERINGS: Final = 128 * MIB
"""Size of publishers' numbers on their topics that stay in memory, in bytes."""

_NUMBERINGS_OF_OWNER: Final = 32 * MIB
"""Share of the publishers of one cluster in these, in bytes: 50,000 topics."""

_VERIFIED_AT_ONCE: Final = 8 * 1024 * 1024

_DELETED_AT_ONCE: Final = 20_000
"""Chunks that one transaction deletes: about 20 ms in which nothing is appended."""


@final
class Store:
    """A durable log of events in shards, in one directory.  Safe in any thread.  Made by ``open_store``.

    Args:
        directory: directory of the log.
        index: index of the log.
        files: segments of the log.
        catalog: objects of its tier.
        lock: descriptor of the locked file.
        damage: all known damage.
    """

    def __init__(
        self,
        directory: Path,
        index: Index,
        files: SegmentFiles,
        catalog: TierCatalog,
        lock: int,
        damage: DamageBook,
    ) -> None:
        self._directory = directory
        self._index = index
        self._files = files
        self._lock = lock
        self._windows: PublisherMemory[PublisherWindow] = PublisherMemory(
            most=_WINDOWS, most_of_owner=_WINDOWS_OF_OWNER
        )
        self._numberings: PublisherMemory[PublisherNumberings] = PublisherMemory(
            most=_NUMBERINGS, most_of_owner=_NUMBERINGS_OF_OWNER
        )
        with index.read() as view:
            self._gaps = GapBook(view.gaps())
            self._removals = Removals(view.removals())
        self._writing = threading.Lock()
        self.replication: Final = Replication(index, files, self._writing)
        """Replication of this log to copies."""
        self._topics: dict[int, SegmentTopics] = {}
        """Topics of the segment that each shard is appended to, by shard."""
        self._damage = damage
        self._noting = threading.Lock()
        self._appended: dict[int, set[str]] = {}
        """Topics of events appended to each shard since the last call that asked for them."""
        self._retaining = threading.Lock()
        self._ended: set[int] = set()
        """Shards whose last segment is not to grow any more: the next append begins another one."""
        self._cleaner = LogCleaner(index, files, self._writing, log=self, ended=self._ended, topics=self._topics)
        self.tiering: Final = Tiering(index, files, catalog, self._writing, self._ended)
        """Tiering of this log: its sealed segments go to a tier."""
        self._owned: Counter[tuple[str, str]] | None = None
        """Number of names by kind and cluster that owns them. None until they are counted."""
        self._sinks_complete = False
        """True once the table of queries has been read in full since the log was opened."""

    def __repr__(self) -> str:
        return f"<Store {self._directory}>"

    def shards(self) -> list[ShardState]:
        """Return every shard by number."""
        return self.numbered_shards()[1]

    def numbered_shards(self) -> tuple[int, list[ShardState]]:
        """Return the number of the last change of this log, and every shard as it is after that."""
        with self._index.read() as view:
            return view.number, [
                ShardState(
                    number=shard.number,
                    epoch=shard.epoch,
                    earliest=shard.earliest,
                    next=shard.next,
                    size=shard.size,
                    timestamp=shard.timestamp,
                    gap=self._gaps.last(shard.number),
                )
                for shard in view.shards()
            ]

    def read_transaction(self) -> AbstractContextManager[IndexView]:
        """See the index as it is now, in a block of one thread."""
        return self._index.read()

    # -- appending ------------------------------------------------------------------------------------------

    def append(
        self,
        events: Mapping[int, Sequence[EventRun]],
        *,
        now: int,
        date: int | None = None,
        judged: Callable[[str], bool] = lambda _: True,
        change: Change = lambda _: {},
    ) -> Appended:
        """Store events by number of shard, and change the index in the same transaction; it is on the disk after that.

        Repeats of (publisher, sequence) are left out.  Numbers that are missing become gaps, see
        ``iris.spark_bridge.log.numbering``.

        Args:
            events: in the order in which they are to stand.
            now: microseconds since 1970.
            date: date of the events, in microseconds since 1970. None: ``now``.
            judged: returns whether all events of a publisher come here, so that a missing one is a gap.
            change: called first; its events follow the others.

        Raises:
            StoreFull: there is no room; nothing was stored or changed.
        """
        with self._writing:
            try:
                # One transaction for the events, their places and the publishers' windows. It commits at the end of the
                # block, after ``ShardAppend.finish`` has synced the chunks: the index never names bytes that are not on
                # disk.
                with self._index.write() as view:
                    more = change(view)
                    events = {number: (*events.get(number, ()), *more.get(number, ())) for number in {**events, **more}}
                    appending = self._appending(view, now, date)
                    appended = self._append(appending, events, judged)
            except BaseException:
                # They count what was not stored; the truth is in the index.
                self._windows.clear()
                self._numberings.clear()
                self._topics.clear()
                with self._index.read() as view:
                    self._gaps = GapBook(view.gaps())
                raise
            self._note_appended({number: {run.topic for run in runs} for number, runs in events.items()})
            self._finish_segments(appending.finished)
            return appended

    def _append(
        self, appending: Appending, events: Mapping[int, Sequence[EventRun]], judged: Callable[[str], bool]
    ) -> Appended:
        view, now = appending.view, appending.now
        touched: dict[str, PublisherWindow] = {}

        def window(publisher: str) -> PublisherWindow:
            found = touched.get(publisher)
            if found is None:
                found = touched[publisher] = self._window(view, publisher)
            return found

        count = repeats = 0
        stale: list[EventRun] = []
        begins: dict[int, int] = {}
        numbered: dict[str, PublisherNumberings] = {}
        clusters: dict[str, str] = {}
        owners: dict[str, str] = {}
        for number, arrivals in events.items():
            owners.update((run.publisher, run.sender.cluster) for run in arrivals if run.confirm or run.first)
            # Judged in the transaction that stores the events: a crash leaves both the event and its mark, or neither.
            new, repeated, late = admit_runs(arrivals, window)
            count += count_events(new)
            repeats += repeated
            stale += late
            if new:
                at = begins[number] = self._append_to(appending, number, new)
                publisher, numberings = "", None
                for run in new:
                    if run.first:
                        if run.publisher != publisher:
                            publisher = run.publisher
                            numberings = numbered.get(publisher)
                            if numberings is None and judged(publisher):
                                numberings = numbered[publisher] = self._numberings_of(view, publisher)
                            if numberings is not None:
                                window(publisher)  # that is where its last arrival is recorded
                                clusters[publisher] = run.sender.cluster
                        if numberings is not None:
                            numberings.topic(run.topic).arrive(
                                run.first,
                                len(run.payloads),
                                owed=run.owed,
                                milestones=run.milestones,
                                shard=number,
                                offset=at,
                            )
                    at += len(run.payloads)
        missed = self._settle(view, clusters, numbered, begins, now)
        for publisher, changes in touched.items():
            numberings = numbered.get(publisher)
            if numberings is not None:
                self._numberings.keep(publisher, clusters[publisher], numberings, numberings.memory)
            size = None if numberings is None else numberings.size
            self._write_window(view, publisher, changes, now, numbered=size, owner=owners.get(publisher, ""))
        for owner in set(owners.values()) if touched else ():
            self._bound_publishers(view, owner)
        return Appended(count=count, repeats=repeats, stale=stale, missed=missed)

    def _bound_publishers(self, view: IndexView, owner: str) -> None:
        """Forget the publishers of a cluster that were silent for longest, if too much is kept of them."""
        surplus = view.quota("publishers").surplus(owner)
        if surplus is None:
            return
        crowded, size = surplus
        publishers = view.oldest_publishers(crowded, size)
        for publisher in publishers:
            self._forget_publisher(view, publisher)
        _log.warning(
            "%d publishers of cluster %s are forgotten, of all those that it had in a day: what they send again counts "
            "as new",
            len(publishers),
            crowded,
            extra={"cluster": crowded, "count": len(publishers)},
        )

    def _forget_publisher(self, view: IndexView, publisher: bytes) -> None:
        view.delete_publisher(publisher)
        self._windows.forget(publisher.hex())
        self._numberings.forget(publisher.hex())

    # -- what is missing ------------------------------------------------------------------------------------

    def _numberings_of(self, view: IndexView, publisher: str) -> PublisherNumberings:
        known = self._numberings.get(publisher)
        return PublisherNumberings(view.numberings(bytes.fromhex(publisher))) if known is None else known

    def _settle(
        self,
        view: IndexView,
        clusters: Mapping[str, str],
        numbered: Mapping[str, PublisherNumberings],
        begins: Mapping[int, int],
        now: int,
    ) -> int:
        """Write what publishers have numbered, and what turns out to be missing; return how many events that is."""
        missed = 0
        for publisher, cluster in clusters.items():
            key, numberings = bytes.fromhex(publisher), numbered[publisher]
            changed = {topic: numberings.topics[topic] for topic in numberings.changed}
            for topic, numbering in changed.items():
                for hole in numbering.settle(begins) if numbering.holes else ():
                    missed = saturated(missed + hole.size)
                    self._gaps.note(
                        Gap(
                            shard=hole.shard,
                            offset=hole.offset,
                            upto=hole.offset,
                            topic=topic,
                            cluster=cluster,
                            publisher=publisher,
                            count=saturated(hole.size),
                            timestamp=now,
                        )
                    )
            for topic, numbering in changed.items():
                numberings.count(topic, numbering)
            view.put_numberings(key, changed, now)
            for topic in numberings.expired:
                view.delete_numbering(key, topic)
            numberings.changed.clear()
            numberings.expired.clear()
        self._write_gaps(view)
        return missed

    def _write_gaps(self, view: IndexView) -> None:
        for key in self._gaps.removed:
            view.delete_gap(key)
        for key in self._gaps.changed:
            view.put_gap(self._gaps.get(key))
        self._gaps.removed.clear()
        self._gaps.changed.clear()

    def gaps(self) -> list[Gap]:
        """Return the gaps, by shard and offset."""
        return sorted(self._gaps, key=lambda gap: (gap.shard, gap.offset, gap.topic))

    def gaps_of(self, shard: int, start: int, end: int) -> list[Gap]:
        """Return the gaps that a reader of the events from ``start`` up to but not including ``end`` meets."""
        if self._gaps.last(shard) < start:
            return []
        return [gap for gap in self._gaps if gap.shard == shard and gap.spans(start, end)]

    def _append_to(self, appending: Appending, number: int, events: Sequence[EventRun]) -> int:
        """Append events to a shard; return the offset of the first one."""
        append = ShardAppend(appending, number)
        first = append.next
        for part in cut_runs(events, max_events=CHUNK_EVENTS, max_bytes=ROOM):
            append.add(count_topics(part), partial(encode_events, part, shard=number))
        append.finish()
        return first

    def _appending(self, view: IndexView, now: int, date: int | None) -> Appending:
        date = now if date is None else date
        return Appending(view=view, files=self._files, now=now, date=date, topics=self._topics, ended=self._ended)

    def _note_appended(self, events: Mapping[int, Collection[str]]) -> None:
        """Note of which topics events have been appended, by shard; the transaction with them is committed."""
        with self._noting:
            for number, topics in events.items():
                self._appended.setdefault(number, set()).update(topics)
                if topics:
                    self._ended.discard(number)

    def pop_appended(self) -> Mapping[int, Collection[str]]:
        """Return, by shard, the topics of what was appended since this was called last."""
        with self._noting:
            appended, self._appended = self._appended, {}
        return appended

    def append_batch(
        self,
        query: str,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        sender: str,
        split: Callable[[pa.RecordBatch], Mapping[int, pa.RecordBatch]],
        now: int,
        date: int | None = None,
    ) -> int | None:
        """Store a batch that Spark has written, once: with it goes the note that it is in the log.

        Args:
            query: Spark's id of the query.
            batch: number of the batch; they grow.
            rows: rows of SINK_SCHEMA, each small enough for a chunk.
            sender: the cluster that wrote them.
            split: divides rows by number of shard.
            now: microseconds since 1970.
            date: as for ``append``.

        Returns:
            How many rows were stored; None if this batch of the query was the last one and is in the log already.

        Raises:
            StaleBatch: a later batch of the query is in the log; nothing was stored.
            StoreFull: there is no room; nothing was stored.
        """
        with self._writing, self._forgetting_topics():
            count = 0
            topics: dict[int, set[str]] = {}
            with self._index.write() as view:
                last = view.sink(query.encode(), complete=self._sinks_complete)
                # Read in full, once, before a query counts as new: damage could hide its record.
                self._sinks_complete = self._sinks_complete or last is None
                # The commit had succeeded and the reply or Spark's own note was lost: the repeat changes nothing.
                if last == batch:
                    return None
                if last is not None and batch < last:
                    # Spark repeats its last batch only.  Who repeats an earlier one was put back to an older state, and
                    # its next batches hold other rows than those in the log: to leave them out would lose some.
                    raise StaleBatch(
                        f"batch {batch} of query {query} comes after batch {last}, which is in the log: the checkpoint "
                        "is older than that, or not the only one. Begin with a new checkpoint, or name the batches of "
                        "this query anew"
                    )
                appending = self._appending(view, now, date)
                appends: dict[int, ShardAppend] = {}
                for part in rows:
                    for number, own in split(part).items():
                        if number not in appends:
                            appends[number] = ShardAppend(appending, number)
                        counts = Counter[str](own.column("topic").to_pylist())
                        appends[number].add(counts, partial(place_rows, own, sender=sender, shard=number))
                        topics.setdefault(number, set()).update(counts)
                        count += own.num_rows
                for append in appends.values():
                    append.finish()
                # In one transaction with the rows: from its commit on the batch counts once, and every repeat finds
                # this note.
                view.put_sink(query.encode(), batch, now)
            self._note_appended(topics)
            self._finish_segments(appending.finished)
            return count

    @contextlib.contextmanager
    def _forgetting_topics(self) -> Generator[None]:
        """After an error, read the topics of the last segments again: those in memory may not have been written."""
        try:
            yield
        except BaseException:
            self._topics.clear()
            raise

    def _finish_segments(self, finished: Iterable[FinishedSegment]) -> None:
        for shard, epoch, first, size, revision in finished:
            with contextlib.suppress(OSError, LogDamaged):  # it is committed; the room comes back later
                self._files.finish(shard, epoch, first, size, revision)

    def _window(self, view: IndexView, publisher: str) -> PublisherWindow:
        known = self._windows.get(publisher)
        return PublisherWindow(view.publisher_blocks(bytes.fromhex(publisher))) if known is None else known

    def _write_window(
        self,
        view: IndexView,
        publisher: str,
        window: PublisherWindow,
        now: int,
        *,
        numbered: int | None = None,
        owner: str = "",
    ) -> None:
        key = bytes.fromhex(publisher)
        for block in window.changed:
            view.put_publisher_block(key, block, bytes(window.blocks[block]))
        for block in window.expired:
            view.delete_publisher_block(key, block)
        window.changed.clear()
        window.expired.clear()
        view.put_publisher(key, len(window.blocks), now, numbered=numbered, owner=owner)
        self._windows.keep(publisher, owner, window, window.memory)

    # -- reading --------------------------------------------------------------------------------------------

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

        def find(view: IndexView, record: ShardRecord) -> list[Stretch]:
            if wanted.is_everything and start >= record.earliest:
                return [stretch_of(place) for place in find_places(view, shard, start, end, max_bytes)]
            return find_wanted(view, record, start, end, max_bytes, wanted, exact=exact)

        def read(stretches: list[Stretch]) -> list[Chunk]:
            chunks = iter(read_stretches(self._files, shard, epoch, stretches))
            return [
                empty_chunk(shard, epoch, stretch.first, stretch.end, stretch.timestamp)
                if stretch.place is None
                else keep_topics(next(chunks), wanted)
                if stretch.is_filtered
                else next(chunks)
                for stretch in stretches
            ]

        def find_what_is_known(view: IndexView, record: ShardRecord) -> list[Stretch]:
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
                if self._damage.note(damage):
                    new.note(damage)
        say_damage(new, self._directory)

    def damage(self) -> list[Damage]:
        """Return what is known to be damaged."""
        with self._noting:
            return list(self._damage)

    def last_loss(self, state: ShardState) -> int:
        """Return the greatest offset that is damaged, or before which events are missing; -1: there is none."""
        with self._noting:
            return max(state.gap, self._damage.last(state.number))

    def damage_between(self, shard: int, start: int, end: int, wanted: TopicFilter) -> list[tuple[Damage, int]]:
        """Return what is known to be damaged in a range, each with the number of its events that are wanted.

        Where the index does not say which topics a chunk held, all of it counts as wanted.
        """
        with self._noting:
            found = self._damage.between(shard, start, end)
        with self._index.read() as view:
            record = view.shard(shard)
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

        def find(view: IndexView, record: ShardRecord) -> list[Stretch]:
            return find_wanted(view, record, start, end, max_bytes, wanted)

        def name(stretches: list[Stretch]) -> FileRange:
            places = [stretch.place for stretch in stretches if stretch.place is not None]
            if not places:
                return FileRange(path="", device=0, inode=0, end=stretches[-1].end, pieces=[])
            segment, revision = places[0].segment, places[0].revision
            if revision == IN_TIER:
                return FileRange(path="", device=0, inode=0, end=start, pieces=[])
            path, device, inode = self._files.identify(shard, epoch, segment, revision)
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
        find: Callable[[IndexView, ShardRecord], list[Stretch]],
        use: Callable[[list[Stretch]], T],
    ) -> T:
        """Use the places of a range; one that was trimmed or written anew meanwhile is not reported as damaged."""
        before: list[Stretch] | None = None
        while True:
            with self._index.read() as view:
                record = self._check_range(view, shard, epoch, start, end, wanted)
                stretches = find(view, record)
            try:
                return use(stretches)
            except LogDamaged:
                if stretches == before:
                    raise
                before = stretches

    def _check_range(
        self, view: IndexView, number: int, epoch: str, start: int, end: int, wanted: TopicFilter
    ) -> ShardRecord:
        shard = view.shard(number)
        if shard is None or shard.epoch != epoch:
            raise DataLost(f"shard {number}@{epoch} is not there: the log was wiped or is another one")
        earliest = self._removals.earliest(number, shard.earliest, wanted)
        if start < earliest:
            raise DataLost(
                f"offset {start} of shard {number}@{epoch} was trimmed: the earliest event there is {earliest}"
            )
        if not start < end <= shard.next:
            raise ValueError(f"no events {start} to {end}: shard {number}@{epoch} ends at {shard.next}")
        return shard

    def earliest(self, state: ShardState, wanted: TopicFilter) -> int:
        """Return the offset below which wanted events of a shard may have been removed."""
        return self._removals.earliest(state.number, state.earliest, wanted)

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
        with self._index.read() as view:
            record = view.shard(shard)
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
                    earliest=self._removals.earliest(shard, record.earliest, wanted),
                    next=record.next,
                    first=begin,
                    count=upto - begin,
                    upto=upto,
                )

    def _look(self, view: IndexView, record: ShardRecord, start: int, wanted: TopicFilter, limit: int | None) -> News:
        shard = record.number
        earliest = self._removals.earliest(shard, record.earliest, wanted)
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
            (chunk,) = read_places(self._files, shard, epoch, [place])
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
        for state in self.shards():
            at = state.earliest
            while at < state.next:
                if (behind := self.tiering.skip(state.number, at)) > at:
                    at = behind
                    continue
                with self._index.read() as view:
                    record = view.shard(state.number)
                    assert record is not None
                    stretches = find_sound(view, record, at, state.next, _VERIFIED_AT_ONCE)
                try:
                    read_stretches(self._files, record.number, record.epoch, stretches)
                    yield state.number, at, None
                except LogDamaged:
                    for stretch in stretches:
                        try:
                            read_stretches(self._files, record.number, record.epoch, [stretch])
                        except LogDamaged as error:
                            yield state.number, stretch.first, str(error)
                at = stretches[-1].end
        with self._index.read() as view:
            view.check()

    def offset_at(self, shard: int, timestamp: int) -> int:
        """Return the first offset whose event is not older than ``timestamp``; ``next`` if there is none."""
        with self._index.read() as view:
            record = view.shard(shard)
            if record is None:
                raise ValueError(f"there is no shard {shard}")
            offset, place = find_offset(view, record, timestamp)
        if place is None or place.revision != IN_TIER:
            return offset
        (chunk,) = read_places(self._files, shard, record.epoch, [place])
        return max(offset, find_row(chunk, timestamp))

    # -- cursors --------------------------------------------------------------------------------------------

    def pin_cursor(self, group: str, start: Mapping[str, int], *, now: int) -> Cursor:
        """Return the group's cursor; made with ``start`` if there is none."""
        with self._writing:
            with self._index.read() as view:
                record = view.cursors().get(group.encode())
            if record is not None:
                return _unpack_cursor(group, record)
            return self._put_cursor(Cursor(group=group, start=start, offsets=start, timestamp=now))

    def move_cursor(self, group: str, offsets: Mapping[str, int], *, now: int) -> None:
        """Record a group's progress; one without cursor gets one."""
        with self._writing:
            with self._index.read() as view:
                record = view.cursors().get(group.encode())
            start = offsets if record is None else _unpack_cursor(group, record).start
            self._put_cursor(Cursor(group=group, start=start, offsets=offsets, timestamp=now))

    def _put_cursor(self, cursor: Cursor) -> Cursor:
        record = {"start": dict(cursor.start), "offsets": dict(cursor.offsets), "timestamp": cursor.timestamp}
        with self._index.write() as view:
            view.put_cursor(cursor.group.encode(), json.dumps(record).encode())
        return cursor

    def cursors(self) -> list[Cursor]:
        """Return every cursor by group."""
        with self._index.read() as view:
            return [_unpack_cursor(name.decode(), record) for name, record in view.cursors().items()]

    def expire_groups(self, before: int, used: Collection[str], *, now: int) -> dict[str, str]:
        """Forget groups that were last used before ``before``; return them with their owners, "" if one had none.

        Those of queues stay.

        Args:
            before: microseconds since 1970.
            used: groups that are in use: they stay, and that is written down now and then.
            now: microseconds since 1970.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        prefix = _owned("group", "")
        with self._writing:
            with self._index.read() as view:
                cursors = [_unpack_cursor(name.decode(), record) for name, record in view.cursors().items()]
                last_used = {
                    name[len(prefix) :].decode(): since for name, since in view.owned_since(prefix).items()
                } | {cursor.group: cursor.timestamp for cursor in cursors}
                expired = {
                    group: view.owner(_owned("group", group)) or ""
                    for group, timestamp in last_used.items()
                    if timestamp < before and group not in used and not group.startswith(GROUP)
                }
            for cursor in cursors:
                if cursor.group in used and cursor.timestamp < now - _SIGN_OF_LIFE:
                    self._put_cursor(dataclasses.replace(cursor, timestamp=now))
            if expired:
                with self._index.write() as view:
                    for group in expired:
                        view.delete_owner(_owned("group", group))
                        view.delete_cursor(group.encode())
                self._owned = None
        return expired

    def _note_use(self, group: str, owner: str, now: int) -> None:
        """Write down that its owner uses a group, unless that was noted within the hour."""
        if self._last_use(group) >= now - _SIGN_OF_LIFE:
            return
        with self._writing, contextlib.suppress(StoreFull):
            with self._index.read() as view:
                record = view.cursor(group.encode())
            if record is not None:
                self._put_cursor(dataclasses.replace(_unpack_cursor(group, record), timestamp=now))
            else:
                with self._index.write() as view:
                    view.put_owner(_owned("group", group), owner, now)
                self._owned = None  # it may have expired a moment ago

    def _last_use(self, group: str) -> int:
        with self._index.read() as view:
            record = view.cursor(group.encode())
            if record is None:
                return view.owner_since(_owned("group", group))
        return _unpack_cursor(group, record).timestamp

    def drop_cursor(self, group: str) -> bool:
        """Forget a group and whose it was; return whether it was known."""
        with self._writing, self._index.write() as view:
            owned = view.delete_owner(_owned("group", group))
            self._owned = None
            return view.delete_cursor(group.encode()) or owned

    # -- members --------------------------------------------------------------------------------------------

    def members(self) -> dict[int, str]:
        """Return every shard that the bridge is known to have, with the cluster at which it was found last."""
        with self._index.read() as view:
            return view.members()

    def note_members(self, found: Mapping[int, str]) -> None:
        """Write down the bridge's shards, each with the cluster where it is; raise StoreFull if there is no room."""
        with self._writing:
            with self._index.read() as view:
                known = view.members()
            if found.items() <= known.items():
                return
            with self._index.write() as view:
                for shard, address in found.items():
                    view.put_member(shard, address)

    def forget_member(self, shard: int) -> bool:
        """Forget that the bridge has a shard; return whether that was known."""
        with self._writing, self._index.write() as view:
            return view.delete_member(shard)

    # -- division -------------------------------------------------------------------------------------------

    def division(self) -> bytes | None:
        """Return the record of how the events are divided among shards; None: there is none."""
        with self._index.read() as view:
            return view.division()

    def divide(self, record: Callable[[Mapping[int, int]], bytes]) -> None:
        """Write the record of a division; what is appended next is behind it.

        Args:
            record: made of the offset behind the last event of each shard.

        Raises:
            StoreFull: there is no room; the former one stands.
        """
        with self._writing, self._index.write() as view:
            view.put_division(record({shard.number: shard.next for shard in view.shards()}))

    def put_division(self, record: bytes) -> None:
        """Write the division of a log that begins; raise StoreFull if there is no room."""
        self.divide(lambda _offsets: record)

    def windows(self, begin: str, most: int) -> list[tuple[str, Mapping[int, bytes]]]:
        """Return which events of publishers are stored: of those from ``begin`` on in order, about ``most`` blocks."""
        found: list[tuple[str, Mapping[int, bytes]]] = []
        count = 0
        with self._index.read() as view:
            for publisher in view.publishers_from(bytes.fromhex(begin)):
                found.append((publisher.hex(), view.publisher_blocks(publisher)))
                count += 1 + len(found[-1][1])
                if count >= most:
                    break
        return found

    def merge_windows(self, windows: Iterable[tuple[str, Mapping[int, bytes]]], *, now: int) -> None:
        """Count what another log has stored of publishers as stored here, so that its repeats are recognized.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        with self._writing:
            try:
                with self._index.write() as view:
                    for publisher, blocks in windows:
                        window = self._window(view, publisher)
                        window.merge(blocks)
                        self._write_window(view, publisher, window, now)
            except BaseException:
                self._windows.clear()
                raise

    # -- owners ---------------------------------------------------------------------------------------------

    def claim(self, kind: str, name: str, owner: str, *, most: int, most_of_owner: int, now: int) -> str:
        """Return the owner of a name: ``owner`` from now on, if it had none.

        Args:
            kind: ``group`` or ``query``.
            name: name of the group or query.
            owner: the cluster.
            most: names of this kind that may have an owner.
            most_of_owner: names of them that ``owner`` may have, or all clusters of its realm if that is another one.
            now: microseconds since 1970.

        Raises:
            QuotaExceeded: the name had no owner, and would be one too many.
            StoreFull: there is no room to write that down.
        """
        key = _owned(kind, name)
        with self._index.read() as view:
            known = view.owner(key)
        if known is not None:
            if kind == "group" and known == owner and not name.startswith(GROUP):
                self._note_use(name, owner, now)
            return known
        with self._writing:
            with self._index.read() as view:
                if self._owned is None:
                    # Read in full, once, before a name counts as free: damage could hide its record.
                    self._owned = Counter((_kind(other), account_of(cluster)) for other, cluster in view.owners())
                known = view.owner(key)
            if known is not None:
                return known
            account = account_of(owner)
            if self._owned[kind, account] >= most_of_owner:
                raise _too_many(kind, name, f"cluster {account!r}", most_of_owner)
            if sum(count for (alike, _), count in self._owned.items() if alike == kind) >= most:
                raise _too_many(kind, name, "all clusters together", most)
            with self._index.write() as view:
                view.put_owner(key, owner, now)
            self._owned[kind, account] += 1
        return owner

    def owner(self, kind: str, name: str) -> str | None:
        """Return the owner of a name; None if it has none."""
        with self._index.read() as view:
            return view.owner(_owned(kind, name))

    def owners(self, kind: str) -> dict[str, str]:
        """Return the owner of each name of a kind that has one."""
        prefix = _owned(kind, "")
        with self._index.read() as view:
            return {name[len(prefix) :].decode(): owner for name, owner in view.owners() if name.startswith(prefix)}

    def transfer(self, kind: str, name: str, owner: str, *, now: int) -> bool:
        """Let a name belong to another cluster; return whether it was known."""
        with self._writing, self._index.write() as view:
            known = view.owner(_owned(kind, name)) is not None
            if kind == "group":
                known = known or name.encode() in view.cursors()
            else:
                known = known or view.sink(name.encode()) is not None
            if known:
                view.put_owner(_owned(kind, name), owner, now)
                self._owned = None
            return known

    def drop_query(self, query: str) -> bool:
        """Forget a query, its last batch and whose it was; return whether it was known."""
        with self._writing, self._index.write() as view:
            owned = view.delete_owner(_owned("query", query))
            self._owned = None
            return view.delete_sink(query.encode()) or owned

    # -- durable subscribers --------------------------------------------------------------------------------

    def subscribers(self) -> list[bytes]:
        """Return the records of durable subscribers that were kept."""
        with self._index.read() as view:
            return list(view.subscribers().values())

    def keep_subscribers(self, records: Sequence[bytes]) -> None:
        """Replace the records of durable subscribers; raise StoreFull, and keep the former, if there is no room."""
        wanted = {hashlib.blake2b(record, digest_size=16).digest(): record for record in records}
        with self._writing, self._index.write() as view:
            known = view.subscribers()
            for digest in known.keys() - wanted.keys():
                view.delete_subscriber(digest)
            for digest in wanted.keys() - known.keys():
                view.put_subscriber(digest, wanted[digest])

    # -- making room ----------------------------------------------------------------------------------------

    def trim(self, shard: int, before: int) -> int:
        """Remove the events of a shard below offset ``before``; return how many are gone now.

        Raises:
            StoreFull: there is no room even to write that down; some of it may be done.
        """
        with self._writing:
            with self._index.read() as view:
                record = view.shard(shard)
            if record is None:
                raise ValueError(f"there is no shard {shard}")
            return self._make_room(partial(self._trim, shard, before)) - record.earliest

    def _make_room(self, remove: Callable[[], T]) -> T:
        """Remove something; a full disk gives up its reserve for that."""
        reserve = Reserve(self._directory / "reserve")
        try:
            try:
                return remove()
            except StoreFull:
                reserve.give_up()
                return remove()
        finally:
            reserve.make()

    def _trim(self, number: int, before: int) -> int:
        with self._index.write() as view:
            shard = view.shard(number)
            assert shard is not None
            earliest = min(max(before, shard.earliest), shard.next)
            # From here no reader gets these events any more; what follows only gives their room back.
            view.put_shard(dataclasses.replace(shard, earliest=earliest))
            self._gaps.trim(number, earliest)
            with self._noting:
                self._damage.trim(number, earliest)
            self._write_gaps(view)
            self._note_removal(view, shard, earliest)
            dead = [segment for segment in view.segments(number) if segment.end <= earliest]
        size = shard.size
        for segment in dead:
            deleted = _DELETED_AT_ONCE
            while deleted == _DELETED_AT_ONCE:
                with self._index.write() as view:
                    deleted = view.delete_chunks(number, segment.end, _DELETED_AT_ONCE)
                    if deleted < _DELETED_AT_ONCE:
                        view.delete_topics(number, segment.first)
                        view.delete_segment(number, segment.first)
                        view.delete_tiered(number, segment.first)
                        size -= segment.size
                        view.put_shard(dataclasses.replace(shard, earliest=earliest, size=size))
            self.tiering.trimmed(number, segment.first)
            # The index first: a crash in between leaves a file that nothing names, which the next start removes. The
            # other way round it would leave an index without its file, which is damage.
            self._files.remove(number, shard.epoch, segment.first, segment.revision)
        return earliest

    def _note_removal(self, view: IndexView, shard: ShardRecord, earliest: int) -> None:
        """Record the topics whose events below ``earliest`` go: a reader of other topics has lost nothing."""
        for segment in view.segments_from(shard.number, shard.earliest):
            if segment.first >= earliest:
                break
            topics = topics_of(view, shard.number, segment, earliest)
            self._removals.note(shard.number, topics, min(segment.end, earliest), earliest=shard.earliest)
        self._removals.write(view)

    def retain(self, retention: Retention, *, now: int) -> int:
        """Remove what ``retention`` no longer wants; return how many events are gone now.

        With a tier none are: files go whose segments it has, and other segments stay.
        """
        with self._retaining:
            with self._index.read() as view:
                shards = view.shards()
                segments = {shard.number: view.segments(shard.number) for shard in shards}
                cursors = [_unpack_cursor(name.decode(), record) for name, record in view.cursors().items()]
            unread = {
                shard.number: min(
                    (cursor.offsets.get(f"{shard.number}@{shard.epoch}", shard.earliest) for cursor in cursors),
                    default=shard.next,
                )
                for shard in shards
            }
            if not retention.rules:
                local = {
                    number: [segment for segment in own if segment.revision != IN_TIER]
                    for number, own in segments.items()
                }
                expired = choose_expired(local, retention, now=now, unread=unread)
                if self.tiering.is_attached:
                    for number, before in expired.items():
                        self._make_room(partial(self.tiering.drop, number, before))
                    return 0
                return sum(self.trim(shard, before) for shard, before in expired.items())
            rules = TopicRules(retention)
            return sum(
                self._cleaner.retain(
                    shard.number, rules, now=now, unread=unread[shard.number] if retention.keep_unread else shard.next
                )
                for shard in shards
            )

    def forget_publishers(self, before: int) -> int:
        """Forget the publishers whose last event arrived before ``before``; return how many.

        Their repeats are recognized no more.  So it is with Spark's jobs; streaming queries are remembered for ever.
        """
        with self._writing, self._index.write() as view:
            view.delete_sinks(JOB_PREFIX.encode(), before)
            if view.delete_owners(_owned("query", JOB_PREFIX), before):
                self._owned = None
            publishers = view.publishers_seen_before(before)
            for publisher in publishers:
                self._forget_publisher(view, publisher)
            return len(publishers)

    def close(self) -> None:
        """Close the log.  Appended events are on the disk already."""
        with self._writing:
            self._files.close()
            self._index.close()
            close_locked(self._lock)


def _count_wanted(view: IndexView, shard: ShardRecord, damage: Damage, wanted: TopicFilter) -> int:
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


def _owned(kind: str, name: str) -> bytes:
    """Return the key of a name in the table of owners."""
    return f"{kind}/{name}".encode()


def _kind(owned: bytes) -> str:
    return owned.partition(b"/")[0].decode()


def _too_many(kind: str, name: str, whose: str, most: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{kind} {name!r} would be one too many: {whose} may have {most} at this bridge. 'iris bridge drop --{kind} "
        "NAME' forgets one that does not come back"
    )


def _unpack_cursor(group: str, record: bytes) -> Cursor:
    value: dict[str, Any] = json.loads(record)
    return Cursor(group=group, start=value["start"], offsets=value["offsets"], timestamp=value["timestamp"])
