"""Consumers: one member's side of ``Bridge.consume`` on Kafka, through a tunnel for each.

A consumer with a group is one of Kafka's: its brokers divide the partitions among the consumers of a group, whichever
members of the bridge these have reached, and keep the group's place.  A consumer without a group only looks.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, final

import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from iris.kernel.config import KIB, Config
from iris.kernel.errors import RemoteError, TunnelBroken
from iris.kernel.names import account_of
from iris.kernel.tasks import open_background, run_in_thread
from iris.patterns.bridge_protocol import (
    Consume,
    ConsumerReport,
    Consuming,
    LogNews,
    SentBatch,
    StartOffset,
    StartTime,
    read_request,
)
from iris.patterns.pubsub.subscribe import expires_after
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.client import number_of
from iris.spark_bridge.errors import BridgeUnreachable, QuotaExceeded
from iris.spark_bridge.kafka.log import PASSING, KafkaLog, Span, TopicState
from iris.spark_bridge.kafka.records import Record, as_sent, read_record
from iris.spark_bridge.log import TopicFilter
from iris.spark_bridge.protocol import Permit
from iris.spark_bridge.queues import LARGE, pieces_of

_AT_ONCE: Final = 1024
"""Records of one batch, before those on other topics are left out."""
_BYTES: Final = 256 * KIB
_AHEAD: Final = 8
"""Most batches that were sent and that the program has not received."""
_POLL: Final = 0.1
"""Seconds that a look for records takes at most."""
_FULL_POLL: Final = 0.02
"""The same while there is no room for them."""
LEAVING: Final = 3.0
"""Seconds that another consumer, which may be on the way, has to leave a group that is to be replayed or dropped."""
_LOOK: Final = 0.1
_IDLE: Final = 5.0
"""Seconds between two looks whether events on other topics are to be counted as read."""


@final
class KafkaConsumers:
    """The consumers of one member.

    Args:
        log: the topic.
        config: limits of the groups that a cluster may have.
        threads: those that wait for records.
    """

    def __init__(self, log: KafkaLog, config: Config, threads: trio.CapacityLimiter) -> None:
        self._log = log
        self._threads = threads
        self._config = config
        self._here: set[trio.CancelScope] = set()
        self._is_closing = False

    def close(self) -> None:
        """Let all consumers go: the member leaves, and they go on at another one."""
        self._is_closing = True
        for scope in self._here:
            scope.cancel()

    async def consume(self, tunnel: Tunnel, asked: Consume, permit: Permit) -> None:
        """Serve a consumer, which may have the events of these topics."""
        if not asked.topics:
            raise RemoteError("bad_request", "topics: use one or more topic patterns")
        if self._is_closing:
            raise BridgeUnreachable("this member of the bridge is leaving")
        with trio.CancelScope() as scope, suppress(TunnelBroken):  # it has gone
            self._here.add(scope)
            try:
                await _Reading(self._log, self._config, self._threads, asked, tunnel, permit).run()
            finally:
                self._here.remove(scope)


@final
class _Reading:
    """Stream of events to one consumer."""

    def __init__(
        self,
        log: KafkaLog,
        config: Config,
        threads: trio.CapacityLimiter,
        asked: Consume,
        tunnel: Tunnel,
        permit: Permit,
    ) -> None:
        self._log = log
        self._threads = threads
        self._config = config
        self._asked = asked
        self._owner = tunnel.sender.cluster
        self._tunnel = tunnel
        self._permit = permit
        self._filter = TopicFilter(asked.topics)
        self._state: TopicState | None = None
        self._at: dict[int, int] = {}
        """Next offset to read in each partition that this consumer has."""
        self._begin: dict[int, int] = {}
        """Offset in each partition from which this consumer begins when it gets that."""
        self._committed: dict[int, int] = {}
        self._until: dict[int, int] | None = None
        self._missed: dict[int, int] = {}
        self._batches = self._taken = 0
        self._sent: dict[int, int] = {}
        """End of the last batch of each partition."""
        self._passed = time.monotonic()
        self._is_paused = False

    # -- beginning ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until the consumer leaves."""
        state = await run_in_thread(self._prepare)
        consumer = await run_in_thread(self._open)
        try:
            at = {state.shard(partition): offset for partition, offset in self._begin.items()}
            until = self._until
            ends = None if until is None else {state.shard(partition): end for partition, end in until.items()}
            await self._tunnel._send_message(Consuming(at=at, until=ends))
            async with open_background() as nursery:
                nursery.start_soon(self._send, consumer, state)
                async for message in self._tunnel:
                    await self._receive_report(consumer, state, message)
        finally:
            with trio.CancelScope(shield=True):
                await run_in_thread(consumer.close)

    def _prepare(self) -> TopicState:
        """Find out where it begins and ends; a group that is new gets its place."""
        asked = self._asked
        state = self._state = self._log.describe()
        spans = self._log.spans(range(state.partitions))
        if asked.until == "now":
            self._until = {partition: span.next for partition, span in spans.items()}
        elif asked.until is not None:
            self._until = {number_of(shard): end for shard, end in asked.until.items()}
        since = {number_of(shard): at for shard, at in asked.at.items() if state.shard(number_of(shard)) == shard}
        if asked.group is None:
            begin = self._start(spans) if spans.keys() - since.keys() else {}
            self._begin = begin | since
        else:
            self._committed = self._find_place(asked.group, spans)
            self._begin = {
                partition: max(offset, since.get(partition, 0)) for partition, offset in self._committed.items()
            }
        return state

    def _find_place(self, group: str, spans: Mapping[int, Span]) -> dict[int, int]:
        log, owner = self._log, self._owner
        known = log.committed(owner, group, spans)
        if known.keys() >= spans.keys() and not self._asked.replay:
            return known
        if not known:
            self._check_quota(group)
        # A partition that was added is read from its beginning.
        start = self._start(spans) if self._asked.replay or not known else {one: s.earliest for one, s in spans.items()}
        place = start if self._asked.replay else start | known
        end = time.monotonic() + (LEAVING if self._asked.replay else 0.0)
        while not log.set_committed(owner, group, place):
            if not self._asked.replay:
                return place | log.committed(owner, group, spans)
            if time.monotonic() > end:
                raise RemoteError(
                    "bad_request", f"group {group!r} is not replayed: another consumer of it is there. End that first"
                )
            time.sleep(_LOOK)
        return place

    def _check_quota(self, group: str) -> None:
        owners = [account_of(owner) for owner, _ in self._log.groups()]
        account = account_of(self._owner)
        most, most_of_owner = self._config.bridge_groups, self._config.bridge_groups_per_owner
        if len(owners) >= most or owners.count(account) >= most_of_owner:
            raise QuotaExceeded(
                f"group {group!r} is new, and there are {len(owners)} of {most} groups, {owners.count(account)} of "
                f"them of cluster {account!r}, which may have {most_of_owner}: drop some by 'iris bridge drop "
                "--group NAME'"
            )

    def _start(self, spans: Mapping[int, Span]) -> dict[int, int]:
        match self._asked.start:
            case "earliest":
                return {partition: span.earliest for partition, span in spans.items()}
            case "latest":
                return {partition: span.next for partition, span in spans.items()}
            case StartTime(moment):
                return self._log.at_time(spans.keys(), max(0, moment))
            case StartOffset(offset):
                for partition, span in spans.items():
                    if not span.earliest <= offset <= span.next:
                        raise RemoteError(
                            "bad_request",
                            f"start is offset {offset}: shard {partition} holds {span.earliest} to {span.next}",
                        )
                return dict.fromkeys(spans, offset)

    def _open(self) -> Consumer:
        group = self._asked.group
        consumer = self._log.consumer(None if group is None else self._log.group_id(self._owner, group))
        if group is None:
            self._assign(consumer, [TopicPartition(self._log.topic, partition) for partition in self._begin])
        else:
            consumer.subscribe([self._log.topic], on_assign=self._assign, on_revoke=self._revoke)
        return consumer

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin with partitions; of a group, called by the client while it polls."""
        if self._asked.group is not None and partitions:
            # Another consumer has had them meanwhile.
            for place in consumer.committed(partitions, timeout=10.0):
                if place.offset >= 0:
                    self._committed[place.partition] = max(place.offset, self._committed.get(place.partition, 0))
        self._at = {
            one.partition: max(self._begin.get(one.partition, 0), self._committed.get(one.partition, 0))
            for one in partitions
        }
        consumer.assign([TopicPartition(self._log.topic, partition, at) for partition, at in self._at.items()])
        self._is_paused = False

    def _revoke(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        """Leave partitions to other consumers of the group: what was sent and not committed comes again there."""
        self._begin |= self._at
        self._at = {}
        consumer.unassign()

    # -- reading --------------------------------------------------------------------------------------------

    async def _send(self, consumer: Consumer, state: TopicState) -> None:
        with suppress(TunnelBroken):  # who receives gets it as well
            has_ended = False
            waiting: deque[tuple[int, list[Record]]] = deque()
            while True:
                records = await run_in_thread(self._poll, consumer, bool(waiting), limiter=self._threads)
                waiting += _by_partition(records)
                while waiting and not self._is_full():
                    await self._send_part(consumer, state, *waiting.popleft())
                if not waiting and not has_ended and self._has_ended():
                    has_ended = True
                    await self._tunnel._send_message(LogNews(ended=True))

    def _is_full(self) -> bool:
        return self._batches - self._taken >= _AHEAD

    def _has_ended(self) -> bool:
        until = self._until
        return until is not None and bool(self._at) and all(at >= until.get(one, 0) for one, at in self._at.items())

    def _poll(self, consumer: Consumer, is_waiting: bool) -> list[Record]:
        """Return what has come.  It asks also while there is no room: who does not is taken for dead by the brokers.

        Raises:
            BridgeUnreachable: the brokers do not answer.
            RemoteError: they refuse.
        """
        is_full = is_waiting or self._is_full()
        try:
            if is_full != self._is_paused:
                (consumer.pause if is_full else consumer.resume)(consumer.assignment())
                self._is_paused = is_full
            if not is_waiting:  # else events lie before where it is that were not sent
                self._pass_over(consumer)
            return self._receive(consumer, _FULL_POLL if is_full else _POLL)
        except KafkaException as error:
            raise BridgeUnreachable(f"Kafka does not answer: {error.args[0].str()}") from None

    def _pass_over(self, consumer: Consumer) -> None:
        """Note as read what lies behind the last event that was sent, now and then: it is on other topics."""
        now = time.monotonic()
        if self._asked.group is None or now < self._passed + _IDLE:
            return
        self._passed = now
        passed = {
            partition: at
            for partition, at in self._at.items()
            if at > self._committed.get(partition, 0) >= self._sent.get(partition, 0)
        }
        if passed:
            self._commit(consumer, passed)

    def _receive(self, consumer: Consumer, wait: float) -> list[Record]:
        found: list[Record] = []
        size = 0
        while len(found) < _AT_ONCE and size < _BYTES:
            message = consumer.poll(wait)
            if message is None:
                break
            wait = 0.0
            error = message.error()
            if error is not None:
                self._note_error(consumer, message.partition() or 0, message.offset() or 0, error)
                continue
            record = read_record(message, self._log.topic)
            at = self._at.get(record.partition)
            if at is None or record.offset < at:
                continue
            end = math.inf if self._until is None else self._until.get(record.partition, 0)
            if record.offset < end:
                self._at[record.partition] = record.offset + 1
                found.append(record)
                size += record.size
            else:  # what comes later is for the next consumer of the group
                self._at[record.partition] = max(at, int(end))
        return found

    def _note_error(self, consumer: Consumer, partition: int, offset: int, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if self._until is not None and partition in self._at:
                # Behind the last record stand marks of transactions.  A replica that is behind ends earlier.
                self._at[partition] = max(self._at[partition], min(offset, self._until.get(partition, 0)))
        elif error.code() == KafkaError._AUTO_OFFSET_RESET and partition in self._at:
            span = self._log.spans((partition,))[partition]
            self._missed[partition] = self._missed.get(partition, 0) + max(0, span.earliest - self._at[partition])
            self._at[partition] = span.earliest
            consumer.seek(TopicPartition(self._log.topic, partition, span.earliest))
        elif error.code() not in _PASSING and not error.retriable():
            raise RemoteError("refused", f"Kafka refuses that: {error.str()}")

    async def _send_part(
        self, consumer: Consumer, state: TopicState, partition: int, records: Sequence[Record]
    ) -> None:
        now = time.time()  # noqa: TID251 -- records have dates
        wanted = [record for record in records if self._filter.wants(record.topic)]
        kept = [record for record in wanted if record.timestamp / 1e6 + _expires(record) > now]
        end = records[-1].offset + 1
        if not wanted and partition not in self._missed:
            return
        self._batches += 1
        self._sent[partition] = end
        self._permit.check()
        place = TopicPartition(self._log.topic, partition)
        _, last = consumer.get_watermark_offsets(place, cached=True) or (0, 0)
        events = tuple(as_sent(record, LARGE) for record in kept)
        batch = SentBatch(
            shard=state.shard(partition),
            end=end,
            lag=max(0, last - end),
            missed=self._missed.pop(partition, 0),
            gaps=0,
            expired=len(wanted) - len(kept),
            events=events,
        )
        await self._tunnel._send_message(LogNews(batch=batch))
        for record, event in zip(kept, events, strict=True):
            if isinstance(event.value, int):
                for piece in pieces_of(record.stored()[0] or b""):
                    await self._tunnel.send(piece)

    # -- committing -----------------------------------------------------------------------------------------

    async def _receive_report(self, consumer: Consumer, state: TopicState, message: object) -> None:
        report = read_request(ConsumerReport, message)
        known = {shard: at for shard, at in report.commit.items() if state.shard(number_of(shard)) == shard}
        taken = self._taken if report.taken is None else report.taken
        is_understood = self._taken <= taken <= self._batches and (known or report.taken is not None)
        if not is_understood or (known and self._asked.group is None):
            raise RemoteError(
                "bad_request", "a consumer's message is not understood: use {commit: offsets by shard, taken: batches}"
            )
        self._taken = taken
        if not known:
            return
        self._permit.check()
        await run_in_thread(self._commit, consumer, {number_of(shard): at for shard, at in known.items()})
        await self._tunnel._send_message(LogNews(committed=known))

    def _commit(self, consumer: Consumer, wanted: Mapping[int, int]) -> None:
        """Note the group's place, which never goes back.

        Raises:
            BridgeUnreachable: the brokers do not take it now.
        """
        places = [TopicPartition(self._log.topic, partition) for partition in wanted]
        try:
            # Of a partition that another consumer has now, that one may have come further.
            there = {place.partition: place.offset for place in consumer.committed(places, timeout=10.0)}
            further = [
                TopicPartition(self._log.topic, partition, at)
                for partition, at in wanted.items()
                if at > there.get(partition, -1)
            ]
            if further:
                consumer.commit(offsets=further, asynchronous=False)
        except KafkaException as error:
            raise BridgeUnreachable(f"Kafka does not note the group's place now: {error.args[0].str()}") from None
        self._committed |= {partition: max(at, self._committed.get(partition, 0)) for partition, at in wanted.items()}


_PASSING: Final = PASSING | {KafkaError._MAX_POLL_EXCEEDED}


def _by_partition(records: Sequence[Record]) -> Iterator[tuple[int, list[Record]]]:
    parts: dict[int, list[Record]] = {}
    for record in records:
        parts.setdefault(record.partition, []).append(record)
    yield from parts.items()


def _expires(record: Record) -> float:
    headers = {name: (text or b"").decode("utf-8", "replace") for name, text in record.headers}
    return expires_after(headers) if headers else math.inf
