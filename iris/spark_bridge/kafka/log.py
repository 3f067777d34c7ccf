"""The topic of Kafka that holds a bridge's events: what it promises, its partitions, and how far groups have read.

Everything here blocks, and is called in threads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, final
from urllib.parse import quote, unquote

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import ConsumerGroupTopicPartitions as GroupOffsets
from confluent_kafka import admin as administration
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import BridgeUnreachable, DataLost
from iris.spark_bridge.kafka.records import Record, read_record
from iris.spark_bridge.kafka.settings import CLIENT, CONSUMER, PRODUCER, check_settings

_ANSWER: Final = 10.0
"""Seconds that brokers have for an answer."""

_PAUSE: Final = 0.1
"""Seconds between two questions to brokers that do not know yet."""

PASSING: Final = frozenset(
    {
        *(KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._WAIT_COORD),
        *(KafkaError._DESTROY, KafkaError._DESTROY_BROKER, KafkaError._UNKNOWN_BROKER, KafkaError._NODE_UPDATE),
        *(KafkaError._RESOLVE, KafkaError._TIMED_OUT_QUEUE, KafkaError._WAIT_CACHE, KafkaError._RETRY),
        *(KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE),
        *(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION),
        *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.OFFSET_NOT_AVAILABLE),
        *(KafkaError.NOT_CONTROLLER, KafkaError.BROKER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE),
        *(KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.KAFKA_STORAGE_ERROR),
    }
)
"""Errors that are over when brokers are back, or have agreed on leaders."""

_PREFIX: Final = "iris."
_GROUP_STATES: Final = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_MEMBER_ID})

_CLASSES: Any = administration  # which does not say that these are for others
_EARLIEST: Final[object] = _CLASSES.OffsetSpec.earliest()
_LATEST: Final[object] = _CLASSES.OffsetSpec.latest()


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic, as its brokers describe it."""

    epoch: str
    """Tells it from another topic of the same name, made after this one was deleted: 16 digits."""
    partitions: int
    replicas: int
    """Copies of the partition that has the fewest."""
    min_insync: int
    """Replicas that have to have a record before it is confirmed."""
    unclean: bool
    """True if a replica that lacks records may become the leader, and these are lost."""
    is_compacted: bool
    """True if it keeps the last record of each key, and takes none without a key."""
    max_record: int
    """Size of the largest record, in bytes."""
    cleanup: str
    """Fate of old records: ``delete``, ``compact``, or both with a comma between them."""

    def shard(self, partition: int) -> str:
        """Return the id of a partition's shard."""
        return f"{partition}@{self.epoch}"


def _has_uuid(described: Any) -> bool:
    uuid = described.topic_id
    return bool(uuid.get_most_significant_bits() or uuid.get_least_significant_bits())


def _epoch_of(described: Any) -> str:
    return hashlib.blake2b(str(described.topic_id).encode(), digest_size=8).hexdigest()


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of a partition that can be read: ``earliest`` up to but not including ``next``."""

    earliest: int
    next: int


@final
class KafkaLog:
    """A topic, through clients of one configuration.  Safe in any thread.

    Args:
        bootstrap: addresses of brokers, with commas between them.
        topic: name of the topic.
        bridge: cluster of the bridge; part of the names of its groups.
        settings: further properties of the clients.

    Raises:
        ConfigError: a property is wrong, or not the user's to set.
    """

    def __init__(self, bootstrap: str, topic: str, bridge: str, settings: Mapping[str, str]) -> None:
        check_settings(settings)
        self.topic: Final = topic
        self._bridge = bridge
        self._config: dict[str, Any] = {**CLIENT, **settings, "bootstrap.servers": bootstrap}
        try:
            self._admin: Any = AdminClient(self._config)  # much of which has no types
        except KafkaException as error:
            raise ConfigError(
                f"the settings of Kafka's client are wrong, use those of librdkafka: {error.args[0].str()}"
            ) from None

    def __repr__(self) -> str:
        return f"<KafkaLog {self.topic} at {self._config['bootstrap.servers']}>"

    # -- the topic ------------------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        """The option by which Kafka's own commands find its brokers."""
        return f"--bootstrap-server {self._config['bootstrap.servers']}"

    def describe(self) -> TopicState:
        """Ask the brokers what the topic is.

        Raises:
            ConfigError: there is no such topic, or this client may not know of it.
            BridgeUnreachable: no broker answers.
        """
        resource = _CLASSES.ConfigResource(_CLASSES.ConfigResource.Type.TOPIC, self.topic)
        found = self._described()
        configs = self._result(self._admin.describe_configs([resource], request_timeout=_ANSWER)[resource])
        return TopicState(
            epoch=_epoch_of(found),
            partitions=len(found.partitions),
            replicas=min(len(partition.replicas) for partition in found.partitions),
            min_insync=int(configs["min.insync.replicas"].value),
            unclean=configs["unclean.leader.election.enable"].value == "true",
            is_compacted="compact" in configs["cleanup.policy"].value.split(","),
            max_record=int(configs["max.message.bytes"].value),
            cleanup=configs["cleanup.policy"].value,
        )

    def identity(self) -> tuple[str, int]:
        """Return ``epoch`` and ``partitions`` alone: a quarter of ``describe``.

        Raises:
            ConfigError, BridgeUnreachable: see ``describe``.
        """
        found = self._described()
        return _epoch_of(found), len(found.partitions)

    def _described(self) -> Any:
        deadline = time.monotonic() + _ANSWER
        while True:
            described = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=_ANSWER)
            found = self._result(described[self.topic])
            # A client that has no answer yet of what a broker speaks asks as the oldest did, and gets no UUID.  As one
            # of its own that would be another topic, of which nothing was copied.
            if _has_uuid(found):
                return found
            if time.monotonic() > deadline:
                raise BridgeUnreachable(
                    f"Kafka does not say which topic {self.topic!r} is: its brokers have to be of version 2.8 or newer"
                )
            time.sleep(_PAUSE)

    def make(self, replicas: int, config: Mapping[str, str]) -> TopicState:
        """Make the topic, of one partition, unless it is there, and return what it is.

        Raises:
            ConfigError: this client may not.
            BridgeUnreachable: no broker answers.
        """
        topic = NewTopic(self.topic, 1, replicas, config=dict(config))
        try:
            self._admin.create_topics([topic], request_timeout=_ANSWER)[self.topic].result(_ANSWER + 5)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._translated(error) from None
        deadline = time.monotonic() + _ANSWER
        while True:
            try:
                return self.describe()
            except ConfigError:  # brokers learn of it one after the other
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _result(self, future: Any) -> Any:
        try:
            return future.result(_ANSWER + 5)
        except KafkaException as error:
            raise self._translated(error) from None

    def _translated(self, error: KafkaException) -> Exception:
        reason: KafkaError = error.args[0]
        if reason.code() in PASSING:
            return BridgeUnreachable(f"Kafka does not answer: {reason.str()}")
        if reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return ConfigError(
                f"Kafka has no topic {self.topic!r}: make it by 'kafka-topics.sh {self.server} --create --topic "
                f"{self.topic} --partitions 6 --replication-factor 3 --config min.insync.replicas=2', or permit this "
                "client to describe it"
            )
        return ConfigError(f"Kafka refuses that: {reason.str()}; see what its ACLs permit this client")

    def spans(self, partitions: Collection[int]) -> dict[int, Span]:
        """Return what can be read of partitions.

        Raises:
            BridgeUnreachable, ConfigError: see ``describe``.
        """
        earliest = self._offsets(dict.fromkeys(partitions, _EARLIEST))
        latest = self._offsets(dict.fromkeys(partitions, _LATEST))
        return {one: Span(earliest=earliest[one], next=max(latest[one], earliest[one])) for one in partitions}

    def at_time(self, partitions: Collection[int], microseconds: int) -> dict[int, int]:
        """Return the first offset of each partition that is not older; its end, if there is none."""
        milliseconds = -(-microseconds // 1000)
        found = self._offsets(dict.fromkeys(partitions, _CLASSES.OffsetSpec.for_timestamp(milliseconds)))
        missing = [one for one, offset in found.items() if offset < 0]
        return found | (self._offsets(dict.fromkeys(missing, _LATEST)) if missing else {})

    def written(self, partition: int) -> int:
        """Return the offset behind what is written in a partition, committed or not.

        Raises:
            BridgeUnreachable, ConfigError: see ``describe``.
        """
        return self._offsets({partition: _LATEST}, IsolationLevel.READ_UNCOMMITTED)[partition]

    def _offsets(
        self, wanted: Mapping[int, object], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[int, int]:
        asked: dict[TopicPartition, Any] = {
            TopicPartition(self.topic, partition): spec for partition, spec in wanted.items()
        }
        futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=_ANSWER)
        return {place.partition: int(self._result(future).offset) for place, future in futures.items()}

    # -- records --------------------------------------------------------------------------------------------

    def producer(self, state: TopicState, **further: object) -> Producer:
        """Return a producer whose batches the brokers take, with these callbacks and properties, too."""
        largest = {"message.max.bytes": max(1000, state.max_record), "batch.size": min(1_000_000, state.max_record)}
        return Producer({**self._config, **PRODUCER, **largest, **further})

    def consumer(self, group: str | None = None, **settings: str) -> Consumer:
        """Return a consumer; without a group it is assigned partitions, and commits nothing."""
        return Consumer({**self._config, **CONSUMER, **settings, "group.id": group or f"{_PREFIX}{self._bridge}"})

    @contextmanager
    def reading(self, partition: int, start: int) -> Iterator[RangeReader]:
        """Read one partition from an offset on in the block."""
        consumer = self.consumer()
        try:
            consumer.assign([TopicPartition(self.topic, partition, start)])
            yield RangeReader(self, consumer, start)
        finally:
            consumer.close()

    # -- groups ---------------------------------------------------------------------------------------------

    def group_id(self, owner: str, group: str) -> str:
        """Return the name under which Kafka keeps the place of a group of a cluster: no two clusters share one."""
        return f"{self._of_owner(owner)}{group}"

    def _of_owner(self, owner: str) -> str:
        return f"{_PREFIX}{self._bridge}/{quote(owner, safe='')}/"

    def groups(self) -> list[tuple[str, str]]:
        """Return the owner and the name of each group of this bridge."""
        listed = self._result(self._admin.list_consumer_groups(request_timeout=_ANSWER)).valid
        prefix = f"{_PREFIX}{self._bridge}/"
        found = sorted(one.group_id[len(prefix) :] for one in listed if one.group_id.startswith(prefix))
        return [(unquote(owner), group) for owner, _, group in (one.partition("/") for one in found)]

    def committed(self, owner: str, group: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset from which a group goes on, by partition; none if it is new.

        A consumer asks, which joins no group by that.  Where librdkafka's admin client does (2.16, and before), and the
        group's coordinator has just changed, the process ends.
        """
        deadline = time.monotonic() + _ANSWER
        try:
            with closing(self.consumer(self.group_id(owner, group))) as consumer:
                places = self._places(consumer, partitions, deadline)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise self._translated(error) from None
        for place in places:
            if place.error is not None:
                raise self._translated(KafkaException(place.error))
        return {place.partition: place.offset for place in places if place.offset >= 0}

    def _places(self, consumer: Consumer, partitions: Iterable[int], deadline: float) -> list[TopicPartition]:
        asked = [TopicPartition(self.topic, partition) for partition in partitions]
        while True:
            try:
                return consumer.committed(asked, timeout=max(deadline - time.monotonic(), 0.1))
            except KafkaException as error:  # brokers do not agree yet which one has the group
                if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def set_committed(self, owner: str, group: str, offsets: Mapping[int, int]) -> bool:
        """Let a group go on from other offsets; return False if a consumer of it is there, and nothing was changed."""
        name = self.group_id(owner, group)
        places = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        asked = self._admin.alter_consumer_group_offsets([GroupOffsets(name, places)], request_timeout=_ANSWER)
        try:
            done = asked[name].result(_ANSWER + 5)
        except KafkaException as error:
            if error.args[0].code() in _GROUP_STATES:
                return False
            raise self._translated(error) from None
        refused = [one.error.code() for one in done.topic_partitions if one.error is not None]
        if not refused:
            return True
        if _GROUP_STATES.issuperset(refused):
            return False
        raise BridgeUnreachable(f"Kafka does not note the place of group {group!r}: {done.topic_partitions[0].error}")

    def drop_group(self, owner: str, group: str) -> bool:
        """Forget the place of a group; return False if a consumer of it is there."""
        name = self.group_id(owner, group)
        try:
            self._admin.delete_consumer_groups([name], request_timeout=_ANSWER)[name].result(_ANSWER + 5)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.NON_EMPTY_GROUP:
                return False
            raise self._translated(error) from None
        return True


@final
class RangeReader:
    """Reads one partition in order; see ``KafkaLog.reading``."""

    def __init__(self, log: KafkaLog, consumer: Consumer, at: int) -> None:
        self._log = log
        self._consumer = consumer
        self.at = at
        """Offset behind what was read."""

    def read(self, end: int, *, max_bytes: int) -> list[Record]:
        """Return records below ``end``, of so many bytes about; ``at`` is behind them, or behind offsets without any.

        Raises:
            DataLost: retention has removed where it was to begin.
            BridgeUnreachable: the brokers do not answer.
        """
        found: list[Record] = []
        size = 0
        deadline = time.monotonic() + _ANSWER
        while self.at < end and size < max_bytes:
            message = self._consumer.poll(0.0 if found else 0.25)
            if message is None:
                if found:
                    return found
                if time.monotonic() > deadline:
                    raise BridgeUnreachable(f"Kafka sends nothing of {self._log.topic!r} from offset {self.at} on")
                continue
            error = message.error()
            if error is None:
                record = read_record(message, self._log.topic)
                self.at = min(end, record.offset + 1)
                if record.offset < end:
                    found.append(record)
                    size += record.size
            elif error.code() == KafkaError._PARTITION_EOF:
                # Behind the last record stand marks of transactions.  A replica that is behind ends earlier.
                self.at = max(self.at, min(end, message.offset() or 0))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise DataLost(f"retention has removed offset {self.at} of {self._log.topic!r}")
        return found
