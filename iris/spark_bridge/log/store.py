"""Store: the interface of a durable log, as the bridge uses it.

Every call blocks (the service makes them in threads) and is all or nothing.  A shard has an *epoch*, a random id made
when the shard is made.  Offsets mean something only together with the epoch, so a log that was wiped is noticed instead
of read from a position that no longer means the same.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, final

import pyarrow as pa

from iris.spark_bridge.gaps import Gap
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.local_read import FileRange
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.runs import PublisherRun

QUERY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""Ids of the queries whose batches Spark writes; Spark's own are UUIDs."""

JOB_PREFIX: Final = "job-"
"""How the ids of Spark's batch jobs begin; a job never comes back, unlike a streaming query."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """One shard as it is now: it holds the events ``earliest`` up to but not including ``next``."""

    number: int
    epoch: str
    earliest: int
    next: int
    size: int
    """Bytes of its chunks on the disk."""
    timestamp: int
    """Microseconds since 1970 of the newest event, 0 if there was none."""
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
    stale: Sequence[PublisherRun]
    """Events so late that it is unknown whether they are in the log.  Not stored, not to be confirmed."""
    missed: int = 0
    """Events of which it has turned out that they are missing."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A named position of a reader: offsets by shard id."""

    group: str
    start: Mapping[str, int]
    """Where the group began; never changes."""
    offsets: Mapping[str, int]
    """How far the group has come."""
    timestamp: int
    """Microseconds since 1970 of the last change."""


class Store(Protocol):
    """A durable log of events in shards.  Safe in any thread."""

    def shards(self) -> list[ShardState]:
        """Return every shard by number."""
        ...

    def append(
        self,
        events: Mapping[int, Sequence[PublisherRun]],
        *,
        now: int,
        judged: Callable[[str], bool] = lambda _: True,
    ) -> Appended:
        """Store events by number of shard; they are on the disk when it returns.

        Repeats of (publisher, sequence) are left out.  Numbers that are missing become gaps, see
        ``iris.spark_bridge.log.numbering``.

        Args:
            events: in the order in which they are to stand.
            now: microseconds since 1970.
            judged: tells of which publishers all events come here, so that what is missing is a gap.

        Raises:
            StoreFull: there is no room; nothing was stored.
        """
        ...

    def read(self, shard: int, epoch: str, start: int, end: int, *, max_bytes: int) -> list[Chunk]:
        """Return the chunks that hold the events from ``start``, in order, verified.

        At least one chunk, then more up to ``end`` or ``max_bytes``.  The first and the last may hold events outside of
        the range.

        Raises:
            DataLost: the shard has another epoch, or events from ``start`` on were trimmed.
            LogDamaged: what is stored is not what was written.
            ValueError: the range is empty or goes beyond the last event.
        """
        ...

    def locate(self, shard: int, epoch: str, start: int, end: int, *, max_bytes: int) -> FileRange:
        """Return the file in which the events from ``start`` lie, for a reader on this machine.

        It names at least one chunk, then more up to ``end``, to ``max_bytes`` or to the end of the file.  Nothing is
        read or verified.  Errors are those of ``read``.
        """
        ...

    def gaps(self) -> list[Gap]:
        """Return the gaps, by shard and offset."""
        ...

    def offset_at(self, shard: int, timestamp: int) -> int:
        """Return the first offset whose event is not older than ``timestamp``; ``next`` if there is none."""
        ...

    def pin_cursor(self, group: str, start: Mapping[str, int], *, now: int) -> Cursor:
        """Return the group's cursor; made with ``start`` if there is none."""
        ...

    def move_cursor(self, group: str, offsets: Mapping[str, int], *, now: int) -> None:
        """Write down how far a group has come; one without cursor gets one."""
        ...

    def cursors(self) -> list[Cursor]:
        """Return every cursor by group."""
        ...

    def drop_cursor(self, group: str) -> bool:
        """Forget a group and whose it was; tell whether it was known."""
        ...

    def drop_query(self, query: str) -> bool:
        """Forget a query, its last batch and whose it was; tell whether it was known."""
        ...

    def members(self) -> dict[int, str]:
        """Return every shard that the bridge is known to have, with the cluster at which it was found last."""
        ...

    def note_members(self, found: Mapping[int, str]) -> None:
        """Write down which shards the bridge has, and the cluster at which each is found.

        Raises:
            StoreFull: there is no room for that.
        """
        ...

    def forget_member(self, shard: int) -> bool:
        """Forget that the bridge has a shard; tell whether that was known."""
        ...

    def claim(self, kind: str, name: str, owner: str, *, most: int, most_of_owner: int, now: int) -> str:
        """Return the owner of a name: ``owner`` from now on, if it had none.

        Args:
            kind: ``group`` or ``query``.
            name: of the group or query.
            owner: the cluster.
            most: names of this kind that may belong to somebody.
            most_of_owner: of them, to ``owner``.
            now: microseconds since 1970.

        Raises:
            QuotaExceeded: it belonged to nobody, and would be one too many.
            StoreFull: there is no room to write that down.
        """
        ...

    def owners(self, kind: str) -> dict[str, str]:
        """Return the owner of each name of a kind that has one."""
        ...

    def transfer(self, kind: str, name: str, owner: str, *, now: int) -> bool:
        """Let a name belong to another cluster; tell whether it was known."""
        ...

    def trim(self, shard: int, before: int) -> int:
        """Remove the events of a shard below offset ``before``; return how many are gone now.

        Raises:
            StoreFull: there is no room even to write that down; some of it may be done.
        """
        ...

    def append_batch(
        self,
        query: str,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        sender: str,
        split: Callable[[pa.RecordBatch], Mapping[int, pa.RecordBatch]],
        now: int,
    ) -> int | None:
        """Store a batch that Spark has written, once: with it goes the note that it is in the log.

        Args:
            query: Spark's id of the query.
            batch: number of the batch; they grow.
            rows: of SINK_SCHEMA, each small enough for a chunk.
            sender: the cluster that wrote them.
            split: divides rows by number of shard.
            now: microseconds since 1970.

        Returns:
            How many rows were stored; None if this batch of the query was the last one and is in the log already.

        Raises:
            StaleBatch: a later batch of the query is in the log; nothing was stored.
            StoreFull: there is no room; nothing was stored.
        """
        ...

    def retain(self, retention: Retention, *, now: int) -> int:
        """Remove what ``retention`` no longer wants; return how many events are gone now."""
        ...

    def forget_publishers(self, before: int) -> int:
        """Forget the publishers whose last event arrived before ``before``; return how many.

        Their repeats are recognized no more.  So it is with Spark's jobs; streaming queries are remembered for ever.
        """
        ...

    def subscribers(self) -> list[bytes]:
        """Return the records of durable subscribers that were kept."""
        ...

    def keep_subscribers(self, records: Sequence[bytes]) -> None:
        """Replace the records of durable subscribers, for which publishers wait.

        Raises:
            StoreFull: there is no room; those before are kept.
        """
        ...

    def verify(self) -> Iterator[tuple[int, int, str | None]]:
        """Read everything; yield shard, offset and what is wrong there, if anything is, for each stretch of chunks.

        Damage ends nothing: verifying goes on behind the chunk that has it.

        Raises:
            LogDamaged: at the end, if what the log knows besides events, such as its publishers, is damaged.
        """
        ...

    def close(self) -> None:
        """Close the log.  Appended events are on the disk already."""
        ...
