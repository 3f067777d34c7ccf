"""Bridge client: the operations of ``iris.spark_bridge.protocol`` from the caller's side.

No state outlives a call and ranges of a log never change, so every call may be retried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import IO, Any, Final, TypeVar, final

import trio

from iris.kernel.config import KIB
from iris.kernel.errors import (
    ConfigError,
    DeliveryError,
    IrisError,
    NoSuchCluster,
    NotAllowed,
    RemoteError,
    RemoteProtocolError,
    TunnelBroken,
)
from iris.kernel.names import NodeId
from iris.kernel.numerals import as_float, shown
from iris.node.node import Node
from iris.patterns.bridge_protocol import (
    Ask,
    ListShards,
    MemberShards,
    RemoteShard,
    as_fields,
    read_answer,
    read_refusal,
    read_reply,
)
from iris.patterns.pubsub.interest import promotion_advice
from iris.patterns.request import REPEATED
from iris.spark_bridge.client.offsets import number_of
from iris.spark_bridge.errors import (
    BridgeUnreachable,
    DataLost,
    LogDamaged,
    NotCopied,
    QuotaExceeded,
    StaleBatch,
    StoreFull,
    TierUnreachable,
)
from iris.spark_bridge.events.damage import Damage
from iris.spark_bridge.events.gaps import GAPS_AT_ONCE, Gap
from iris.spark_bridge.events.schema import check_texts, encoding_of, header_texts, key_text, payload_of
from iris.spark_bridge.log import (
    EVERYTHING,
    HEADER_SIZE,
    Chunk,
    FileRange,
    TopicFilter,
    decode_frames,
    frame_size,
    machine,
)
from iris.spark_bridge.protocol import (
    Abort,
    Commit,
    CountDamage,
    Extent,
    FindTimes,
    LastBatch,
    ListedPart,
    ListGaps,
    Locate,
    Move,
    Pin,
    PollOffsets,
    ReadLog,
    StagePart,
)
from iris.spark_bridge.staging import StagedPart

_ERRORS: Final[Mapping[str, type[IrisError]]] = {
    error.__name__: error
    for error in (DataLost, LogDamaged, NotCopied, QuotaExceeded, StaleBatch, StoreFull, TierUnreachable, NotAllowed)
}
_LATER: Final = (NotCopied, TierUnreachable)
"""Answers of a member that may be another one a little later."""
_TRANSIENT: Final = (DeliveryError, trio.TooSlowError)
_PAUSE: Final = 0.1

_PIECE: Final = 128 * KIB
"""Size of one message in a writer's tunnel, in bytes."""

_COMMIT: Final = 60.0
"""Seconds that one attempt to commit may take: the member writes the whole batch into its log."""

_UNCONFIRMED: Final = 1024
"""Events that Spark publishes directly and that wait for their confirmation, in each task."""

R = TypeVar("R")
T = TypeVar("T")


@final
class BridgeClient:
    """Client of one bridge.

    Args:
        node: node that sends the requests.
        bridge: the bridge's cluster.
        patience: seconds that a bridge which is down is waited for, in each call.

    Raises:
        ConfigError: the patience is no time.
    """

    def __init__(self, node: Node, bridge: str, *, patience: float) -> None:
        seconds = as_float(patience)
        if not (math.isfinite(seconds) and seconds > 0):
            raise ConfigError(f"patience with bridge {bridge!r} is {shown(patience)}: use seconds, more than 0")
        self._node = node
        self._bridge = bridge
        self._patience = seconds
        self._found: tuple[frozenset[NodeId], Sequence[RemoteShard]] | None = None
        self._terms: dict[int, int] = {}
        """Latest term seen of each shard: a primary of an earlier term is not read any more."""

    async def addresses(self) -> tuple[str, ...]:
        """Return the clusters at which the members are found, sorted.

        They are asked only if other members are there than those that were asked last: where a member is found does
        not change while it runs.

        Raises:
            as ``shards``.
        """
        return tuple(sorted({shard.address for shard in await self._known_shards()}))

    async def home_of(self, number: int) -> str:
        """Return the member that has the shard on which a number falls.

        A member that is started under another name, or promoted, has the same shards and the same log.  So what is
        noted there is found again, whatever has become of the bridge meanwhile.  If the members do not divide the
        events, the shards that are there now count.

        They are asked, and errors are, as by ``addresses``.
        """
        shards = await self._known_shards()
        of = shards[0].of
        if not of:
            return shards[number % len(shards)].address
        return next(shard.address for shard in shards if shard.number == number % of)

    async def is_counted(self) -> bool:
        """Return whether a member that is away would be missed: they divide the events, or there is only one.

        They are asked, and errors are, as by ``addresses``.
        """
        return all(shard.of or shard.address == self._bridge for shard in await self._known_shards())

    async def _known_shards(self) -> Sequence[RemoteShard]:
        """Return every shard, with what it held when it was asked about."""
        present = {member.node for member in self._node.members(self._bridge)}
        if self._found is None or self._found[0] != present:
            self._found = await self._all_shards()
        return self._found[1]

    @property
    def node(self) -> Node:
        """Node that sends the requests to the bridge."""
        return self._node

    @property
    def bridge(self) -> str:
        """The bridge's cluster."""
        return self._bridge

    async def shards(self, expected: Collection[int] = ()) -> list[RemoteShard]:
        """Return every shard of every member, by number.

        All those have to be there which the members that are there know, each from its log.

        Args:
            expected: numbers of shards that have to be there besides: those that a checkpoint names.

        Raises:
            BridgeUnreachable: not every member answered in time, or there is none, or none has one of the shards.
            RemoteError: two members have a shard of the same number.
        """
        return (await self._all_shards(expected))[1]

    async def _all_shards(self, expected: Collection[int] = ()) -> tuple[frozenset[NodeId], list[RemoteShard]]:
        asked, found = await self._retry(partial(self._ask_for_shards, expected))
        shards = sorted(found, key=lambda shard: shard.number)
        for one, other in itertools.pairwise(shards):
            if one.number == other.number:
                raise RemoteError(
                    "misconfigured",
                    f"two members of the bridge {self._bridge!r} both have a shard {one.number}: start them with "
                    "different shards",
                )
        return asked, shards

    async def _ask_for_shards(self, expected: Collection[int]) -> tuple[frozenset[NodeId], Sequence[RemoteShard]]:
        asked, found = await self._survey()
        for shard in found.shards:
            self._terms[shard.number] = max(shard.term, self._terms.get(shard.number, 0))
        shards = [shard for shard in found.shards if shard.term == self._terms[shard.number]]
        present = {shard.number for shard in shards}
        if former := {shard.number for shard in found.shards} - present:
            number = min(former)
            raise trio.TooSlowError(
                f"shard {number} was promoted elsewhere, to term {self._terms[number]}, and only a former primary is "
                "there"
            )
        missing = {*range(max((shard.of for shard in found.shards), default=0)), *found.known} - present
        if missing:
            raise trio.TooSlowError(_without_member(min(missing), found.known))
        if unknown := set(expected) - present:
            raise trio.TooSlowError(
                f"shard {min(unknown)}, from which this query has read, has no member: start the one that has its log, "
                "or set failOnDataLoss to false to go on without it"
            )
        return asked, shards

    async def present(self) -> MemberShards:
        """Return the shards that the present members have and know, no matter which members are missing.

        Raises:
            BridgeUnreachable: not every one of them answered in time, or there is none.
        """
        return (await self._retry(self._survey))[1]

    async def _survey(self) -> tuple[frozenset[NodeId], MemberShards]:
        shards: dict[tuple[str, str], RemoteShard] = {}
        known: dict[int, str] = {}
        async with self._node.survey(self._bridge, None, operation=ListShards.operation, timeout=2.0) as answers:
            async for answer in answers:
                found = read_reply(MemberShards, answer.payload)
                # Members without a log of their own all serve the same shards, at one address.
                shards |= {(shard.id, shard.address): shard for shard in found.shards}
                known |= found.known
        for error in answers.errors.values():
            raise error
        if answers.missing:
            raise trio.TooSlowError
        return frozenset(answers.asked), MemberShards(shards=tuple(shards.values()), known=known)

    async def wait_offsets(
        self,
        address: str,
        known: Mapping[str, int],
        timeout: float,
        wanted: TopicFilter = EVERYTHING,
        limit: int | None = None,
    ) -> dict[str, Extent]:
        """Return what a member's shards hold.

        Returns when an event is behind ``known`` that is wanted, or after ``timeout`` seconds.

        Args:
            address: address of the member.
            known: offset to which the caller has come, by shard.
            timeout: seconds, 0 for an answer at once.
            wanted: topics.
            limit: most events of each shard to count. None: only find out if there is one.

        Raises:
            NotAllowed: this node may not subscribe to one of the topics.
        """
        topics, regex = _selection(wanted)
        poll = PollOffsets(known=dict(known), timeout=timeout, limit=limit, topics=topics, regex=regex)
        found = await self.ask(address, poll, timeout=timeout + 5)
        for extent in found.values():
            if max(extent.earliest, extent.first or 0, extent.upto or 0) > extent.next:
                raise RemoteProtocolError(f"a member of the bridge answered in a form that is not understood: {extent}")
        return found

    async def gaps(
        self, address: str, shard: str, start: int, end: int, topics: Sequence[str] = ()
    ) -> AsyncGenerator[Gap]:
        """Yield the gaps that a reader of a range meets, in their order: on these topics, none being all.

        Raises:
            DataLost: the log was wiped.
            NotAllowed: this node may not subscribe to one of the topics.
        """
        skip = 0
        while True:
            asked = ListGaps(shard=shard, start=start, end=end, topics=tuple(topics), skip=skip)
            found = await self.ask(address, asked)
            for gap in found:
                yield gap
            if len(found) < GAPS_AT_ONCE:
                return
            skip += len(found)

    async def damage(
        self, address: str, shard: str, start: int, end: int, wanted: TopicFilter = EVERYTHING
    ) -> tuple[int, Sequence[Damage]]:
        """Return how many wanted events of a range are known to be damaged, and the first stretches of them.

        Raises:
            DataLost: the log was wiped.
            NotAllowed: this node may not subscribe to one of the topics.
        """
        topics, regex = _selection(wanted)
        found = await self.ask(address, CountDamage(shard=shard, start=start, end=end, topics=topics, regex=regex))
        number = number_of(shard)
        return found.count, [
            Damage(shard=number, offset=offset, end=end, reason=reason) for offset, end, reason in found.places
        ]

    async def offsets_at(self, addresses: Sequence[str], timestamp: int) -> dict[str, int]:
        """Return, by shard, the first offset that is not older than ``timestamp``, in microseconds since 1970."""
        timestamp = max(0, timestamp)  # no log holds what is older
        found: dict[str, int] = {}
        for address in addresses:
            found |= await self.ask(address, FindTimes(timestamp=timestamp))
        return found

    async def locate(
        self, address: str, shard: str, start: int, end: int, wanted: TopicFilter = EVERYTHING
    ) -> FileRange | None:
        """Return the file in which the wanted events of a range begin, if the member is on this machine.

        Raises:
            DataLost, LogDamaged, BridgeUnreachable: see ``read``.
        """
        here = machine()
        if here is None:
            return None
        topics, regex = _selection(wanted)
        return await self.ask(
            address, Locate(shard=shard, start=start, end=end, machine=here, topics=topics, regex=regex)
        )

    async def pin(self, address: str, group: str, start: Mapping[str, int]) -> dict[str, int]:
        """Return where a group began on a member: at ``start``, if it is new there."""
        return (await self.ask(address, Pin(group=group, start=dict(start)))).start

    async def move(self, address: str, group: str, offsets: Mapping[str, int]) -> None:
        """Record a group's progress."""
        await self.ask(address, Move(group=group, offsets=dict(offsets)))

    async def stage(self, address: str, part: StagedPart, file: IO[bytes]) -> None:
        """Send what a task of Spark has written; it is on the member's disk when this returns.

        Args:
            address: address of the member.
            part: identity of the part.
            file: an Arrow IPC stream; read from its beginning, again after a loss of the member.
        """

        async def send() -> None:
            file.seek(0)
            async with self._node.open_tunnel(address, operation=StagePart.operation) as tunnel:
                await tunnel._send_message(part)
                answer: object = None
                with one_error():
                    async with trio.open_nursery() as nursery:

                        async def receive() -> None:
                            # A member that refuses the part takes no more of it: sending would wait for ever.
                            nonlocal answer
                            with suppress(trio.EndOfChannel):
                                answer = await tunnel.receive()
                            nursery.cancel_scope.cancel()

                        nursery.start_soon(receive)
                        while piece := file.read(_PIECE):
                            await tunnel.send(piece)
                        await tunnel.send_eof()
                if answer != file.tell():
                    raise read_refusal(answer) or _no_answer(answer)

        await self._retry(send)

    async def commit(
        self,
        address: str,
        query: str,
        batch: int,
        parts: Sequence[StagedPart],
        carried: Mapping[StagedPart, bytes] | None = None,
        after: int | None = None,
    ) -> int | None:
        """Let parts become part of the log; None if the batch is part of it already.

        Args:
            address: address of the member.
            query: the batch's query.
            batch: number of the batch.
            parts: all of them.
            carried: of those that are not staged, the Arrow IPC streams: 512 KiB in all.
            after: the batch that has to be the last one of the query, 0 standing for none too. None: any earlier one.

        Raises:
            StaleBatch: another batch is the last one.
        """
        rows = carried or {}
        listed = tuple(
            ListedPart(partition=part.partition, attempt=part.attempt, rows=rows.get(part)) for part in parts
        )
        return await self.ask(address, Commit(query=query, batch=batch, parts=listed, after=after), timeout=_COMMIT)

    async def last_batch(self, address: str, query: str) -> int | None:
        """Return the last batch of a query that is part of a member's log; None if there is none."""
        return await self.ask(address, LastBatch(query=query))

    async def abort(self, address: str, query: str, batch: int) -> None:
        """Discard the staged parts of a batch."""
        await self.ask(address, Abort(query=query, batch=batch))

    async def publish(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Publish rows of SINK_SCHEMA, each confirmed by every durable subscriber.

        Raises:
            ConfigError: a key or a header is not UTF-8, as those of events are; nothing was published.
        """
        rows = list(rows)
        check_texts(rows)
        room = trio.Semaphore(_UNCONFIRMED)

        async def one(topic: str, value: object, key: str | None, headers: Mapping[str, str]) -> None:
            try:
                await self._retry(
                    partial(
                        self._node.publish_confirmed,
                        topic,
                        value,
                        key=key,
                        headers=headers or None,
                        timeout=self._patience,
                    )
                )
            finally:
                room.release()

        with one_error():
            async with trio.open_nursery() as nursery:
                for row in rows:
                    await room.acquire()
                    texts = key_text(row["key"]), header_texts(row["headers"])
                    payload = payload_of(row["value"], encoding_of(row["headers"]))
                    nursery.start_soon(one, row["topic"], payload, *texts)

    async def ask(self, address: str, request: Ask[R], *, timeout: float = 5.0) -> R:
        """Ask one member anything; see ``iris.spark_bridge.protocol``."""
        fields, operation = as_fields(request), request.operation

        async def ask() -> object:
            return await self._node.request(address, fields, operation=operation, timeout=timeout, options=REPEATED)

        return read_answer(request, await self._retry(ask))

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry until it works, or the time for a bridge that is down is over."""
        deadline = trio.current_time() + self._patience
        while True:
            try:
                return await attempt()
            except RemoteError as error:
                translated = error_of(error.code, error.message)
                if not isinstance(translated, _LATER) or trio.current_time() + _PAUSE > deadline:
                    raise translated from None
            except NotAllowed:
                raise
            except _TRANSIENT as error:
                if trio.current_time() + _PAUSE > deadline:
                    raise self._unreachable(error) from None
            await trio.sleep(_PAUSE)

    def _unreachable(self, error: BaseException) -> BridgeUnreachable:
        if isinstance(error, NoSuchCluster):
            reason = promotion_advice(self._node, self._bridge) or (
                f"is 'iris bridge --name {self._bridge}' running in this realm?"
            )
            reason = f"no node serves it; {reason}"
        else:
            reason = str(error) or "not every member answered"
        return BridgeUnreachable(f"bridge {self._bridge!r} cannot be reached after {self._patience:g} s: {reason}")

    async def read(
        self,
        address: str,
        shard: str,
        start: int,
        end: int,
        wanted: TopicFilter = EVERYTHING,
        *,
        pass_damage: bool = False,
    ) -> AsyncGenerator[list[Chunk]]:
        """Yield the chunks that hold a range, verified and in order, as they arrive.

        When a member is lost in between, reading goes on where it was as soon as it is back.

        Args:
            address: address of the member.
            shard: id of the shard.
            start: offset of the first event.
            end: the offset behind the last one.
            wanted: topics.  Events of others may be left out, and are if this node may not subscribe to all topics;
                what it may have then is what it names here.
            pass_damage: whether chunks without events stand for what is damaged; the member notes what it was.

        Raises:
            NotAllowed: this node may not have the events of one of the topics.
            DataLost: part of the range was trimmed, or the log was wiped.
            LogDamaged: what is stored is not what was written.
            BridgeUnreachable: the member was away for as long as the patience lasts.  One that lives is waited for,
                however slow its disk or the store of its tier is.
        """
        at = start
        deadline = trio.current_time() + self._patience
        while at < end:
            try:
                async with aclosing(self._read_once(address, shard, at, end, wanted, pass_damage)) as batches:
                    async for chunks in batches:
                        for chunk in chunks:
                            check_chunk(chunk, shard, at)
                            # Only behind a chunk that was verified: if the member is lost, reading goes on from here,
                            # without a gap or a row twice.
                            at = chunk.end
                        yield chunks
                        deadline = trio.current_time() + self._patience
                if at < end:
                    raise TunnelBroken(f"the bridge ended shard {shard} at offset {at}, short of {end}")
            except NotAllowed:
                raise
            except RemoteError as error:
                translated = error_of(error.code, error.message)
                if not isinstance(translated, _LATER) or trio.current_time() + _PAUSE > deadline:
                    raise translated from None
                await trio.sleep(_PAUSE)
            except _TRANSIENT as error:
                if trio.current_time() + _PAUSE > deadline:
                    raise self._unreachable(error) from None
                await trio.sleep(_PAUSE)

    async def _read_once(
        self, address: str, shard: str, start: int, end: int, wanted: TopicFilter, pass_damage: bool
    ) -> AsyncGenerator[list[Chunk]]:
        async with self._node.open_tunnel(address, operation=ReadLog.operation) as tunnel:
            topics, regex = _selection(wanted)
            asked = ReadLog(shard=shard, start=start, end=end, pass_damage=pass_damage, topics=topics, regex=regex)
            await tunnel._send_message(asked)
            frames = FrameBuffer()
            async for payload in tunnel:
                if isinstance(payload, bytes):
                    chunks = frames.feed(payload)
                    if chunks:
                        yield chunks
                else:
                    raise read_refusal(payload) or _no_answer(payload)


def _selection(wanted: TopicFilter) -> tuple[tuple[str, ...], str | None]:
    """Return the patterns and the expression to send: all topics if a bridge does not match the expression."""
    return tuple(wanted.patterns), wanted.regex if wanted.is_linear else None


def _no_answer(message: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"a member of the bridge sent a {type(message).__name__} where its answer was due")


def check_chunk(chunk: Chunk, shard: str, offset: int) -> None:
    """Raise LogDamaged unless a chunk is of the requested shard and holds the offset."""
    if f"{chunk.shard}@{chunk.epoch}" != shard or not chunk.first <= offset < chunk.end:
        raise LogDamaged(
            f"offset {offset} of shard {shard} was asked for, and {chunk.first} to {chunk.end} of "
            f"{chunk.shard}@{chunk.epoch} came"
        )


@final
class FrameBuffer:
    """Puts frames together from a stream of bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._needed = HEADER_SIZE

    def feed(self, data: bytes) -> list[Chunk]:
        """Take the next bytes; return the chunks that are whole now, or raise LogDamaged for a frame not as written."""
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return []
        stream = b"".join(self._parts) if len(self._parts) > 1 else data
        position = 0
        while len(stream) - position >= HEADER_SIZE:
            size = frame_size(stream, position)
            if len(stream) - position < size:
                break
            position += size
        rest = stream[position:] if position else stream
        self._parts, self._size = [rest], len(rest)
        self._needed = frame_size(rest) if len(rest) >= HEADER_SIZE else HEADER_SIZE
        return list(decode_frames(memoryview(stream)[:position]))


@contextmanager
def one_error() -> Generator[None]:
    """Let errors of Iris out of a group of exceptions, the first of them alone."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = group.subgroup(IrisError)
        if found is None:
            raise
        error: BaseException = found
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _without_member(number: int, known: Mapping[int, str]) -> str:
    if number in known:
        return (
            f"shard {number} has no member, and was at {known[number]!r} last: start the one that has its log; if that "
            f"is gone for good, 'iris bridge drop --shard {number}' forgets it"
        )
    return f"shard {number} has no member: start the one that has its log"


def error_of(code: str, message: str) -> IrisError:
    """Return the error that a member has answered with: of the class that its code names, if there is one."""
    error = _ERRORS.get(code)
    return RemoteError(code, message) if error is None else error(message)
