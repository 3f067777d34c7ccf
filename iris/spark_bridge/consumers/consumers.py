"""Consumers: one member's side of ``Bridge.consume``, through a tunnel for each.

A consumer of a group has a turn, a position in the log, and commits.  One without a group only looks: nothing of it is
written down, so it takes part in no turn, and where it is, it says itself when it comes again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, final
from weakref import WeakValueDictionary

import trio

from iris.kernel.config import KIB
from iris.kernel.errors import RemoteError, TunnelBroken
from iris.kernel.tasks import open_background, run_in_thread
from iris.patterns.bridge_protocol import (
    Consume,
    ConsumerReport,
    Consuming,
    LogNews,
    SentBatch,
    SentEvent,
    StartOffset,
    StartTime,
    read_request,
)
from iris.patterns.pubsub.subscribe import EXPIRES
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.consumers.groups import ReaderGroups
from iris.spark_bridge.errors import BridgeUnreachable, DataLost, StoreFull, TierUnreachable
from iris.spark_bridge.log import ShardState, TopicFilter
from iris.spark_bridge.protocol import Permit
from iris.spark_bridge.queues import LARGE, JobRow, LogMember, pieces_of, rows_of

_READ_BYTES: Final = 256 * KIB
_AT_ONCE: Final = 1024
"""Events of one batch."""
_AHEAD: Final = 8
"""Most batches that were sent and that the program has not received.  Confirmations of its commits follow them."""
_TIER_PAUSE: Final = 1.0
"""Seconds between attempts to read what lies in a tier that does not answer."""

_IDLE: Final = 5.0
"""Seconds after which a consumer that waits has events on other topics counted as read."""


@final
class Consumers:
    """The consumers of one member.

    Args:
        member: has the log.
        groups: notes which groups are in use.
    """

    def __init__(self, member: LogMember, groups: ReaderGroups) -> None:
        self._member = member
        self._groups = groups
        self._turns: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._here: set[trio.CancelScope] = set()
        """A scope for each consumer."""
        self._is_closing = False

    def close(self) -> None:
        """Let all consumers go: the member leaves, and they go on when it is back.

        They would stay for as long as the member waits for its handlers, which no commit of theirs needs.
        """
        self._is_closing = True
        for scope in self._here:
            scope.cancel()

    async def consume(self, tunnel: Tunnel, asked: Consume, permit: Permit) -> None:
        """Serve a consumer, which may have the events of these topics.  Its group belongs to its cluster.

        Args:
            tunnel: tunnel to the consumer.
            asked: first message of the consumer.
            permit: its right to have these events.
        """
        if not asked.topics:
            raise RemoteError("bad_request", "topics: use one or more topic patterns")
        if self._is_closing:
            raise BridgeUnreachable("this member of the bridge is leaving")
        with trio.CancelScope() as scope, suppress(TunnelBroken):  # it has gone
            self._here.add(scope)
            try:
                reading = _Reading(self._member, asked, tunnel, permit)
                if asked.group is None:
                    await reading.run()
                    return
                turn = self._turns.setdefault(asked.group, trio.Lock())
                with self._groups.using(asked.group):
                    async with turn:
                        await reading.run()
            finally:
                self._here.remove(scope)


@final
class _Reading:
    """Stream of events to one consumer, from the position of its group on if it has one."""

    def __init__(self, member: LogMember, asked: Consume, tunnel: Tunnel, permit: Permit) -> None:
        self._member = member
        self._permit = permit
        self._asked = asked
        self._group = asked.group
        self._filter = TopicFilter(asked.topics)
        self._tunnel = tunnel
        self._at: dict[str, int] = {}
        """Next offset to read in each shard."""
        self._until: Mapping[str, int] | None = None
        """Offset at which reading ends in each shard that there was when it began.  None: it does not end."""
        self._committed: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        """End of the last batch of each shard: the offset after its last event."""
        self._batches = self._taken = 0
        """Batches sent, and how many of them the program has received."""
        self._room = trio.lowlevel.ParkingLot()
        self._missed: dict[str, int] = {}
        """Trimmed events of each shard that were not reported to the consumer yet."""
        self._expired = 0
        """Expired events that were not reported to the consumer yet."""
        self._reported: dict[str, int] = {}
        """Each shard's offset up to which gaps were reported to the consumer."""
        self._gaps: dict[tuple[int, int, str, str], int] = {}
        """Events reported to the consumer of each gap, which grows when it is merged with others."""

    async def run(self) -> None:
        """Read until the consumer leaves."""
        states = {state.id: state for state in self._member.states.values()}
        if self._asked.until == "now":
            self._until = {shard: state.next for shard, state in states.items()}
        else:
            self._until = self._asked.until
        since = self._asked.at
        if self._group is None:
            new = {shard: state for shard, state in states.items() if shard not in since}
            start = await run_in_thread(self._start, new)
            begin = {shard: since.get(shard, start.get(shard, 0)) for shard in states}
        else:
            await self._find_position(self._group, states)
            begin = {shard: max(offset, since.get(shard, 0)) for shard, offset in self._committed.items()}
        self._at = {shard: min(offset, states[shard].next) for shard, offset in begin.items()}
        self._sent, self._reported = dict(self._committed), dict(self._at)
        await self._tunnel._send_message(Consuming(at=self._at, until=self._until))
        async with open_background() as nursery:
            nursery.start_soon(self._send)
            async for message in self._tunnel:
                await self._receive_report(message)

    async def _find_position(self, group: str, states: Mapping[str, ShardState]) -> None:
        """Look up how far the group is; one that is new, or is to be replayed, begins."""
        member = self._member
        if self._asked.replay:
            await self._move(group, await run_in_thread(self._start, states))
        begin = partial(member.store.cursors.begin, group, partial(self._start, states), now=member.now())
        cursor = await run_in_thread(begin)
        self._committed = {shard: cursor.offsets.get(shard, state.earliest) for shard, state in states.items()}

    def _start(self, states: Mapping[str, ShardState]) -> dict[str, int]:
        match self._asked.start:
            case "earliest":
                return {shard: state.earliest for shard, state in states.items()}
            case "latest":
                return {shard: state.next for shard, state in states.items()}
            case StartTime(time):
                return {
                    shard: self._member.store.reader.offset_at(state.number, time) for shard, state in states.items()
                }
            case StartOffset(offset):
                for shard, state in states.items():
                    if not state.earliest <= offset <= state.next:
                        raise RemoteError(
                            "bad_request",
                            f"start is offset {offset}: shard {shard} holds {state.earliest} to {state.next}",
                        )
                return dict.fromkeys(states, offset)

    async def _receive_report(self, message: object) -> None:
        report = read_request(ConsumerReport, message)
        known = {shard: offset for shard, offset in report.commit.items() if shard in self._at}
        taken = self._taken if report.taken is None else report.taken
        is_understood = self._taken <= taken <= self._batches and (known or report.taken is not None)
        if not is_understood or (known and self._group is None):
            raise RemoteError(
                "bad_request", "a consumer's message is not understood: use {commit: offsets by shard, taken: batches}"
            )
        self._taken = taken
        self._room.unpark_all()
        if not known or self._group is None:
            return
        self._permit.check()
        # A commit may be late: sent again by a consumer that was cut off, when another one has come further meanwhile.
        next_ = {state.id: state.next for state in self._member.states.values()}
        await self._move(
            self._group,
            {
                shard: max(min(offset, next_.get(shard, 0)), self._committed.get(shard, 0))
                for shard, offset in known.items()
            },
        )
        await self._tunnel._send_message(LogNews(committed=known))

    async def _move(self, group: str, offsets: Mapping[str, int]) -> None:
        """Record the group's progress; on a full disk, retry until there is room."""
        self._committed |= offsets
        move = partial(self._member.store.cursors.move, group, dict(self._committed), now=self._member.now())
        while True:
            try:
                return await run_in_thread(move)
            except StoreFull:
                await trio.sleep(0.5)

    async def _send(self) -> None:
        with suppress(TunnelBroken):  # who receives gets it as well
            has_ended = False
            while True:
                states = {state.id: state for state in self._member.states.values()}
                found = False
                for shard, state in states.items():
                    end = self._end_of(state)
                    if self._at.setdefault(shard, state.earliest) < end:
                        found = True
                        await self._send_some(shard, state, end)
                if found:
                    continue
                if self._until is not None and not has_ended:
                    has_ended = True
                    await self._send_last_losses(states)
                    await self._tunnel._send_message(LogNews(ended=True))
                await self._wait({shard: state.next for shard, state in states.items()})

    def _end_of(self, state: ShardState) -> int:
        """Return the offset up to which a shard may be read now."""
        return state.next if self._until is None else min(state.next, self._until.get(state.id, 0))

    async def _wait(self, known: Mapping[str, int]) -> None:
        with trio.move_on_after(_IDLE) as scope:
            await self._member.wait_news(known, _IDLE)
        if self._group is None:
            return
        idle = scope.cancelled_caught or known == {s.id: s.next for s in self._member.states.values()}
        passed = {shard: at for shard, at in self._at.items() if at > self._committed.get(shard, 0)}
        if idle and passed and all(self._committed.get(shard, 0) >= self._sent.get(shard, 0) for shard in passed):
            await self._move(self._group, passed)  # nothing sent is open: what lies behind is on other topics

    async def _send_some(self, shard: str, state: ShardState, upto: int) -> None:
        at = max(self._at[shard], state.earliest)
        if at > self._at[shard]:
            # What went behind the last event on its topics that did is of others.
            gone = min(at, self._member.store.reader.earliest(state, self._filter))
            self._missed[shard] = self._missed.get(shard, 0) + max(0, gone - self._at[shard])
        self._at[shard] = at
        if at >= upto:
            return  # all that it had not read was trimmed
        try:
            rows, end = await run_in_thread(self._read, state, at, upto)
        except DataLost:
            return  # trimmed meanwhile: the next look begins behind that
        except TierUnreachable:
            await trio.sleep(_TIER_PAUSE)  # the member's log says that
            return
        now, read = trio.current_time(), len(rows)
        rows = [
            row for row in rows if EXPIRES not in row.headers or self._member.moment(row.timestamp) + row.expires > now
        ]
        self._expired += read - len(rows)
        for first in range(0, len(rows), _AT_ONCE):
            part = rows[first : first + _AT_ONCE]
            last = end if first + _AT_ONCE >= len(rows) else part[-1].offset + 1
            gaps = self._count_gaps(state.number, self._reported.get(shard, at), last)
            await self._send_batch(shard, state, part, last, gaps)
        self._at[shard] = end

    async def _send_batch(self, shard: str, state: ShardState, rows: Sequence[JobRow], end: int, gaps: int) -> None:
        """Send events, with what was lost before them, once the program has received enough of what came before."""
        self._sent[shard] = end
        while self._batches - self._taken >= _AHEAD:
            await self._room.park()
        self._batches += 1
        self._permit.check()
        batch = SentBatch(
            shard=shard,
            end=end,
            lag=state.next - end,
            missed=self._missed.pop(shard, 0),
            gaps=gaps,
            expired=self._expired,
            events=tuple(map(_event, rows)),
        )
        await self._tunnel._send_message(LogNews(batch=batch))
        self._expired = 0
        self._reported[shard] = end
        for row in rows:
            if len(row.value) > LARGE:
                for piece in pieces_of(row.value):
                    await self._tunnel.send(piece)

    async def _send_last_losses(self, states: Mapping[str, ShardState]) -> None:
        """Report what was lost behind the last event of each shard, in a batch without events."""
        for shard in self._until or ():
            state = states.get(shard)
            if state is not None:
                end = max(self._sent.get(shard, 0), self._at[shard])
                gaps = self._count_gaps(state.number, self._reported.get(shard, end), end)
                if gaps or self._missed.get(shard, 0):
                    await self._send_batch(shard, state, (), end, gaps)

    def _count_gaps(self, shard: int, start: int, end: int) -> int:
        """Count events on the consumer's topics that the bridge never got there and that were not reported yet."""
        count = 0
        for gap in self._member.store.reader.gaps_of(shard, start, end):
            if self._filter.wants(gap.topic):
                key = (shard, gap.offset, gap.topic, gap.cluster)
                count += gap.count - self._gaps.get(key, 0)
                self._gaps[key] = gap.count
        return count

    def _read(self, state: ShardState, at: int, upto: int) -> tuple[list[JobRow], int]:
        chunks = self._member.store.reader.read(
            state.number, state.epoch, at, upto, max_bytes=_READ_BYTES, wanted=self._filter
        )
        return rows_of(chunks, self._filter, at, upto), min(chunks[-1].end, upto)


def _event(row: JobRow) -> SentEvent:
    value = len(row.value) if len(row.value) > LARGE else row.value
    return SentEvent(row.offset, row.topic, row.key, row.headers, row.sender, row.encoding, row.timestamp, value)
