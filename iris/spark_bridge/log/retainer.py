"""Retainer: removes from a log what is not wanted any more."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, final

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
    ShardState,
    all_shards,
    delete_chunks,
    delete_topics,
    segments_of,
    spans,
)
from iris.spark_bridge.log.retention import Retention, choose_expired
from iris.spark_bridge.log.segments import Reserve
from iris.spark_bridge.log.tiering import Tiering
from iris.spark_bridge.log.topics.index import topics_of
from iris.spark_bridge.log.transaction import Transaction

T = TypeVar("T")

_DELETED_AT_ONCE: Final = 20_000
"""Chunks that one transaction deletes: about 20 ms in which nothing is appended."""


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
