"""Consumer: reads a bridge's log from a position on, and goes on where its group was."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, cast, final, overload

import trio
from msgspec import Struct

from iris.kernel.errors import ConfigError, IrisError, NoSuchCluster, RemoteError, RemoteProtocolError
from iris.kernel.names import check_name
from iris.kernel.tasks import Wakeup, open_background
from iris.kernel.topic_syntax import is_pattern
from iris.patterns.pubsub.interest import check_pattern
from iris.patterns.pubsub.queues.bridge_members import TRANSIENT, BridgeMembers, error_of, first_error, is_final
from iris.patterns.pubsub.queues.member_link import decode_value_untrusted, receive_large_untrusted
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")

Start = Literal["earliest", "latest"] | datetime | int
"""Position at which a group begins: a word, a time, or an offset in every shard."""

_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_LOOK: Final = 10.0
"""Seconds between two looks for further members of the bridge."""


@final
class LogEvent(Struct, frozen=True, kw_only=True):
    """One event of a bridge's log."""

    payload: Any
    """Value that was published, as it travelled."""
    topic: str
    key: str | None
    headers: Mapping[str, str]
    sender: str
    """The cluster that has published it, as its certificate proves."""
    timestamp: float
    """Time at which the bridge stored it, in seconds since 1970."""
    shard: str
    offset: int


@final
class BatchPosition(NamedTuple):
    """Place of a batch in the log, and what is missing before it; see ``LogBatch``."""

    shard: str
    end: int
    """Offset that follows its last event."""
    lag: int
    missed: int
    gaps: int
    expired: int


@final
class LogBatch(Sequence[LogEvent]):
    """Consecutive events of one shard, at most 1,024.  Made by iterating over a ``Consumer``.

    Use it as a context manager: leaving the block commits it.  After an error in the block it is not committed.
    """

    __slots__ = ("_end", "_events", "_link", "expired", "gaps", "lag", "missed", "shard")

    def __init__(self, link: _MemberReader, events: Sequence[LogEvent], position: BatchPosition) -> None:
        self._link = link
        self._events = events
        self._end = position.end
        self.shard: Final = position.shard
        self.lag: Final = position.lag
        """Events of the shard that come behind it, on whatever topic."""
        self.missed: Final = position.missed
        """Events that were trimmed before it could be read: up to the last one on the consumer's topics that was, and 0
        if none was."""
        self.gaps: Final = position.gaps
        """Events before its end, and behind the batch before, that the bridge never got: published while it was away or
        lost in flight, and not with ``publish_confirmed``."""
        self.expired: Final = position.expired
        """Events before it that had expired."""

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

    async def commit(self) -> None:
        """Let the group go on behind this batch, and wait until that is on the bridge's disk.

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


@final
class _MemberReader:
    """Reader of the events of one member."""

    def __init__(self, consumer: Consumer, address: str) -> None:
        self.address: Final = address
        self._consumer = consumer
        self._handed: dict[str, int] = {}
        """Offset behind the last event that the program has, by shard."""
        self._wanted: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._wakeup = Wakeup()
        self._taken = self._reported = 0
        """Batches of the present tunnel that the program has received; and how many of these were reported."""
        self._news = trio.lowlevel.ParkingLot()
        self._failure: Exception | None = None
        """Error because of which nothing is confirmed any more.  None as long as there is none."""
        self._shards: dict[str, str] = {}
        """Ids of the member's shards by number.  A log that was lost and made anew has another one."""
        self._heirs: dict[str, _MemberReader] = {}
        """Readers of shards whose member has got another name, by shard."""

    def hand(self, batch: LogBatch) -> None:
        """Note that the program has a batch, so that the member sends another one."""
        self._handed[batch.shard] = batch._end
        self._taken += 1
        self._wakeup.wake()

    async def commit(self, shard: str, end: int) -> None:
        """See ``LogBatch.commit``."""
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

    def _is_gone(self, shard: str) -> bool:
        return self._shards.get(shard.partition("@")[0], shard) != shard

    def _check_there(self, shard: str) -> None:
        if self._is_gone(shard):
            raise RemoteError("DataLost", f"the log with shard {shard} was lost and made anew: nothing is committed")

    def give_up(self, heirs: Callable[[int], _MemberReader | None]) -> None:
        """Leave shards to the readers of the members at which they are now."""
        for shard in {*self._handed, *self._wanted}:
            number = shard.partition("@")[0]
            heir = heirs(int(number)) if number.isdecimal() else None
            if heir is not None and heir is not self:
                for mine, its in ((self._handed, heir._handed), (self._wanted, heir._wanted)):
                    its[shard] = max(mine.pop(shard, 0), its.get(shard, 0))
                self._heirs[shard] = heir
                heir._heirs.pop(shard, None)  # it may have had it before
                heir._wakeup.wake()
        self._news.unpark_all()

    def end(self, error: Exception) -> None:
        """Raise an error in all tasks that wait, now or later."""
        self._failure = self._failure or error
        self._news.unpark_all()

    async def run(self, tunnel: Tunnel, terms: Mapping[str, Any]) -> None:
        """Read through a tunnel until it ends."""
        self._taken = self._reported = 0
        await tunnel.send({**terms, "at": self._handed})
        answer = await tunnel.receive()
        error = error_of(answer)
        if error is not None:
            raise error
        match answer:
            case {"at": dict()}:
                ids = cast("dict[str, dict[str, int]]", answer)["at"].keys()
                self._shards = {str(shard).partition("@")[0]: shard for shard in ids}
            case _:
                pass
        for shard in [shard for shard in (*self._handed, *self._wanted) if self._is_gone(shard)]:
            self._handed.pop(shard, None)
            self._wanted.pop(shard, None)
        self._news.unpark_all()
        if any(self._wanted.get(shard, 0) > self._committed.get(shard, 0) for shard in self._wanted):
            self._wakeup.wake()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, tunnel)
            async for message in tunnel:
                await self._receive(message, tunnel)
            nursery.cancel_scope.cancel()

    async def _send(self, tunnel: Tunnel) -> None:
        while True:
            await self._wakeup.wait()
            report: dict[str, Any] = {}
            here = self._shards.values()  # another one is at a member that has this one's former name, or had it
            open_ = {
                shard: end
                for shard, end in self._wanted.items()
                if end > self._committed.get(shard, 0) and shard in here
            }
            if open_:
                report["commit"] = open_
            if self._taken > self._reported:
                self._reported = report["taken"] = self._taken
            if report:
                await tunnel.send(report)

    async def _receive(self, message: object, tunnel: Tunnel) -> None:
        error = error_of(message)
        if error is not None:
            raise error
        match message:
            case {"committed": dict()}:
                self._committed |= cast("dict[str, dict[str, int]]", message)["committed"]
                self._news.unpark_all()
            case {
                "shard": str(shard),
                "end": int(end),
                "lag": int(lag),
                "missed": int(missed),
                "gaps": int(gaps),
                "expired": int(expired),
                "events": list() as rows,  # pyright: ignore[reportUnknownVariableType]
            }:
                self._shards[shard.partition("@")[0]] = shard
                events = [await _event_untrusted(row, shard, tunnel) for row in cast("list[object]", rows)]
                if missed:
                    _log.warning(
                        "%d events of shard %s were trimmed before group %s could read them",
                        missed, shard, self._consumer.group,
                        extra={"cluster": self.address, "count": missed},
                    )  # fmt: skip
                if gaps:
                    _log.warning(
                        "%d events of shard %s never came to the bridge, and group %s goes on without them",
                        gaps, shard, self._consumer.group,
                        extra={"cluster": self.address, "count": gaps},
                    )  # fmt: skip
                self._consumer._offer(LogBatch(self, events, BatchPosition(shard, end, lag, missed, gaps, expired)))
            case _:
                raise _not_understood()


async def _event_untrusted(row: object, shard: str, tunnel: Tunnel) -> LogEvent:
    match row:
        case [
            int(offset), str(topic), None | str() as key, dict() as headers, str(sender), str(encoding), int(timestamp),  # pyright: ignore[reportUnknownVariableType]
            bytes() | int() as value,
        ]:  # fmt: skip
            pass
        case _:
            raise _not_understood()
    if isinstance(value, int):
        value = await receive_large_untrusted(tunnel, value)
    return LogEvent(
        payload=decode_value_untrusted(value, encoding),
        topic=topic,
        key=key,
        headers=cast("dict[str, str]", headers),
        sender=sender,
        timestamp=timestamp / 1e6,
        shard=shard,
        offset=offset,
    )


def _not_understood() -> RemoteProtocolError:
    return RemoteProtocolError("a member of the bridge sent events in a form that is not understood")


@final
class Consumer:
    """An iterator over batches of a bridge's log.  Made by ``Bridge.consume``; one task iterates.

    Cancelling the iteration loses no batch.
    """

    def __init__(self, group: str, members: BridgeMembers, terms: Mapping[str, Any]) -> None:
        self.group: Final = group
        self._members = members
        self._terms = dict(terms)
        self._readers: dict[str, _MemberReader] = {}
        self._batches: deque[LogBatch] = deque()
        self._arrived = Wakeup()
        self._failure: Exception | None = None
        self._lags: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Consumer of group {self.group!r}, {self.lag} events behind>"

    @property
    def lag(self) -> int:
        """Events that come behind the last batch of each shard, as the bridge reported with it."""
        return sum(self._lags.values())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogBatch:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._batches:
            if self._failure is not None:
                raise self._failure
            await self._arrived.wait()
        batch = self._batches.popleft()
        self._lags[batch.shard] = batch.lag
        batch._link.hand(batch)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return batch

    def _offer(self, batch: LogBatch) -> None:
        self._batches.append(batch)
        self._arrived.wake()

    async def _run(self) -> None:
        """Read from every member, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        for address in await self._members.addresses():
                            if address not in self._readers:
                                self._readers[address] = _MemberReader(self, address)
                                nursery.start_soon(self._keep, self._readers[address])
                        for reader in self._readers.values():
                            reader.give_up(self._heir)
                        pause = _LOOK
                    except TRANSIENT as error:
                        if is_final(error):
                            raise
                        pause = _LONGEST_PAUSE
                    await trio.sleep(pause)
        except* (IrisError, trio.ClosedResourceError) as group:
            self._end(first_error(group))

    def _heir(self, shard: int) -> _MemberReader | None:
        """Return the reader of the member at which a shard is now."""
        return self._readers.get(self._members.owners.get(shard, ""))

    async def _keep(self, reader: _MemberReader) -> None:
        """Read from one member, and again when it comes back."""
        failed: type[Exception] | None = None
        pause = _PAUSE
        while True:
            began = trio.current_time()
            try:
                async with self._members.open_tunnel(reader.address, "consume") as tunnel:
                    await reader.run(tunnel, self._terms)
            except* TRANSIENT as group:
                error = first_error(group)
                if is_final(error):
                    raise error from None
                if type(error) is not failed:
                    absent = isinstance(error, NoSuchCluster)
                    reason = f"is 'iris bridge --name {reader.address}' running?" if absent else str(error)
                    _log.warning(
                        "group %s waits for %s: %s", self.group, reader.address, reason,
                        extra={"cluster": reader.address, "reason": str(error)},
                    )  # fmt: skip
                failed = type(error)
            # What the program does not have yet comes again.
            self._batches = deque(batch for batch in self._batches if batch._link is not reader)
            self._terms["replay"] = False
            if trio.current_time() - began > _LONGEST_PAUSE:
                pause, failed = _PAUSE, None
            await trio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _end(self, error: Exception) -> None:
        """Raise an error in the tasks that wait for batches, or for a commit."""
        self._failure = self._failure or error
        self._arrived.wake()
        for reader in self._readers.values():
            reader.end(error)


@asynccontextmanager
async def open_consumer(
    topics: Sequence[str], members: BridgeMembers, *, group: str, start: Start, replay: bool
) -> AsyncIterator[Consumer]:
    """See ``Bridge.consume``."""
    if not topics or not all(map(is_pattern, topics)):
        raise ConfigError(f"topics are {list(topics)}: use topic patterns, such as 'orders.>'")
    for pattern in topics:
        check_pattern(pattern)
    check_name(group, "group")
    terms = {"group": group, "topics": list(topics), "start": _start(start), "replay": bool(replay)}
    async with open_background() as nursery:
        consumer = Consumer(group, members, terms)
        nursery.start_soon(consumer._run)
        try:
            yield consumer
        finally:
            consumer._end(trio.ClosedResourceError("the consumer was left before its bridge had confirmed"))


def _start(start: Start) -> object:
    match start:
        case "earliest" | "latest":
            return start
        case datetime():
            return {"time": int(start.timestamp() * 1e6)}
        case int() if start >= 0 and not isinstance(start, bool):
            return {"offset": start}
        case _:
            raise ConfigError(f"start is {start!r}: use 'earliest', 'latest', a datetime or an offset, 0 or more")
