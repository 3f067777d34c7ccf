"""Consumer: reads a bridge's log from a position on, to its end or for ever, and goes on where its group was."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, final, overload

import trio
from msgspec import Struct
from msgspec.structs import replace

from iris.kernel.errors import ConfigError, RemoteError
from iris.kernel.names import check_name
from iris.kernel.tasks import Wakeup, checkpointed, open_background
from iris.kernel.topic_syntax import is_pattern
from iris.patterns import bridge_protocol
from iris.patterns.bridge_protocol import (
    Consume,
    ConsumerReport,
    Consuming,
    LogNews,
    SentBatch,
    SentEvent,
    StartOffset,
    StartTime,
    read_reply,
)
from iris.patterns.pubsub.interest import check_pattern
from iris.patterns.pubsub.queues.bridge_members import BridgeMembers
from iris.patterns.pubsub.queues.member_stream import MemberStream, MemberStreams, number_of, receive_value_untrusted
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")

Start = Literal["earliest", "latest"] | datetime | int
"""Position at which a group begins: a word, a time, or an offset in every shard."""


@final
class LogEvent(Struct, frozen=True, kw_only=True):
    """One event of a bridge's log.

    Attributes:
        payload: value that was published, as it travelled.
        topic: topic it was published on.
        key: the publisher's key.  None if it gave none.
        headers: texts that the publisher wrote beside the payload, str to str.  Nobody has verified them.
        sender: the cluster that has published it, as its certificate proves.
        timestamp: time at which the bridge stored it, in seconds since 1970.
        shard: id of the shard that holds it: the number and the epoch of its log, as ``0@9b60...``.
        offset: position in the shard, counted from 0.
    """

    payload: Any
    topic: str
    key: str | None
    headers: Mapping[str, str]
    sender: str
    timestamp: float
    shard: str
    offset: int


@final
class LogBatch(Sequence[LogEvent]):
    """Consecutive events of one shard, at most 1,024.  Made by iterating over a ``Consumer``.

    Use it as a context manager: leaving the block commits it.  After an error in the block it is not committed.  Of a
    consumer without a group nothing is committed.  With ``until="now"`` the last batch of a shard may have no events:
    it says what was lost behind those before.

    Attributes:
        shard: id of the shard.
        lag: events of the shard that come behind it, on whatever topic.
        missed: events that were trimmed before it could be read: up to the last one on the consumer's topics that was,
            and 0 if none was.
        gaps: events before its end, and behind the batch before, that the bridge never got: published while it was away
            or lost in flight, and not with ``publish_confirmed``.
        expired: events before it that had expired.
    """

    __slots__ = ("_end", "_events", "_link", "expired", "gaps", "lag", "missed", "shard")

    def __init__(self, link: MemberReader, events: Sequence[LogEvent], sent: SentBatch) -> None:
        self._link = link
        self._events = events
        self._end = sent.end
        self.shard: Final = sent.shard
        self.lag: Final = sent.lag
        self.missed: Final = sent.missed
        self.gaps: Final = sent.gaps
        self.expired: Final = sent.expired

    def __repr__(self) -> str:
        return f"<LogBatch of {len(self._events)} events of shard {self.shard}>"

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> LogEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LogEvent]: ...
    def __getitem__(self, index: int | slice) -> LogEvent | Sequence[LogEvent]:
        return self._events[index]

    def __iter__(self) -> Iterator[LogEvent]:
        return iter(self._events)

    @checkpointed
    async def commit(self) -> None:
        """Let the group go on behind this batch, and wait until that is on the bridge's disk.

        Without a group there is nothing to wait for: it returns at once.

        It waits for a bridge that is down.  Cancelling it takes nothing back.  A group that has come further meanwhile,
        by another consumer, stays where it is.

        Raises:
            trio.ClosedResourceError: the consumer's block has ended.
            RemoteError: the bridge's log was lost and made anew (``DataLost``).
            IrisError: the consumer has failed for good, as iterating over it says; it is not known whether the bridge
                knows of the commit.
        """
        await self._link.commit(self.shard, self._end)

    async def __aenter__(self) -> Self:
        """Return the batch."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit the batch, unless there is an error."""
        if error is None:
            await self.commit()


class BatchReceiver(Protocol):
    """Port of a reader to its consumer."""

    def offer(self, batch: LogBatch) -> None:
        """Receive a batch that has come.  It does not block."""
        ...

    def end(self) -> None:
        """Note that a reader has sent everything up to where it was to end.  It does not block."""
        ...


@final
class MemberReader(MemberStream):
    """Reader of the events of one member.

    Args:
        address: cluster at which the member is found.
        terms: what the member gets first, but for how far the program is.
        receiver: receives the batches.
    """

    def __init__(self, address: str, terms: Consume, receiver: BatchReceiver) -> None:
        super().__init__(address)
        self._terms = terms
        self._receiver = receiver
        self._handed: dict[str, int] = {}
        """Next offset for the program, by shard."""
        self._wanted: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._until: dict[str, int] | None = None
        """Offsets at which it ends, by shard.  None: it has no end, or does not know it yet."""
        self.has_ended = False
        """True once everything up to there was offered to the receiver."""
        self._taken = self._told = 0
        """Batches of the present tunnel that the program has received; and how many of these were reported."""
        self._heirs: dict[str, MemberReader] = {}
        """Readers of shards whose member has got another name, by shard."""

    def hand(self, batch: LogBatch) -> None:
        """Note that the program has a batch, so that the member sends another one."""
        self._handed[batch.shard] = batch._end
        self._taken += 1
        self._wakeup.wake()

    async def commit(self, shard: str, end: int) -> None:
        """See ``LogBatch.commit``."""
        if self._terms.group is None:
            return await trio.lowlevel.checkpoint()
        if shard in self._heirs:
            return await self._heirs[shard].commit(shard, end)
        self._check_there(shard)
        self._wanted[shard] = max(end, self._wanted.get(shard, 0))
        self._wakeup.wake()
        while self._committed.get(shard, 0) < end:
            if self._failure is not None:
                raise self._failure
            await self._news.park()
            if shard in self._heirs:
                return await self._heirs[shard].commit(shard, end)
            self._check_there(shard)
        return None

    def _check_there(self, shard: str) -> None:
        if self._is_gone(shard):
            raise RemoteError("DataLost", f"the log with shard {shard} was lost and made anew: nothing is committed")

    def give_up(self, heir: Callable[[int], MemberReader | None]) -> None:
        """Leave shards to the readers of the members at which they are now."""
        for shard in {*self._handed, *self._wanted, *(self._until or ())}:
            other = heir(number_of(shard))
            if other is not None and other is not self:
                if self._until is not None:
                    self._until.pop(shard, None)
                for mine, its in ((self._handed, other._handed), (self._wanted, other._wanted)):
                    its[shard] = max(mine.pop(shard, 0), its.get(shard, 0))
                self._heirs[shard] = other
                other._heirs.pop(shard, None)  # it may have had it before
                other._wakeup.wake()
        self._news.unpark_all()

    def _begin(self) -> Consume:
        self._taken = self._told = 0
        until = self._terms.until if self._until is None else self._until
        return replace(self._terms, at=self._handed, until=until)

    def reopen(self) -> None:
        """Note that batches which came are lost, and come again."""
        self.has_ended = False

    def _opened(self, answer: object) -> None:
        begun = read_reply(Consuming, answer)
        at = begun.at
        self._terms.replay = False  # it has begun where it was to begin
        self._shards = {number_of(shard): shard for shard in at}
        self._check_end(begun)
        if self._terms.group is None:
            # No bridge knows where it is: it goes on from here however often the tunnel breaks, also before a batch.
            self._handed = at | self._handed
        for shard in [shard for shard in (*self._handed, *self._wanted) if self._is_gone(shard)]:
            self._handed.pop(shard, None)
            self._wanted.pop(shard, None)
        if any(end > self._committed.get(shard, 0) for shard, end in self._wanted.items()):
            self._wakeup.wake()

    def _check_end(self, begun: Consuming) -> None:
        """Note where reading ends; raise RemoteError if it cannot end there any more."""
        if self._terms.until is None:
            return
        if begun.until is None:
            raise RemoteError(
                "bad_request", f"{self.address!r} is of a version whose consumers do not end: leave out until"
            )
        if self._until is None:
            self._until = begun.until
        for shard in self._until.keys() - begun.at.keys():
            if self._is_gone(shard):
                raise RemoteError(
                    "DataLost", f"the log with shard {shard} was lost and made anew, before it was read to its end"
                )
            del self._until[shard]  # another member has it now

    def _report(self) -> ConsumerReport | None:
        here = self._shards.values()  # another one is at a member that has this one's former name, or had it
        open_ = {
            shard: end for shard, end in self._wanted.items() if end > self._committed.get(shard, 0) and shard in here
        }
        taken, self._told = self._taken if self._taken > self._told else None, self._taken
        return ConsumerReport(commit=open_, taken=taken) if open_ or taken is not None else None

    async def _receive(self, message: object, tunnel: Tunnel) -> None:
        news = read_reply(LogNews, message)
        if news.committed:
            self._committed |= news.committed
            self._news.unpark_all()
        if news.ended:
            self.has_ended = True
            self._receiver.end()
        sent = news.batch
        if sent is None:
            return
        self._shards[number_of(sent.shard)] = sent.shard
        events = [await _event(event, sent.shard, tunnel) for event in sent.events]
        for count, what in (
            (sent.missed, "%d events of shard %s were trimmed before %s could read them"),
            (sent.gaps, "%d events of shard %s never came to the bridge, and %s goes on without them"),
        ):
            if count:
                reader = user_of(self._terms)
                _log.warning(what, count, sent.shard, reader, extra={"cluster": self.address, "count": count})
        self._receiver.offer(LogBatch(self, events, sent))


async def _event(sent: SentEvent, shard: str, tunnel: Tunnel) -> LogEvent:
    return LogEvent(
        payload=await receive_value_untrusted(sent.value, sent.encoding, tunnel),
        topic=sent.topic,
        key=sent.key,
        headers=sent.headers,
        sender=sent.sender,
        timestamp=sent.timestamp / 1e6,
        shard=shard,
        offset=sent.offset,
    )


@final
class _ReadyBatches:
    """Batches that have come and that the program does not have; see ``BatchReceiver``."""

    def __init__(self) -> None:
        self.ready: deque[LogBatch] = deque()
        self.arrived = Wakeup()

    def offer(self, batch: LogBatch) -> None:
        """See ``BatchReceiver``."""
        self.ready.append(batch)
        self.arrived.wake()

    def end(self) -> None:
        """See ``BatchReceiver``."""
        self.arrived.wake()


def user_of(terms: Consume) -> str:
    """Return who reads, in words."""
    return "a reader without a group" if terms.group is None else f"group {terms.group}"


@final
class Consumer(MemberStreams[MemberReader]):
    """An iterator over batches of a bridge's log.  Made by ``Bridge.consume``; one task iterates.

    Cancelling the iteration loses no batch.  With ``until="now"`` it ends.
    """

    def __init__(self, members: BridgeMembers, terms: Consume) -> None:
        super().__init__(members, Consume.operation, user_of(terms), {})
        self.group: Final = terms.group
        self._terms = terms
        self._batches = _ReadyBatches()
        self._lags: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Consumer {user_of(self._terms)}, {self.lag} events behind>"

    @property
    def lag(self) -> int:
        """Events that come behind the last batch of each shard, as the bridge reported with it."""
        return sum(self._lags.values())

    def __aiter__(self) -> Self:
        return self

    @checkpointed
    async def __anext__(self) -> LogBatch:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._batches.ready:
            if self._failure is not None:
                raise self._failure
            if self._has_ended():
                raise StopAsyncIteration
            await self._batches.arrived.wait()
        batch = self._batches.ready.popleft()
        self._lags[batch.shard] = batch.lag
        batch._link.hand(batch)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return batch

    def _has_ended(self) -> bool:
        """Return whether everything has come that was there when each member was reached."""
        streams = [stream for address, stream in self._streams.items() if address in self._members.found]
        return self._terms.until is not None and bool(streams) and all(stream.has_ended for stream in streams)

    def _open_stream(self, address: str) -> MemberReader:
        return MemberReader(address, replace(self._terms), self._batches)

    def _wake(self) -> None:
        self._batches.arrived.wake()

    def _looked(self) -> None:
        self._wake()  # a member that was waited for may be gone for good

    def _broken(self, stream: MemberReader) -> None:
        # What the program does not have yet comes again.
        kept = deque(batch for batch in self._batches.ready if batch._link is not stream)
        if len(kept) < len(self._batches.ready):
            stream.reopen()
        self._batches.ready = kept


@asynccontextmanager
async def open_consumer(
    topics: Sequence[str],
    members: BridgeMembers,
    *,
    group: str | None,
    start: Start,
    until: Literal["now"] | None,
    replay: bool,
) -> AsyncIterator[Consumer]:
    """See ``Bridge.consume``."""
    if not topics or not all(map(is_pattern, topics)):
        raise ConfigError(f"topics are {list(topics)}: use topic patterns, such as 'orders.>'")
    for pattern in topics:
        check_pattern(pattern)
    if group is not None:
        check_name(group, "group")
    elif replay:
        raise ConfigError("replay begins anew with a group that is known: give a group, or leave it out")
    if until not in (None, "now"):
        raise ConfigError(f"until is {until!r}: use 'now' to end after what the log holds when it begins, or None")
    terms = Consume(group=group, topics=tuple(topics), start=_start(start), replay=bool(replay), until=until)
    async with open_background() as nursery:
        consumer = Consumer(members, terms)
        nursery.start_soon(consumer._run)
        try:
            yield consumer
        finally:
            consumer._end(trio.ClosedResourceError("the consumer was left before its bridge had confirmed"))


def _start(start: Start) -> bridge_protocol.Start:
    match start:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case datetime():
            try:
                return StartTime(int(start.timestamp() * 1e6))
            except (ValueError, OverflowError, OSError):  # the first and the last days without a zone
                raise ConfigError(f"start is {start!r}: this machine has no such time, give it a time zone") from None
        case int() if 0 <= start < 2**63 and not isinstance(start, bool):
            return StartOffset(start)
        case _:
            raise ConfigError(f"start is {start!r}: use 'earliest', 'latest', a datetime or an offset, 0 or more")
