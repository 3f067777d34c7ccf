"""What a client of Kafka may give that no broker of these tests does at will."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import BridgeUnreachable
from iris.spark_bridge.kafka import log as log_of_kafka
from iris.spark_bridge.kafka.log import KafkaLog, RangeReader
from iris.spark_bridge.kafka.records import read_record


class Given:
    """A message of the client."""

    def __init__(self, offset: int, error: int | None = None, *, is_readable: bool = True) -> None:
        self._offset = offset
        self._error = error
        self._is_readable = is_readable

    def headers(self) -> Any:
        """As the client answers for a name that is not UTF-8."""
        if not self._is_readable:
            raise SystemError("<method 'headers'> returned a result with an exception set")
        return [("iris-topic", b"orders.new")]

    def error(self) -> KafkaError | None:
        """The event in the place of a record, if it is one."""
        return None if self._error is None else KafkaError(self._error)

    def offset(self) -> int:
        """Where it is."""
        return self._offset

    def partition(self) -> int:
        """Of which partition."""
        return 0

    def timestamp(self) -> tuple[int, int]:
        """When."""
        return 1, 0

    def value(self) -> bytes:
        """What."""
        return b"tea"

    def key(self) -> None:
        """No key."""


def test_a_record_with_a_header_that_is_not_utf_8_is_read_without_headers() -> None:
    record = read_record(cast("Any", Given(7, is_readable=False)), "kafka-topic")
    assert (record.offset, record.topic, record.value, record.headers) == (7, "kafka-topic", b"tea", [])


def test_the_end_of_a_replica_that_is_behind_is_not_the_end_of_a_range() -> None:
    class Polled:
        """A replica that learns of the second record after it has said that the first is the last one."""

        def __init__(self) -> None:
            self._given = [Given(0), Given(1, KafkaError._PARTITION_EOF), Given(1), Given(4, KafkaError._PARTITION_EOF)]

        def poll(self, _timeout: float) -> Given | None:
            return self._given.pop(0) if self._given else None

    log = KafkaLog("127.0.0.1:1", "kafka-topic", "bridge", {})
    reader = RangeReader(log, cast("Consumer", Polled()), 0)
    found = [record.offset for record in reader.read(4, max_bytes=1_000_000)]
    assert found == [0, 1]
    assert reader.at == 4


@pytest.mark.parametrize(
    "code", [KafkaError._DESTROY, KafkaError._RESOLVE, KafkaError._TRANSPORT, KafkaError.NOT_CONTROLLER]
)
def test_a_broker_that_goes_while_it_is_asked_is_one_to_wait_for(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with pytest.raises(BridgeUnreachable, match="Kafka does not answer"):
        asked(monkeypatch, code).describe()


def test_what_brokers_refuse_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Kafka refuses that"):
        asked(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED).describe()


def asked(monkeypatch: pytest.MonkeyPatch, code: int) -> KafkaLog:
    """Return a log whose brokers answer what its topic is by an error."""

    class Admin:
        def __init__(self, _: object) -> None:
            pass

        def describe_topics(self, _: object, **__: object) -> Mapping[str, Future[object]]:
            answer = Future[object]()
            answer.set_exception(KafkaException(KafkaError(code)))
            return {"orders": answer}

    monkeypatch.setattr(log_of_kafka, "AdminClient", Admin)
    return KafkaLog("127.0.0.1:9", "orders", "bridge", {})
