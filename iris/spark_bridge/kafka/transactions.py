"""Transactions: a shard's events go into Kafka together with the place up to which they are there.

As Kafka Connect does it since KIP-618: ``init_transactions`` ends what an earlier writer of this name has begun, and
from there on that one can write nothing more; only then is the place read, from a compacted topic.  It is read up to a
mark that the new writer puts behind it: the end of the topic, by a broker that does not know yet that it leads no more,
may be before the place, and events would be written again.

A writer whose transaction failed goes on only if the last mark is its own: one that stood still must not end the one
that was started in its place.

Everything here blocks, and is called in threads.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import BridgeUnreachable, KafkaLost
from iris.spark_bridge.kafka.log import KafkaLog, TopicState
from iris.spark_bridge.kafka.records import FRAMING, Copied

if TYPE_CHECKING:
    from confluent_kafka import Message

_log: Final = logging.getLogger("iris")

PLACES: Final = "iris-connect"
"""Topic of Kafka that has the place of each connector and shard."""

_TRANSACTION: Final = 30.0
"""Seconds after which brokers give up a transaction of a writer from which they hear nothing."""

_PATIENCE: Final = 90.0
"""Seconds to wait for brokers, and for transactions that died on the way: more than those may last."""

_STEP: Final = 1.0
"""Seconds after which a wait looks whether it is to end."""

_REFUSALS: Final = frozenset(
    {
        *(KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_CONFIG),
        *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        *(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.INVALID_TIMESTAMP),
        *(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION),
    }
)
"""Errors that trying again does not change."""


@final
class Places:
    """The topic of places.

    Args:
        log: the topic, which need not be there.
        state: the topic of the events: this one has as many copies.
        over: is set when waiting is to end.

    Raises:
        ConfigError: the topic forgets places, or this client may not make it.
        BridgeUnreachable: no broker answers.
    """

    def __init__(self, log: KafkaLog, state: TopicState, over: threading.Event) -> None:
        self._over = over
        self._log = log
        config = {"cleanup.policy": "compact", "min.insync.replicas": str(state.min_insync)}
        cleanup = log.make(state.replicas, config).cleanup
        if cleanup != "compact":
            raise ConfigError(
                f"Kafka's topic {log.topic!r} has cleanup.policy={cleanup} and forgets places, so that events would be "
                f"written again: set it by 'kafka-configs.sh {log.server} --alter --entity-type topics "
                f"--entity-name {log.topic} --add-config cleanup.policy=compact'"
            )

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._log.topic

    def read(self, name: str, mark: bytes) -> int | None:
        """Return the place that was written last under a name before a mark; None if there is none.

        Raises:
            BridgeUnreachable: the brokers do not answer, or a transaction of others does not end.
        """
        key, found = name.encode(), None
        with closing(self._records()) as records:
            for record in records:
                if record is not None and record.value() == mark:
                    break
                if record is not None and record.key() == key:
                    found = int(record.value() or b"0")
        return found

    def last(self, key: str) -> bytes | None:
        """Return the value that was written last under a key, committed or not; None if there is none.

        Raises:
            BridgeUnreachable: the brokers do not answer.
        """
        found: bytes | None = None
        wanted = key.encode()
        # The end as it is now: while others write, a reader that waits for the end may never come there.
        end = self._log.written(0)
        # Uncommitted too: transactions of other shards that are open would hide what is committed behind them.
        with closing(self._records(**{"isolation.level": "read_uncommitted"})) as records:
            for record in records:
                if record is not None and record.key() == wanted:
                    found = record.value()
                if record is None or (record.offset() or 0) + 1 >= end:
                    break
        return found

    def _records(self, **settings: str) -> Generator[Message | None]:
        """Yield what stands in the topic, from its beginning, and None at its end; never return."""
        silent = BridgeUnreachable(f"Kafka does not send its topic {self.topic!r} to its end")
        consumer = self._log.consumer(**settings)
        deadline = time.monotonic() + _PATIENCE
        try:
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            while True:
                message = consumer.poll(_STEP)
                error = None if message is None else message.error()
                if message is not None and error is None:
                    yield message
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    yield None
                elif time.monotonic() > deadline:
                    raise silent
                if self._over.is_set():
                    raise silent
        finally:
            consumer.close()


@final
class ShardWriter:
    """Writes the events of one shard, each once.

    Args:
        log: topic of the events.
        state: what it is now.
        places: where the place is kept.
        name: transactional id, and key of the place; that of the mark has ``/mark`` behind it.
        over: is set when waiting is to end.
    """

    def __init__(self, log: KafkaLog, state: TopicState, places: Places, name: str, over: threading.Event) -> None:
        self._log = log
        self._state = state
        self._places = places
        self._name = name
        self._over = over
        self._producer: Producer | None = None
        self._marks: set[bytes | None] = set()
        """Values under which this writer may find its mark: its own ones, and the one before them."""
        self._begun = 0.0
        """Time at which the last transaction began, on a clock that goes on while the machine sleeps."""
        self._failed: KafkaError | None = None
        """Error of a record of the transaction that failed."""

    def open(self) -> int | None:
        """End what was begun under this name, keep others from going on with it, and return the place, if it has one.

        Raises:
            BridgeUnreachable: the brokers do not answer.
            ConfigError: they refuse the mark.
            KafkaLost: another connector of this name has begun meanwhile, or since this writer was opened before.
        """
        self.close()
        last = self._places.last(f"{self._name}/mark")
        if self._marks and last not in self._marks:
            raise self._other_connector()
        self._marks.add(last)
        seconds = {"transaction.timeout.ms": int(_TRANSACTION * 1000), "message.timeout.ms": int(_TRANSACTION * 1000)}
        producer = self._log.producer(self._state, **{"transactional.id": self._name}, **seconds)
        self._producer = producer
        mark = uuid.uuid4().hex.encode()
        self._marks.add(mark)
        try:
            self._repeat(partial(producer.init_transactions, _STEP))
            # Not before: until here a writer that was presumed dead could commit, and move the place.
            self._commit(producer, (), f"{self._name}/mark", mark)
        except KafkaException as error:
            raise self._translated(error) from None
        return self._places.read(self._name, mark)

    def write(self, records: Sequence[Copied], place: int) -> bool:
        """Write records and the place behind them; False if nobody knows whether they are there: ``open`` tells.

        Raises:
            ConfigError: the topic does not take one of them.
            KafkaLost: another connector of this name is at work.
        """
        producer = self._producer
        assert producer is not None
        limit = self._state.max_record - FRAMING
        for record in records:
            if record.written.size > limit:
                raise ConfigError(
                    f"the event at offset {record.offset} of {self._name} has {record.written.size} bytes with its "
                    f"headers, and Kafka's topic {self._log.topic!r} takes {limit}: raise its max.message.bytes"
                )
        try:
            self._commit(producer, records, self._name, b"%d" % place)
        except KafkaException as error:
            found = self._translated(error)
            if isinstance(found, ConfigError | KafkaLost):
                raise found from None
            _log.warning(
                "a transaction of %s failed and is repeated: %s",
                self._name,
                found,
                extra={"shard": self._name, "reason": type(found).__name__},
            )
            return False
        except BridgeUnreachable as error:
            _log.warning(
                "a transaction of %s failed and is repeated: %s",
                self._name,
                error,
                extra={"shard": self._name, "reason": type(error).__name__},
            )
            return False
        return True

    def _commit(self, producer: Producer, records: Sequence[Copied], key: str, value: bytes) -> None:
        """Write records, and this in the topic of places, in a transaction."""
        self._failed = None
        self._begun = _now()
        producer.begin_transaction()
        for record in records:
            producer.produce(
                self._log.topic,
                record.written.value,
                record.key,
                on_delivery=self._note_report,
                timestamp=record.timestamp,
                headers=record.written.headers,  # type: ignore[arg-type]
            )
        producer.produce(self._places.topic, value, key.encode(), 0, on_delivery=self._note_report)
        self._repeat(partial(producer.commit_transaction, _STEP))

    def close(self) -> None:
        """Leave what was begun to the next one that opens, and to the brokers, which give it up."""
        if self._producer is not None:
            self._producer.purge(blocking=False)
            self._producer = None

    def _repeat(self, call: partial[None]) -> None:
        """Repeat a call of the client for as long as it says that this may help."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                if time.monotonic() > deadline or self._over.is_set():
                    raise BridgeUnreachable(f"Kafka does not answer: {error.args[0].str()}") from None
            else:
                return

    def _note_report(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and (self._failed is None or error.code() in _REFUSALS):
            self._failed = error

    def _other_connector(self) -> KafkaLost:
        return KafkaLost(
            f"another connector writes {self._name} now: nothing is lost or written twice; have one of each --group"
        )

    def _translated(self, error: KafkaException) -> Exception:
        reason: KafkaError = error.args[0]
        if reason.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            if _now() >= self._begun + _TRANSACTION:  # the brokers gave it up, and ``open`` tells where it goes on
                return BridgeUnreachable(f"a transaction stood still for {_TRANSACTION:g} s or more")
            return self._other_connector()
        for refused in (self._failed, reason):
            if refused is not None and refused.code() in _REFUSALS:
                return ConfigError(
                    f"Kafka refuses what is written to {self._log.topic!r}: {refused.str()}; see "
                    "the settings of the topic, and what its ACLs permit this client"
                )
        return BridgeUnreachable(f"Kafka has not written it: {(self._failed or reason).str()}")


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
