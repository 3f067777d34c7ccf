"""Protocol of a bridge: what readers, writers and operators ask, and the table of all operations.

See ``iris.patterns.bridge_protocol`` for how these types travel and are read, and for the operations that do not need
Spark: ``shards``, ``take``, ``consume``, leases and idempotency keys.

Tunnel ``read``: the member sends bytes behind ``ReadLog`` that are, put together, whole frames
(``iris.spark_bridge.log.chunk``) which hold at least the range, and then the end.  Events of topics that the reader
does not want may be left out of the frames; they are if the reader may not subscribe to all topics.

Tunnel ``stage``: the writer sends ``StagePart``, then an Arrow IPC stream of
``iris.spark_bridge.events.schema.SINK_SCHEMA`` as bytes, and the end; the answer is the number of bytes.

A member that refuses a tunnel, or ends it, sends {error: code, message: text} and the end.
"""

# Not ``from __future__ import annotations``, see ``iris.patterns.bridge_protocol``.

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Generic, Protocol, final

from msgspec import Meta, Struct

from iris.patterns.bridge_protocol import (
    Ask,
    AskLease,
    ClaimKey,
    Cluster,
    Consume,
    Label,
    ListShards,
    Name,
    NoteKey,
    Number,
    Offset,
    Offsets,
    PeekJobs,
    Permission,
    PurgeQueue,
    R_co,
    RecordKey,
    ReleaseKey,
    ReleaseLease,
    RenewLease,
    ShardId,
    ShowQueue,
    TakeJobs,
    Topics,
)
from iris.patterns.messages import Sender
from iris.spark_bridge.events.gaps import GAPS_AT_ONCE, Gap
from iris.spark_bridge.log import QUERY, FileRange
from iris.spark_bridge.tier import TierStatus

MAX_POLL: Final = 10.0
"""Seconds that a question for offsets may wait for news."""


RequestHandler = Callable[[Sender, Any], Awaitable[object]]
"""Handler of an operation, called with the sender and the request; returns the reply."""
RequestHandlers = Mapping[type[Ask[object]], RequestHandler]


class Permit(Protocol):
    """Port of what serves a tunnel to the caller's rights, which may change as long as the tunnel is open."""

    def check(self) -> None:
        """Raise NotAllowed if the caller may no longer have what it named.  Called before sending; does not block."""
        ...


# -- reading ---------------------------------------------------------------------------------------------------


class Extent(Struct, array_like=True, kw_only=True, frozen=True):
    """Range of a shard's events for a query: ``earliest`` up to but not including ``next``.

    If the query reads only some topics, wanted events below ``earliest`` may have been removed.
    """

    earliest: Offset
    next: Offset
    gap: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    """The greatest offset before which events are missing, or whose event is damaged; -1: there is none."""
    first: Offset | None = None
    """First offset whose event is wanted and was not read; ``next`` if there is none. None: not known."""
    count: Number | None = None
    """Events to be read up to ``upto``; 1 may stand for any number. None: as many as there are offsets."""
    upto: Offset | None = None
    """End of the next batch at the latest, an offset. None: ``next``."""

    @property
    def has_news(self) -> bool:
        """True if there are events to be read."""
        return self.first is None or self.first < self.next


class _Selecting(Ask[R_co], Generic[R_co], kw_only=True):
    """Request for what matches one of the patterns, none being all, or the expression.

    The expression is as RE2 has it, and only readers of all topics may give one.
    """

    topics: Topics = ()
    regex: str | None = None

    def check(self) -> None:
        super().check()
        if self.regex is not None and self.topics:
            raise ValueError("regex is a text in the place of topics")


class PollOffsets(_Selecting[dict[ShardId, Extent]], kw_only=True):
    """Extents of these shards, none being all: when a wanted event is behind ``known``, or time is over."""

    operation = "offsets"
    permission = Permission("reader", "named")

    known: Offsets
    timeout: Annotated[float, Meta(ge=0.0, le=MAX_POLL)]
    limit: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    """Events of each shard that are counted at most. None: whether there is one."""


class ListGaps(Ask[Annotated[tuple[Gap, ...], Meta(max_length=GAPS_AT_ONCE)]], kw_only=True):
    """Gaps in a range, ordered.  Left out are those of topics that the reader may not subscribe to, and the first."""

    operation = "gaps"
    permission = Permission("subscriber", "named")

    shard: Label
    start: Offset
    end: Offset
    topics: Topics = ()
    skip: Number


class DamageList(Struct, kw_only=True):
    """Damage in a range."""

    count: Number
    """Wanted events in the range that are known to be damaged."""
    places: Annotated[tuple[tuple[Offset, Offset, str], ...], Meta(max_length=GAPS_AT_ONCE)]
    """First stretches of damage: offset, end and reason of each."""

    def __post_init__(self) -> None:
        if any(offset >= end for offset, end, _ in self.places):
            raise ValueError("a stretch of damage ends before it begins")


class CountDamage(_Selecting[DamageList], kw_only=True):
    """The damage of wanted events in a range."""

    operation = "damage"
    permission = Permission("reader", "named")

    shard: Label
    start: Offset
    end: Offset


class FindTimes(Ask[dict[ShardId, Offset]], kw_only=True):
    """The first offset of each shard that is not older."""

    operation = "times"
    permission = Permission("reader")

    timestamp: Number
    """Microseconds since 1970."""


class Locate(_Selecting[FileRange | None], kw_only=True):
    """The file in which the wanted events of a range begin; None if the reader is on another machine."""

    operation = "locate"
    permission = Permission("subscriber")  # who may not have all events is told of no file

    shard: Label
    start: Offset
    end: Offset
    machine: Label


class ReadLog(_Selecting[bytes], kw_only=True):
    """First message of a reader's tunnel."""

    operation = "read"
    permission = Permission("subscriber", "wanted")
    is_tunnel = True

    shard: Label
    start: Offset
    end: Offset
    pass_damage: bool = False
    """True if it goes on without what is damaged."""


# -- groups ----------------------------------------------------------------------------------------------------


class PinnedCursor(Struct, kw_only=True):
    """Cursor of a group: where it began, and how far it is."""

    start: Offsets
    offsets: Offsets


class Pin(Ask[PinnedCursor], kw_only=True):
    """The group's cursor, made if there is none."""

    operation = "pin"
    permission = Permission("subscriber", owns="group")

    group: Label
    start: Offsets


class Move(Ask[None], kw_only=True):
    """Record a group's progress."""

    operation = "move"
    permission = Permission("subscriber", owns="group")

    group: Label
    offsets: Offsets


class GroupCursor(PinnedCursor, kw_only=True):
    """The cursor of one group."""

    group: str
    owner: str
    """Empty if it has none."""
    timestamp: Number


class ListCursors(Ask[tuple[GroupCursor, ...]], kw_only=True):
    """All cursors."""

    operation = "cursors"
    permission = Permission("reader")


# -- writing ---------------------------------------------------------------------------------------------------


class _OfQuery(Ask[R_co], Generic[R_co], kw_only=True):
    """Request about a batch of a query of Spark's."""

    query: str
    batch: Number

    def check(self) -> None:
        super().check()
        _check_query(self.query)


def _check_query(query: str | None) -> None:
    """Check the name of a query, which is part of paths, too."""
    if query is not None and not QUERY.match(query):
        raise ValueError(f"query is {query!r:.100}: use 1 to 64 letters, digits, '-' and '_'")


class StagePart(_OfQuery[Number], kw_only=True):
    """First message of a writer's tunnel: the part that it stages."""

    operation = "stage"
    permission = Permission("writer", "written", owns="query")
    is_tunnel = True

    partition: Number
    attempt: Number


class ListedPart(Struct, array_like=True):
    """A part of a batch: what one attempt of one task wrote."""

    partition: Number
    attempt: Number
    rows: bytes | None = None
    """The Arrow IPC stream of one that is not staged."""


class Commit(_OfQuery[Number | None], kw_only=True):
    """Let parts become part of the log: the number of rows, or None if the batch was committed before."""

    operation = "commit"
    permission = Permission("writer", "written", owns="query")

    parts: tuple[ListedPart, ...]
    after: Number | None = None
    """The batch that has to be the last one of the query, 0 standing for none too. None: any earlier one."""

    def check(self) -> None:
        super().check()
        if len({(part.partition, part.attempt) for part in self.parts}) < len(self.parts):
            raise ValueError("a part is listed twice: its rows would be stored twice")


class LastBatch(Ask[Number | None], kw_only=True):
    """The last batch of a query that is part of the log; None if there is none."""

    operation = "committed"
    permission = Permission("writer", owns="query")

    query: str

    def check(self) -> None:
        super().check()
        _check_query(self.query)


class Abort(_OfQuery[None], kw_only=True):
    """Discard the staged parts of a batch."""

    operation = "abort"
    permission = Permission("writer", owns="query")


# -- operators -------------------------------------------------------------------------------------------------


class Drop(Ask[bool], kw_only=True):
    """Forget a group, a query or a shard: one of the three; whether that was known."""

    operation = "drop"
    permission = Permission("bridge")

    group: Label | None = None
    query: str | None = None
    shard: Number | None = None

    def check(self) -> None:
        super().check()
        _check_query(self.query)
        if [self.group, self.query, self.shard].count(None) != 2:
            raise ValueError("use one of group, query and shard")


class Transfer(Ask[bool], kw_only=True):
    """Let a group or query belong to another cluster; whether it was known."""

    operation = "transfer"
    permission = Permission("bridge")

    group: Label | None = None
    query: str | None = None
    to: Cluster

    def check(self) -> None:
        super().check()
        _check_query(self.query)
        if [self.group, self.query].count(None) != 1:
            raise ValueError("use one of group and query")


class Trim(Ask[Number], kw_only=True):
    """Remove the events of a shard below an offset; how many those were."""

    operation = "trim"
    permission = Permission("bridge")

    shard: Label
    before: Offset


class ReadCounters(Ask[dict[str, int]]):
    """The counters of ``BridgeStatistics``."""

    operation = "status"
    permission = Permission("reader")


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatus:
    """A copy of a member's log, as its primary sees it."""

    name: str
    state: str
    """``away``, ``catching up``, ``in step`` (has a part in confirmations), or ``not counted`` (others must know of it
    first)."""
    behind: int | None
    """Events that the copy has not confirmed. None if it has not connected since the primary was started."""


class ListCopies(Ask[tuple[CopyStatus, ...]]):
    """The copies of a member's log."""

    operation = "copies"
    permission = Permission("reader")


class ListTiers(Ask[tuple[TierStatus, ...]]):
    """The tier of each shard that has one."""

    operation = "tier"
    permission = Permission("reader")


class ForgetCopy(Ask[bool], kw_only=True):
    """Forget a copy; whether it was known.  Asked of the primary's own cluster, and not of the bridge's."""

    operation = "forget"
    permission = Permission("bridge")

    name: Name


# -- all of them -----------------------------------------------------------------------------------------------

OPERATIONS: Final[Mapping[str, type[Ask[object]]]] = {
    kind.operation: kind
    for kind in (
        ListShards, PollOffsets, ListGaps, CountDamage, FindTimes, Locate, ReadLog,
        Pin, Move, ListCursors, Consume,
        TakeJobs, ShowQueue, PeekJobs, PurgeQueue,
        StagePart, Commit, LastBatch, Abort,
        Drop, Transfer, Trim, ReadCounters, ListCopies, ListTiers,
        AskLease, RenewLease, ReleaseLease,
        ClaimKey, NoteKey, RecordKey, ReleaseKey,
    )
}  # fmt: skip
"""Every operation that a member of a bridge answers at the bridge's cluster and at its own."""

PERMISSIONS: Final[Mapping[str, Permission]] = {name: kind.permission for name, kind in OPERATIONS.items()}
"""Permission for each operation of a bridge; docs/reference/spark.md prints it."""
