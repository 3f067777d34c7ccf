"""Connector from a topic of Kafka into an embedded log: each record becomes an event once.

A record is known by its topic's UUID, its partition and its offset.  Each partition of a topic is a query of its own to
the bridge, as one of Spark's, and the number of a batch is the offset behind its last record.  The bridge stores a
batch and that number in one transaction, and only if the number before it is the one that the connector went on from.
So a repeat changes nothing, and of connectors that run twice by mistake the one that is behind looks again.  A topic
that was made again has another UUID, and so queries that begin at 0.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final, final

import pyarrow as pa
import trio
from confluent_kafka import KafkaError, TopicPartition

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError
from iris.kernel.tasks import run_in_thread
from iris.patterns.pubsub.interest import check_topic
from iris.spark_bridge.client import BridgeClient, one_error
from iris.spark_bridge.errors import BridgeUnreachable, DataLost, KafkaLost, NotCopied, StaleBatch, StoreFull
from iris.spark_bridge.events.schema import SINK_SCHEMA, check_rows
from iris.spark_bridge.kafka.log import KafkaLog
from iris.spark_bridge.kafka.records import Record, as_batch, read_record
from iris.spark_bridge.staging import new_part, write_rows

_log: Final = logging.getLogger("iris")

_BATCH_BYTES: Final = 384 * KIB
"""Records of one partition in a batch, in bytes about; a last one may exceed that."""

_CARRIED: Final = 512 * KIB
"""Largest batch that goes with its commit; a larger one is staged."""

_POLL: Final = 0.5
"""Seconds that a look for records takes at most."""

_GATHER: Final = 0.02
"""Seconds that more records are waited for behind a first one."""

_ROUND: Final = 8192
"""Records of one round, at most."""

_LOOK: Final = 5.0
"""Seconds between two looks whether the topic is still the same, where no records come."""

_STALE: Final = 10.0
"""Seconds for which a partition may end before what was copied of it, by a broker that does not know yet that it leads
no more."""

_AGAIN: Final = 1.0
"""Seconds after which bridge or brokers that are away are tried again."""


@final
class _Changed(Exception):
    """The topic was made again, or has more partitions."""


@final
class CopyIn:
    """Copies one topic of Kafka into the log of a bridge.

    Args:
        client: asks the bridge.
        kafka: addresses of brokers, with commas between them.
        topic: topic of Kafka.
        settings: further properties of Kafka's client.

    Raises:
        ConfigError: the topic's name is no topic of Iris.
    """

    def __init__(self, client: BridgeClient, *, kafka: str, topic: str, settings: Mapping[str, str]) -> None:
        check_topic(topic)
        self._client = client
        self._log = KafkaLog(kafka, topic, client.bridge, settings)
        self.copied = 0
        """Events that this process has copied."""

    async def run(self) -> None:
        """Copy until it is cancelled.  While the bridge or the brokers are away, or its disk is full, it waits.

        Raises:
            ConfigError: there is no such topic, a record cannot be an event, or the bridge cannot tell repeats.
            DataLost: the topic ends before what was copied of it.
            NotAllowed: this node may not publish one of the topics.
            KafkaLost: Kafka's client cannot go on.
        """
        while True:
            try:
                await self._follow()
            except _Changed:
                continue
            except (BridgeUnreachable, NotCopied, StaleBatch, StoreFull) as error:
                _log.warning(
                    "iris connect kafka waits: %s",
                    error,
                    extra={"bridge": self._client.bridge, "reason": type(error).__name__},
                )
                await trio.sleep(_AGAIN)

    async def _follow(self) -> None:
        """Copy the topic as long as it stays what it is, from where the bridge has come."""
        epoch, partitions = await run_in_thread(self._log.identity)
        if not await self._client.is_counted():
            raise ConfigError(
                f"the members of bridge {self._client.bridge!r} do not say how many they are, so an event could be in "
                "the log twice: start them with --of, or a single one without --member"
            )
        at = {number: await self._place(epoch, number) for number in range(partitions)}
        starts = dict(at)
        deadline = trio.current_time() + _STALE
        while True:
            spans = await run_in_thread(self._log.spans, range(partitions))
            if all(at[number] <= span.next for number, span in spans.items()) or trio.current_time() > deadline:
                break
            await trio.sleep(_AGAIN)
        for number, span in spans.items():
            if at[number] > span.next:
                if await run_in_thread(self._log.identity) != (epoch, partitions):
                    raise _Changed
                raise DataLost(
                    f"partition {number} of Kafka's topic {self._log.topic!r} ends at {span.next}, and the bridge has "
                    f"its records up to {at[number]}: the brokers have lost some"
                )
            if at[number] < span.earliest:
                if at[number]:
                    _log.warning(
                        "offsets %d to %d of partition %d of %s were removed by its retention before they were copied",
                        at[number],
                        span.earliest,
                        number,
                        self._log.topic,
                        extra={"bridge": self._client.bridge, "count": span.earliest - at[number]},
                    )
                starts[number] = span.earliest
        source = _Source(self._log, starts)
        try:
            looked = trio.current_time()
            while True:
                found = await run_in_thread(source.read)
                if found or trio.current_time() > looked + _LOOK:
                    # Behind the records: they are of the topic with this UUID, which nobody has after it was deleted.
                    if await run_in_thread(self._log.identity) != (epoch, partitions):
                        raise _Changed
                    looked = trio.current_time()
                with one_error():
                    async with trio.open_nursery() as nursery:
                        for number, records in found.items():
                            nursery.start_soon(self._store, epoch, number, records, at)
        finally:
            with trio.CancelScope(shield=True):
                await run_in_thread(source.close)

    async def _place(self, epoch: str, number: int) -> int:
        return await self._client.last_batch(await self._address(epoch, number), _query(epoch, number)) or 0

    async def _address(self, epoch: str, number: int) -> str:
        """Return the member that stores a partition, always the same."""
        return await self._client.home_of(int(epoch, 16) + number)

    async def _store(self, epoch: str, number: int, records: Sequence[Record], at: dict[int, int]) -> None:
        """Store records of a partition, which follow what is stored of it."""
        end = records[-1].offset + 1
        stream = await run_in_thread(_pack, records)
        query, address = _query(epoch, number), await self._address(epoch, number)
        part = new_part(query=query, batch=end, partition=0)
        carried = {part: stream}
        if len(stream) > _CARRIED:
            await self._client.stage(address, part, io.BytesIO(stream))
            carried = {}
        stored = await self._client.commit(address, query, end, [part], carried, after=at[number])
        at[number] = end
        self.copied += stored or 0


def _query(epoch: str, number: int) -> str:
    return f"kafka-{epoch}-{number}"


def _pack(records: Sequence[Record]) -> bytes:
    """Return records as a stream of rows that a member accepts; raise ConfigError for one that cannot be an event."""
    rows: pa.RecordBatch = as_batch(records).select(SINK_SCHEMA.names)
    try:
        check_rows(rows)
    except ConfigError:
        for record in records:
            try:
                check_rows(as_batch([record]).select(SINK_SCHEMA.names))
            except ConfigError as error:
                raise ConfigError(
                    f"offset {record.offset} of partition {record.partition}: {error}; use smaller records"
                ) from None
        raise
    stream = io.BytesIO()
    write_rows(stream, [rows])
    return stream.getvalue()


@final
class _Source:
    """Reads the partitions of a topic.  Calls block.

    Args:
        log: the topic.
        starts: offset of each partition to begin at.
    """

    def __init__(self, log: KafkaLog, starts: Mapping[int, int]) -> None:
        self._log = log
        self._consumer = log.consumer()
        self._consumer.assign([TopicPartition(log.topic, number, offset) for number, offset in starts.items()])

    def read(self) -> dict[int, list[Record]]:
        """Return the next records by partition, each of those in order; none if none came.

        Raises:
            BridgeUnreachable: the topic is not there, or not from where it was to be read on.
            ConfigError, KafkaLost: Kafka's client may not, or cannot, read on.
        """
        found: dict[int, list[Record]] = {}
        sizes: dict[int, int] = {}
        count, end = 0, time.monotonic() + _POLL
        while count < _ROUND and max(sizes.values(), default=0) < _BATCH_BYTES:
            message = self._consumer.poll(max(0.0, end - time.monotonic()))
            if message is None:
                break
            error = message.error()
            if error is None:
                if not count:
                    end = time.monotonic() + _GATHER
                record = read_record(message, self._log.topic)
                found.setdefault(record.partition, []).append(record)
                sizes[record.partition] = sizes.get(record.partition, 0) + record.size
                count += 1
            else:
                self._check(error)
        return found

    def _check(self, error: KafkaError) -> None:
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            raise BridgeUnreachable(f"Kafka's topic {self._log.topic!r} cannot be read on: {error.str()}")
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigError(
                f"Kafka refuses to let {self._log.topic!r} be read: {error.str()}; see what its ACLs permit this client"
            )
        if error.fatal():
            raise KafkaLost(f"Kafka's client cannot go on: {error.str()}")

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()
