"""Member of a bridge on Kafka: produces the events of its subscriptions, then acknowledges them to their publishers.

Path of an event: subscription (``_receive``) -> the client's queue (``_produce``) -> brokers -> delivery report, in the
thread that polls the client (``_Delivery``) -> confirmation (``_settle``).  What is between the first and the last step
is counted in bytes.  When that is as much as it may be, subscriptions fill up and publishers are asked to pause.

Order: the client writes what it was given in its order for each partition, or not at all, and events of one key go to
one partition.  A member that is lost leaves its unconfirmed events to another one, to which publishers send them in
their order.  So the first of each event and its repeats stand in order.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, final

import trio
from confluent_kafka import KafkaError, KafkaException

from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup, open_background, run_in_thread
from iris.patterns.pubsub.subscribe import EventRun, Subscription
from iris.spark_bridge.errors import BridgeUnreachable, KafkaLost
from iris.spark_bridge.kafka.log import KafkaLog, TopicState
from iris.spark_bridge.kafka.records import FRAMING, RECORD_OVERHEAD, Written, write_records

if TYPE_CHECKING:
    from confluent_kafka import Message

_log: Final = logging.getLogger("iris")

_TAKEN_AT_ONCE: Final = 1024
_IN_FLIGHT: Final = 32 * MIB
"""Bytes that have been received and not confirmed, at most; one call of a subscription may exceed that."""

_AT_ONCE: Final = 128
"""Records given to the client between two checkpoints: 0.5 ms."""

_POLL: Final = 0.5
"""Seconds after which the thread that polls the client looks whether it is to end."""

_EXPLAINED: Final = 0.5
"""Seconds after which publishers get a report that their events wait for Kafka."""

_GOODBYE: Final = 5.0
"""Seconds that brokers have for what was received, when the member leaves."""

_LOOK: Final = 30.0
"""Seconds between two looks whether the topic still promises what was asked for."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStatistics:
    """Counters of a member of a bridge on Kafka, in events unless said.

    received = stored + refused + waiting.
    """

    received: int
    stored: int
    """Events that the brokers have confirmed."""
    refused: int
    """Events that the topic does not take, for their size or lack of a key, or that the brokers refused."""
    waiting: int
    waiting_bytes: int
    """Bytes received and not confirmed, with what the client needs for them."""


@final
class _Delivery:
    """A run on its way.

    Attributes:
        size: bytes that it is counted with.
        left: records of which no report has come; only the thread that polls the client changes it.
        refused: places of the events in the run that were refused.
    """

    __slots__ = ("explained", "left", "reason", "refused", "run", "since", "size", "subscription")

    def __init__(self, run: EventRun, subscription: Subscription, since: float) -> None:
        self.run = run
        self.subscription = subscription
        self.since = since
        self.size = self.left = 0
        self.refused: list[int] = []
        self.reason = ""
        self.explained = False


@final
class KafkaMember:
    """One member.  ``run`` writes what arrives.

    Args:
        log: the topic.
        state: what it is now.
        min_insync: replicas that have to have what is confirmed.
    """

    def __init__(self, log: KafkaLog, state: TopicState, *, min_insync: int) -> None:
        self.log: Final = log
        self._state = state
        self._min_insync = min_insync
        self._received = self._stored = self._refused = self._waiting = self._bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._settled: deque[_Delivery] = deque()
        self._on_its_way: dict[_Delivery, None] = {}
        """Runs that were given to the client, the first one first."""
        self._news = Wakeup()
        self._trouble = ""
        """Last error that the client has reported since brokers have confirmed anything."""
        self._fatal: KafkaError | None = None
        self._producer = log.producer(state, error_cb=self._note_error)
        self._is_over = threading.Event()

    def __repr__(self) -> str:
        return f"<KafkaMember {self.log!r}, {self._stored} events stored>"

    def statistics(self) -> KafkaStatistics:
        """Return a snapshot of the counters."""
        return KafkaStatistics(
            received=self._received,
            stored=self._stored,
            refused=self._refused,
            waiting=self._waiting,
            waiting_bytes=self._bytes,
        )

    async def report(self) -> KafkaStatistics:
        """Return the counters, for operators."""
        return self.statistics()

    # -- writing --------------------------------------------------------------------------------------------

    async def run(self, subscriptions: Sequence[Subscription]) -> None:
        """Write what the subscriptions receive, until it is cancelled.  What has been received by then is written.

        Raises:
            KafkaLost: the client cannot go on.
            ConfigError: the topic does not promise any more what was asked for.
        """
        token = trio.lowlevel.current_trio_token()

        def poll() -> None:
            while not self._is_over.is_set():
                has_news = False
                try:
                    has_news = self._producer.poll(_POLL) > 0
                except KafkaException as error:  # so come fatal errors, in the place of a report
                    self._fatal = error.args[0]
                if has_news or self._fatal is not None:
                    token.run_sync_soon(self._news.wake, idempotent=True)

        thread = threading.Thread(target=poll, name="iris-kafka", daemon=True)
        thread.start()
        try:
            async with open_background() as nursery:
                nursery.start_soon(self._settle_reported)
                nursery.start_soon(self._explain)
                nursery.start_soon(self._watch)
                for subscription in subscriptions:
                    nursery.start_soon(self._receive, subscription)
                await trio.sleep_forever()
        finally:
            with trio.move_on_after(_GOODBYE, shield=True):
                while self._on_its_way and self._fatal is None:
                    await self._settle()
                    if self._on_its_way:
                        await self._news.wait()
            self._is_over.set()
            self._producer.purge(blocking=False)
            with trio.CancelScope(shield=True):
                await run_in_thread(thread.join, else_here=True)

    async def _receive(self, subscription: Subscription) -> None:
        while True:
            runs = await subscription._receive_runs(_TAKEN_AT_ONCE)
            # From here the events are nowhere else: those without confirmation are never sent again.
            with trio.CancelScope(shield=True):
                for run in runs:
                    await self._produce(run, subscription)
            while self._bytes >= _IN_FLIGHT:
                await self._room.park()

    async def _produce(self, run: EventRun, subscription: Subscription) -> None:
        delivery = _Delivery(run, subscription, trio.current_time())
        count = len(run.payloads)
        self._received += count
        self._waiting += count
        self._on_its_way[delivery] = None
        key = None if run.key is None else run.key.encode()
        # What the topic does not take: in one batch with others the brokers would refuse all of it.
        limit = self._state.max_record - FRAMING
        lacks_key = key is None and self._state.is_compacted
        records: list[tuple[int, Written]] = []
        for place, written in enumerate(write_records(run, key)):
            if lacks_key:
                delivery.refused.append(place)
                delivery.reason = "it has no key, and Kafka's topic keeps the last value of each key"
            elif written.size <= limit:
                records.append((place, written))
                delivery.size += written.size + RECORD_OVERHEAD
            else:
                delivery.refused.append(place)
                delivery.reason = f"it has {written.size} bytes with its headers, and Kafka's topic takes {limit}"
        self._bytes += delivery.size
        delivery.left = len(records)
        if not records:
            self._settled.append(delivery)
            self._news.wake()
        for number, (place, written) in enumerate(records, 1):
            try:
                self._producer.produce(
                    self.log.topic,
                    written.value,
                    key,
                    on_delivery=partial(self._note_report, delivery, place),
                    headers=written.headers,  # type: ignore[arg-type]
                )
            except (BufferError, KafkaException) as error:
                raise KafkaLost(f"Kafka's client takes nothing more: {error}") from None
            if not number % _AT_ONCE:
                await trio.lowlevel.checkpoint()

    def _note_report(self, delivery: _Delivery, place: int, error: KafkaError | None, _message: Message) -> None:
        """Note what has become of a record, in the thread that polls."""
        if error is not None:
            delivery.refused.append(place)
            delivery.reason = error.str()
        delivery.left -= 1
        if not delivery.left:
            self._settled.append(delivery)

    # -- confirming -----------------------------------------------------------------------------------------

    async def _settle_reported(self) -> None:
        while True:
            await self._news.wait()
            if self._fatal is not None:
                raise KafkaLost(f"Kafka's client cannot go on: {self._fatal.str()}")
            await self._settle()

    async def _settle(self) -> None:
        """Confirm what the brokers have, by what the client has reported."""
        confirmed: dict[Subscription, dict[NodeId, list[tuple[int, int]]]] = {}
        while self._settled:
            delivery = self._settled.popleft()
            run, refused = delivery.run, delivery.refused
            count = len(run.payloads)
            del self._on_its_way[delivery]
            self._bytes -= delivery.size
            self._waiting -= count
            self._stored += count - len(refused)
            self._refused += len(refused)
            if len(refused) < count:
                self._trouble = ""
            if refused:
                self._note_refused(delivery)
            if run.confirm:
                # From here the replicas have the events, and they may be acknowledged.  Not a line earlier: a publisher
                # forgets an event when it is acknowledged.
                ranges = confirmed.setdefault(delivery.subscription, {}).setdefault(run.publisher, [])
                ranges += (
                    _without(run.confirm, count, refused) if refused else ((run.confirm, run.confirm + count - 1),)
                )
        if self._bytes < _IN_FLIGHT:
            self._room.unpark_all()
        for subscription, ranges_of in confirmed.items():
            with trio.CancelScope(shield=True):
                await subscription._confirm_ranges({node: _merged(ranges) for node, ranges in ranges_of.items()})

    def _note_refused(self, delivery: _Delivery) -> None:
        run = delivery.run
        _log.error(
            "%d events of %s on %s are not stored: %s",
            len(delivery.refused),
            run.sender.cluster,
            run.topic,
            delivery.reason,
            extra={"cluster": run.sender.cluster, "topic": run.topic, "count": len(delivery.refused)},
        )
        if run.confirm:
            delivery.subscription._explain_delay({run.publisher}, delivery.reason[:256])

    def _note_error(self, error: KafkaError) -> None:
        """Note what the client reports, in the thread that polls."""
        self._trouble = error.str()
        if error.fatal():
            self._fatal = error

    async def _explain(self) -> None:
        """Report to publishers why their events are not confirmed."""
        while True:
            await trio.sleep(_EXPLAINED)
            before = trio.current_time() - _EXPLAINED
            for delivery in self._on_its_way:
                if delivery.since > before:
                    break
                if not delivery.explained and delivery.run.confirm:
                    delivery.explained = True
                    reason = f"Kafka has not confirmed it{f': {self._trouble}' if self._trouble else ''}"
                    delivery.subscription._explain_delay({delivery.run.publisher}, _one_line(reason))

    async def _watch(self) -> None:
        """End the member when the topic no longer promises what was asked for."""
        while True:
            await trio.sleep(_LOOK)
            try:
                check_promises(self.log, await run_in_thread(self.log.describe), self._min_insync)
            except BridgeUnreachable:
                continue  # nothing is confirmed meanwhile


def check_promises(log: KafkaLog, state: TopicState, min_insync: int) -> None:
    """Raise ConfigError if a topic promises less than was asked for."""
    change = f"kafka-configs.sh {log.server} --alter --entity-type topics --entity-name {log.topic} --add-config"
    if state.replicas < min_insync:
        raise ConfigError(
            f"Kafka's topic {log.topic!r} has {state.replicas} replicas, and {min_insync} are to have what is "
            f"confirmed: give it more replicas, or give --min-insync {state.replicas}"
        )
    if state.min_insync < min_insync:
        raise ConfigError(
            f"Kafka's topic {log.topic!r} confirms what {state.min_insync} of its replicas have (min.insync.replicas), "
            f"and less than {min_insync} is refused: set it by '{change} min.insync.replicas={min_insync}', or give "
            f"--min-insync {state.min_insync}"
        )
    if state.unclean and min_insync > 1:
        raise ConfigError(
            f"Kafka's topic {log.topic!r} may elect a leader that lacks records, and lose what was confirmed: set that "
            f"by '{change} unclean.leader.election.enable=false', or give --min-insync 1"
        )


def _without(first: int, count: int, refused: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of a run's numbers, but for some places of it."""
    places = (-1, *sorted(refused), count)
    return [(first + left + 1, first + right - 1) for left, right in pairwise(places) if right - left > 1]


def _merged(ranges: list[tuple[int, int]]) -> list[int]:
    """Return ranges as they are confirmed, in order: those of several partitions interlock."""
    ranges.sort()
    merged: list[int] = []
    for first, last in ranges:
        if merged and merged[-1] == first - 1:
            merged[-1] = last
        else:
            merged += (first, last)
    return merged


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)[:256]
