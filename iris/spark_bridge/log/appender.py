"""Appender: stores events, once each, and changes the index in the same transaction."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import final

import pyarrow as pa

from iris.kernel.wire import saturated
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged, StaleBatch
from iris.spark_bridge.events.gaps import Gap, GapBook
from iris.spark_bridge.events.runs import count_events, count_topics, cut_runs
from iris.spark_bridge.events.schema import encode_events, place_rows
from iris.spark_bridge.log.chunk_io import CHUNK_EVENTS, ROOM, Appending, ShardAppend
from iris.spark_bridge.log.dedup import PublisherWindow, admit_runs
from iris.spark_bridge.log.numbering import PublisherNumberings
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.records import GAPS, SHARDS, SINKS, ShardState, SinkBatch, gap_place
from iris.spark_bridge.log.transaction import Transaction

Change = Callable[[Transaction], Mapping[int, Sequence[EventRun]]]
"""Changes tables of the index, and returns events that are stored with that, by number of shard."""


def read_shards(view: Transaction, gaps: GapBook) -> list[ShardState]:
    """Return every shard by number."""
    return [dataclasses.replace(shard, gap=gaps.last(number)) for number, shard in view.items(SHARDS)]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The outcome of one append."""

    number: int = 0
    """Number of the log's last change, which is this append if that has changed anything."""
    shards: Sequence[ShardState]
    """Every shard as it is after that."""
    topics: frozenset[str]
    """Topics of the events that came."""
    count: int
    """Events that are new in the log."""
    repeats: int = 0
    """Events that were in the log before; they may be acknowledged to their publishers."""
    stale: Sequence[EventRun] = ()
    """Events so late that it is unknown whether they are in the log.  Not stored, not to be confirmed."""
    missed: int = 0
    """Events newly found to be missing."""


@final
class Appender:
    """Appends to a log.  Every call blocks, and is all or nothing.

    Args:
        log: the log.
    """

    def __init__(self, log: OpenLog) -> None:
        self._log = log
        self._sinks_complete = False
        """True once the table of queries has been read in full since the log was opened."""

    def append(
        self,
        events: Mapping[int, Sequence[EventRun]],
        *,
        now: int,
        date: int | None = None,
        judged: Callable[[str], bool] = lambda _: True,
        change: Change | None = None,
    ) -> Appended:
        """Store events by number of shard, and change the index in the same transaction; it is on the disk after that.

        Repeats of (publisher, sequence) are left out.  Numbers that are missing become gaps, see
        ``iris.spark_bridge.log.numbering``.

        Args:
            events: in the order in which they are to stand.
            now: microseconds since 1970.
            date: date of the events, in microseconds since 1970. None: ``now``.
            judged: returns whether all events of a publisher come here, so that a missing one is a gap.
            change: called first; its events follow the others. None: there is none.

        Raises:
            StoreFull: there is no room; nothing was stored or changed.
        """
        with self._log.writing:
            # One transaction for the events, their places and the publishers' windows. It commits at the end of the
            # block, after ``ShardAppend.finish`` has synced the chunks: the index never names bytes that are not on
            # disk.
            with self._log.changing() as view:
                if change is not None:
                    more = change(view)
                    events = {number: (*events.get(number, ()), *more.get(number, ())) for number in {**events, **more}}
                appending = self._appending(view, now, date)
                appended = self._append(appending, events, judged)
            return self._finish(appending, appended)

    def _append(
        self, appending: Appending, events: Mapping[int, Sequence[EventRun]], judged: Callable[[str], bool]
    ) -> Appended:
        view, now = appending.view, appending.now
        touched: dict[str, PublisherWindow] = {}

        def window(publisher: str) -> PublisherWindow:
            found = touched.get(publisher)
            if found is None:
                found = touched[publisher] = self._log.publishers.window(view, publisher)
            return found

        count = repeats = 0
        stale: list[EventRun] = []
        begins: dict[int, int] = {}
        numbered: dict[str, PublisherNumberings] = {}
        clusters: dict[str, str] = {}
        owners: dict[str, str] = {}
        for number, arrivals in events.items():
            for run in arrivals:
                if run.confirm or run.first:
                    owners[run.sender.node] = run.sender.cluster
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
                        if run.sender.node != publisher:
                            publisher = run.sender.node
                            numberings = numbered.get(publisher)
                            if numberings is None and judged(publisher):
                                numberings = numbered[publisher] = self._log.publishers.numberings(view, publisher)
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
        missed = 0
        for publisher, cluster in clusters.items():
            missed = saturated(missed + self._settle(publisher, cluster, numbered[publisher], begins, now))
            self._log.publishers.write_numberings(view, publisher, cluster, numbered[publisher], now)
        write_gaps(view, self._log.gaps)
        grown: set[str] = set()
        for publisher, changes in touched.items():
            size = numbered[publisher].size if publisher in numbered else None
            owner = owners.get(publisher, "")
            if self._log.publishers.write(view, publisher, changes, now, numbered=size, owner=owner):
                grown.add(owner)
        for owner in grown:
            self._log.publishers.bound(view, owner)
        topics = frozenset([run.topic for runs in events.values() for run in runs])
        shards = read_shards(view, self._log.gaps)
        return Appended(shards=shards, topics=topics, count=count, repeats=repeats, stale=stale, missed=missed)

    def _settle(
        self, publisher: str, cluster: str, numberings: PublisherNumberings, begins: Mapping[int, int], now: int
    ) -> int:
        """Note what turns out to be missing of a publisher; return how many events that is."""
        missed = 0
        for topic in numberings.changed:
            numbering = numberings.topics[topic]
            for hole in numbering.settle(begins) if numbering.holes else ():
                missed = saturated(missed + hole.size)
                self._log.gaps.note(
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
        return missed

    def _append_to(self, appending: Appending, number: int, events: Sequence[EventRun]) -> int:
        """Append events to a shard; return the offset of the first one."""
        append = ShardAppend(appending, number)
        first = append.next
        for part in cut_runs(events, max_events=CHUNK_EVENTS, max_bytes=ROOM):
            append.add(count_topics(part), partial(encode_events, part, shard=number))
        append.finish()
        return first

    def _appending(self, view: Transaction, now: int, date: int | None) -> Appending:
        return Appending(
            view=view, files=self._log.files, now=now, date=now if date is None else date, tails=self._log.tails
        )

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
        after: int | None = None,
    ) -> Appended | None:
        """Store a batch that Spark has written, once: with it goes the note that it is in the log.

        Args:
            query: Spark's id of the query.
            batch: number of the batch; they grow.
            rows: rows of SINK_SCHEMA, each small enough for a chunk.
            sender: the cluster that wrote them.
            split: divides rows by number of shard.
            now: microseconds since 1970.
            date: as for ``append``.
            after: the batch that has to be the last one in the log; 0 stands for none, too. None: any earlier one.

        Returns:
            What was stored; None if this batch of the query was the last one and is in the log already.

        Raises:
            StaleBatch: a later batch of the query is in the log, or another one than ``after``; nothing was stored.
            StoreFull: there is no room; nothing was stored.
        """
        with self._log.writing:
            count = 0
            topics: set[str] = set()
            with self._log.changing() as view:
                known = view.get(SINKS, query)
                if known is None and not self._sinks_complete:
                    # Read in full, once, before a query counts as new: damage could hide its record.
                    view.verify(SINKS)
                    self._sinks_complete = True
                # The commit had succeeded and the reply or Spark's own note was lost: the repeat changes nothing.
                if known is not None and known.batch == batch:
                    return None
                if known is not None and batch < known.batch:
                    # Spark repeats its last batch only.  Who repeats an earlier one was put back to an older state, and
                    # its next batches hold other rows than those in the log: to leave them out would lose some.
                    raise StaleBatch(
                        f"batch {batch} of query {query} comes after batch {known.batch}, which is in the log: the "
                        "checkpoint is older than that, or not the only one. Begin with a new checkpoint, or name the "
                        "batches of this query anew"
                    )
                last = 0 if known is None else known.batch
                if after is not None and last != after:
                    raise StaleBatch(
                        f"batch {batch} of query {query} comes after batch {after}, and batch {last} is the last one "
                        "in the log: somebody else writes this query, too"
                    )
                appending = self._appending(view, now, date)
                appends: dict[int, ShardAppend] = {}
                for part in rows:
                    for number, own in split(part).items():
                        if number not in appends:
                            appends[number] = ShardAppend(appending, number)
                        counts = Counter[str](own.column("topic").to_pylist())
                        appends[number].add(counts, partial(place_rows, own, sender=sender, shard=number))
                        topics.update(counts)
                        count += own.num_rows
                for append in appends.values():
                    append.finish()
                # In one transaction with the rows: from its commit on the batch counts once, and every repeat finds
                # this note.
                view.put(SINKS, query, SinkBatch(batch, now))
                appended = Appended(shards=read_shards(view, self._log.gaps), topics=frozenset(topics), count=count)
            return self._finish(appending, appended)

    def last_batch(self, query: str) -> int | None:
        """Return the last batch of a query that is in the log; None if there is none."""
        with self._log.index.read() as view:
            known = view.get(SINKS, query)
        return None if known is None else known.batch

    def _finish(self, appending: Appending, appended: Appended) -> Appended:
        """Return the outcome of an append whose transaction is committed."""
        self._log.tails.ended.difference_update(appending.appended)
        for shard, epoch, first, size, revision in appending.finished:
            with contextlib.suppress(OSError, LogDamaged):  # it is committed; the room comes back later
                self._log.files.finish(shard, epoch, first, size, revision)
        return dataclasses.replace(appended, number=self._log.index.number)


def write_gaps(view: Transaction, gaps: GapBook) -> None:
    """Write the gaps that have changed."""
    for key in gaps.removed:
        view.delete(GAPS, gap_place(key))
    for key in gaps.changed:
        view.put(GAPS, gap_place(key), gaps.get(key))
    gaps.removed.clear()
    gaps.changed.clear()
