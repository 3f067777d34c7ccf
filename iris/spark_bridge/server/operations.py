"""Operations of a member with an embedded log: what answers the requests of ``iris.spark_bridge.protocol``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, final

import trio

from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import RemoteError
from iris.kernel.names import account_of
from iris.kernel.tasks import run_in_thread
from iris.patterns.bridge_protocol import (
    Ask,
    Consume,
    Kind,
    ListShards,
    MemberShards,
    PeekJobs,
    PurgeQueue,
    RemoteShard,
    ShowQueue,
    TakeJobs,
)
from iris.patterns.messages import Sender
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.consumers import Consumers
from iris.spark_bridge.events.gaps import GAPS_AT_ONCE, Gap
from iris.spark_bridge.log import MAX_REGEX, FileRange, ShardState, TopicFilter, machine
from iris.spark_bridge.protocol import (
    Abort,
    Commit,
    CopyStatus,
    CountDamage,
    DamageList,
    Drop,
    Extent,
    FindTimes,
    GroupCursor,
    LastBatch,
    ListCopies,
    ListCursors,
    ListGaps,
    ListTiers,
    Locate,
    Move,
    Permit,
    Pin,
    PinnedCursor,
    PollOffsets,
    ReadCounters,
    ReadLog,
    RequestHandler,
    RequestHandlers,
    StagePart,
    Transfer,
    Trim,
)
from iris.spark_bridge.queues import Queues
from iris.spark_bridge.server.dispatch import TunnelHandlers
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.server.permissions import Permissions
from iris.spark_bridge.server.sink_commits import BatchCommitter
from iris.spark_bridge.staging import StagedPart
from iris.spark_bridge.tier import TierStatus

_FILTERS: Final = 256
"""Most cached filters: sets of topics that readers want, each with the verdicts on topics."""

_MATCHED: Final = 500_000
"""Most cached verdicts of all filters; beyond that the least recently used filters are dropped."""

_READ_BYTES: Final = MIB
"""Size of a read from the disk for each reader, in bytes."""

_LOCATED_BYTES: Final = 16 * MIB
"""Most of a file that one answer names, in bytes.  Another question takes 1 ms, beside 10 ms of reading so much."""

_PIECE: Final = 256 * KIB
"""Size of one message in a reader's tunnel, in bytes: one frame."""

_COPIED: Final = frozenset({Pin, Commit, Drop, Transfer})
"""Operations that are answered once enough copies have their changes."""

_COPYING: Final = 4.0
"""Seconds that this may take; then the caller tries again."""


@final
class Operations:
    """The handlers of one member.

    Args:
        member: stores and reads.
        intake: commits what Spark writes.
        queues: assigns jobs.
        others: handlers of operations that are other parts' business.
        permissions: rights to call each operation.
        config: limits of what one cluster may have, and do at a time.
    """

    def __init__(
        self,
        member: BridgeMember,
        intake: BatchCommitter,
        queues: Queues,
        others: RequestHandlers,
        permissions: Permissions,
        config: Config,
    ) -> None:
        self._member = member
        self._intake = intake
        self._queues = queues
        self._consumers = Consumers(member, member.groups)
        self._others = others
        self._permissions = permissions
        self._config = config
        self._filters: dict[tuple[tuple[str, ...], str | None], TopicFilter] = {}
        """Filters of readers, the most recently used last."""
        self._polls: Counter[str] = Counter()
        """Number of requests that wait for news, by cluster."""
        self._waiting: set[trio.CancelScope] = set()
        """A scope for each of them."""
        self._is_closing = False

    def close(self) -> None:
        """End what would go on until the caller leaves, or news come: the member leaves."""
        self._is_closing = True
        self._consumers.close()
        for waiting in self._waiting:
            waiting.cancel()

    def requests(self) -> RequestHandlers:
        """See ``Engine``."""
        requests: dict[type[Ask[object]], RequestHandler] = {
            ListShards: self._shards,
            PollOffsets: self._offsets,
            ListGaps: self._gaps,
            CountDamage: self._damage,
            FindTimes: self._times,
            Locate: self._locate,
            Pin: self._pin,
            Move: self._move,
            ListCursors: self._cursors,
            Drop: self._drop,
            Transfer: self._transfer,
            Trim: self._trim,
            ReadCounters: self._status,
            ListCopies: self._copies,
            ListTiers: self._tier,
            Commit: self._commit,
            LastBatch: self._last_batch,
            Abort: self._abort,
            ShowQueue: self._queues.status,
            PeekJobs: self._queues.peek,
            PurgeQueue: self._queues.purge,
            **self._others,
        }
        return {kind: self._copied(one) if kind in _COPIED else one for kind, one in requests.items()}

    def tunnels(self) -> TunnelHandlers:
        """See ``Engine``."""
        return {
            ReadLog: self._read,
            StagePart: self._stage,
            TakeJobs: self._queues.serve,
            Consume: self._consumers.consume,
        }

    def _copied(self, handler: RequestHandler) -> RequestHandler:
        """Have an answer wait until enough copies have what the handler has changed."""

        async def answer(sender: Sender, asked: Ask[object]) -> object:
            found = await handler(sender, asked)
            await self._member.copies.wait_copied(_COPYING)
            return found

        return answer

    async def claim(self, kind: Kind, name: str, cluster: str) -> str:
        """See ``Engine``."""
        config = self._config
        store = self._member.store
        if kind == "group":
            most, most_of_owner = config.bridge_groups, config.bridge_groups_per_owner
            claim_name = partial(store.cursors.claim, name)
        else:
            most, most_of_owner = config.bridge_queries, config.bridge_queries_per_owner
            claim_name = partial(store.owners.claim, kind, name)
        claim = partial(claim_name, cluster, most=most, most_of_owner=most_of_owner, now=self._member.now())
        return await run_in_thread(claim)

    def owner(self, kind: Kind, name: str) -> str | None:
        """See ``Engine``."""
        return self._member.store.owners.owner(kind, name)

    # -- requests -------------------------------------------------------------------------------------------

    async def _shards(self, _sender: Sender, _asked: ListShards) -> MemberShards:
        member = self._member
        shards = tuple(
            RemoteShard(
                id=state.id,
                number=state.number,
                address=member.copies.address,
                earliest=state.earliest,
                next=state.next,
                size=state.size,
                timestamp=state.timestamp,
                of=member.of or 0,
                gap=member.store.reader.last_loss(state),
                term=member.copies.term,
            )
            for state in member.states.values()
        )
        return MemberShards(shards=shards, known=dict(member.known))

    async def _offsets(self, sender: Sender, asked: PollOffsets) -> dict[str, Extent]:
        wanted = self._wanted(asked.topics, asked.regex)
        account = account_of(sender.cluster)
        timeout = 0.0 if self._polls[account] >= self._config.bridge_polls_per_owner else asked.timeout
        self._polls[account] += 1
        found = None
        try:
            if timeout and not self._is_closing:
                with trio.CancelScope() as waiting:
                    self._waiting.add(waiting)
                    try:
                        found = await self._member.wait_news(asked.known, timeout, wanted, asked.limit)
                    finally:
                        self._waiting.remove(waiting)
            if found is None:
                found = await self._member.wait_news(asked.known, 0.0, wanted, asked.limit)
        finally:
            self._polls[account] -= 1
            if not self._polls[account]:
                del self._polls[account]
        states = self._member.states
        return {
            shard: Extent(
                earliest=news.earliest,
                next=news.next,
                gap=self._member.store.reader.last_loss(states[shard]),
                first=news.first,
                count=news.count,
                upto=news.upto,
            )
            for shard, news in found.items()
            if shard in states
        }

    def _wanted(self, topics: tuple[str, ...], regex: str | None) -> TopicFilter:
        """Return a filter of the topics that a reader wants."""
        wanted = self._filter(topics, regex)
        if not wanted.is_linear:
            raise RemoteError("bad_request", f"regex is none that RE2 knows, of {MAX_REGEX} bytes at most")
        return wanted

    def _filter(self, topics: tuple[str, ...], regex: str | None) -> TopicFilter:
        found = self._filters.pop((topics, regex), None) or TopicFilter(topics, regex)
        self._filters[topics, regex] = found
        matched = sum(other.remembered for other in self._filters.values())
        while len(self._filters) > 1 and (len(self._filters) > _FILTERS or matched > _MATCHED):
            oldest = next(iter(self._filters))
            matched -= self._filters.pop(oldest).remembered
        return found

    async def _gaps(self, sender: Sender, asked: ListGaps) -> list[Gap]:
        state = self._state(asked.shard)
        wanted = TopicFilter(asked.topics)
        found = [
            gap
            for gap in self._member.store.reader.gaps()
            if gap.shard == state.number
            and gap.spans(asked.start, asked.end)
            and wanted.wants(gap.topic)
            and self._permissions.may_read(sender, gap.topic)
        ]
        return found[asked.skip : asked.skip + GAPS_AT_ONCE]

    async def _damage(self, _sender: Sender, asked: CountDamage) -> DamageList:
        state, wanted = self._state(asked.shard), self._wanted(asked.topics, asked.regex)
        count = partial(self._member.store.reader.damage_between, state.number, asked.start, asked.end, wanted)
        found = await run_in_thread(count)
        return DamageList(
            count=sum(count for _, count in found),
            places=tuple((damage.offset, damage.end, damage.reason) for damage, _ in found[:GAPS_AT_ONCE]),
        )

    async def _times(self, _sender: Sender, asked: FindTimes) -> dict[str, int]:
        store = self._member.store
        return {
            state.id: min(await run_in_thread(store.reader.offset_at, state.number, asked.timestamp), state.next)
            for state in self._member.states.values()
        }

    async def _pin(self, _sender: Sender, asked: Pin) -> PinnedCursor:
        start = self._own_offsets(asked.start)
        pin = partial(self._member.store.cursors.pin, asked.group, start, now=self._member.now())
        cursor = await run_in_thread(pin)
        return PinnedCursor(start=dict(cursor.start), offsets=dict(cursor.offsets))

    async def _move(self, _sender: Sender, asked: Move) -> None:
        offsets = self._own_offsets(asked.offsets)
        await run_in_thread(partial(self._member.store.cursors.move, asked.group, offsets, now=self._member.now()))

    def _own_offsets(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """Return offsets of this member's shards; it keeps no others for a group, however many it gets."""
        return {shard: offset for shard, offset in offsets.items() if shard in self._member.states}

    async def _cursors(self, _sender: Sender, _asked: ListCursors) -> list[GroupCursor]:
        owners = await run_in_thread(self._member.store.owners.of_kind, "group")
        return [
            GroupCursor(
                group=cursor.group,
                owner=owners.get(cursor.group, ""),
                start=dict(cursor.start),
                offsets=dict(cursor.offsets),
                timestamp=cursor.timestamp,
            )
            for cursor in await run_in_thread(self._member.store.cursors.all)
        ]

    async def _drop(self, _sender: Sender, asked: Drop) -> bool:
        if asked.shard is not None:
            return await self._member.forget_shard(asked.shard)
        if asked.group is not None:
            if not await self._member.groups.wait_unused(asked.group):
                raise RemoteError(
                    "bad_request", f"group {asked.group!r} is in use: a consumer of it is here. End that first"
                )
            return await run_in_thread(self._member.store.cursors.drop, asked.group)
        assert asked.query is not None
        await self._intake.discard(asked.query)
        return await run_in_thread(self._member.store.owners.drop_query, asked.query)

    async def _transfer(self, _sender: Sender, asked: Transfer) -> bool:
        kind: Kind = "query" if asked.group is None else "group"
        name = asked.group or asked.query or ""
        transfer = partial(self._member.store.owners.transfer, kind, name, asked.to, now=self._member.now())
        return await run_in_thread(transfer)

    async def _trim(self, _sender: Sender, asked: Trim) -> int:
        state = self._state(asked.shard)
        if asked.before > state.next:
            raise RemoteError("bad_request", f"before is {asked.before}: shard {state.id} ends at {state.next}")
        trimmed = await run_in_thread(self._member.store.retainer.trim, state.number, asked.before)
        self._member.refresh()
        return trimmed

    async def _status(self, _sender: Sender, _asked: ReadCounters) -> object:
        return self._member.statistics()

    async def _copies(self, _sender: Sender, _asked: ListCopies) -> Sequence[CopyStatus]:
        return await self._member.copies.statuses()

    async def _tier(self, _sender: Sender, _asked: ListTiers) -> Sequence[TierStatus]:
        return await self._member.tier_statuses()

    def _state(self, shard: str) -> ShardState:
        state = self._member.states.get(shard)
        if state is None:
            raise RemoteError("DataLost", f"shard {shard} is not there: the log was wiped or is another one")
        return state

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self, tunnel: Tunnel, asked: ReadLog, permit: Permit) -> None:
        state, at = self._state(asked.shard), asked.start
        _check_end(state, asked.end)
        wanted = self._wanted(asked.topics, asked.regex)

        def read() -> tuple[bytes, int]:
            chunks = self._member.store.reader.read(
                state.number,
                state.epoch,
                at,
                asked.end,
                max_bytes=_READ_BYTES,
                wanted=wanted,
                exact=exact,
                pass_damage=asked.pass_damage,
            )
            return b"".join(chunk.frame for chunk in chunks), chunks[-1].end

        while at < asked.end:
            permit.check()
            exact = not self._permissions.may_read_all(tunnel.sender)
            frames, at = await run_in_thread(read)
            for position in range(0, len(frames), _PIECE):
                await tunnel.send(frames[position : position + _PIECE])

    async def _locate(self, sender: Sender, asked: Locate) -> FileRange | None:
        if not self._permissions.may_read_all(sender):
            return None  # events of all topics are in one file
        if machine() is None or asked.machine != machine():
            return None
        state = self._state(asked.shard)
        _check_end(state, asked.end)
        locate = partial(
            self._member.store.reader.locate,
            state.number,
            state.epoch,
            asked.start,
            asked.end,
            max_bytes=_LOCATED_BYTES,
            wanted=self._wanted(asked.topics, asked.regex),
        )
        try:
            return await run_in_thread(locate)
        except ValueError as error:
            raise RemoteError("bad_request", str(error)) from None

    # -- writing --------------------------------------------------------------------------------------------

    async def _stage(self, tunnel: Tunnel, asked: StagePart, _permit: Permit) -> None:
        part = StagedPart(query=asked.query, batch=asked.batch, partition=asked.partition, attempt=asked.attempt)
        await tunnel.send(await self._intake.stage(part, tunnel))

    async def _commit(self, sender: Sender, asked: Commit) -> int | None:
        writer = self._permissions.writer(sender)
        parts = {
            StagedPart(query=asked.query, batch=asked.batch, partition=part.partition, attempt=part.attempt): part.rows
            for part in asked.parts
        }
        carried = {part: rows for part, rows in parts.items() if rows is not None}
        return await self._intake.commit(asked.query, asked.batch, [*parts], carried, writer=writer, after=asked.after)

    async def _last_batch(self, _sender: Sender, asked: LastBatch) -> int | None:
        return await run_in_thread(self._member.store.appender.last_batch, asked.query)

    async def _abort(self, _sender: Sender, asked: Abort) -> None:
        await self._intake.abort(asked.query, asked.batch)


def _check_end(state: ShardState, end: int) -> None:
    """Raise RemoteError for events that copies do not have yet: they are in the log, and may be lost with it."""
    if end > state.next:
        raise RemoteError("bad_request", f"no events up to {end}: shard {state.id} ends at {state.next}")
