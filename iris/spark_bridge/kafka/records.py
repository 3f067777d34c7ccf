"""Records: how an event stands in Kafka, and how a record of Kafka reads as an event.

============= ======================================================================================================
of the record what it has
============= ======================================================================================================
key           the event's key, in UTF-8; null if it has none
value         the payload: bytes as they are, text in UTF-8, another value as JSON, or packed if it has no such form;
              null for None (a tombstone)
partition     by the key, as Java's clients choose it (murmur2); without a key any
timestamp     when a member produced the record, or when the leader stored it if the topic says so
headers       ``iris-topic``, ``iris-sender`` (the publisher's cluster), ``iris-publisher`` (its node), ``iris-number``,
              ``iris-encoding`` (if the payload was not bytes), then the event's own
============= ======================================================================================================

A publisher numbers its events on each topic, so ``iris-publisher``, ``iris-topic`` and ``iris-number`` name one event.
A record that others wrote has none of them.  It reads as an event on a topic that is called as Kafka's, without a
sender.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from iris.kernel.topic_syntax import is_topic
from iris.patterns.bridge_protocol import SentEvent
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.events.json_payloads import JSON, pack_value, unpack_value
from iris.spark_bridge.events.schema import (
    HEADER_ENCODING,
    HEADER_NUMBER,
    HEADER_PUBLISHER,
    HEADER_SENDER,
    HEADER_TOPIC,
    LOG_APPEND_TIME,
    NIL,
    PACKED,
    RESERVED,
    SCHEMA,
    TEXT,
    encoding_of,
    key_text,
    payload_of,
    stored_value,
)

if TYPE_CHECKING:
    from confluent_kafka import Message

RECORD_OVERHEAD: Final = 512
"""Memory of a record on its way beside its bytes, as the client counts it about, in bytes."""

FRAMING: Final = 128
"""Most that a record's own framing, and its batch's, take on the wire, in bytes."""

_LATEST: Final = 253_402_300_799_999
"""Last time that a record has, in milliseconds since 1970: the end of the year 9999.  Later ones are no dates."""

Headers = list[tuple[str, bytes]]


class Written(NamedTuple):
    """One event as a record to be produced."""

    value: bytes | None
    headers: Headers
    size: int
    """Bytes of value, key and headers."""


@functools.lru_cache(maxsize=1024)
def _names(topic: str, cluster: str, publisher: str) -> tuple[Headers, int]:
    """Return the headers that all events of a publisher on a topic have, and their size: each keyed event is a run."""
    named = [
        (HEADER_TOPIC, topic.encode()),
        (HEADER_SENDER, cluster.encode()),
        (HEADER_PUBLISHER, publisher.encode()),
    ]
    return named, _size(named) + 48


def _size(headers: Headers) -> int:
    return sum(len(name) + len(text) + 10 for name, text in headers)


def write_records(run: EventRun, key: bytes | None) -> Iterator[Written]:
    """Yield the events of a run, whose key is given in UTF-8, as records in their order."""
    common, every = _names(run.topic, run.sender.cluster, run.publisher)
    own: Headers = []
    if run.headers:
        own = [(name, text.encode()) for name, text in run.headers.items() if not name.startswith(RESERVED)]
        every += _size(own)
    if key is not None:
        every += len(key)
    for at, payload in enumerate(run.payloads):
        value, encoding = (payload, None) if type(payload) is bytes else _produced(*stored_value(payload))
        headers = [*common, (HEADER_NUMBER, b"%d" % (run.first + at))]
        if encoding is not None:
            headers.append((HEADER_ENCODING, encoding.encode()))
        yield Written(value, headers + own if own else headers, every + len(value or b""))


def _produced(value: bytes | None, encoding: str | None) -> tuple[bytes | None, str | None]:
    """Return the value of a record, and how it is encoded, by what an embedded log has."""
    return unpack_value(value) if encoding == PACKED and value is not None else (value, encoding)


class Copied(NamedTuple):
    """One event of an embedded log as a record to be produced."""

    written: Written
    key: bytes | None
    offset: int
    timestamp: int
    """Time at which the log stored it, in milliseconds since 1970."""


def copy_rows(rows: pa.RecordBatch, shard: str) -> Iterator[Copied]:
    """Yield the events that an embedded log has as records, in their order.

    The log does not keep what their publishers called them, so ``iris-publisher`` is the shard, and ``iris-number`` the
    offset there: the two name an event as well.

    Args:
        rows: columns of the log.
        shard: id of the shard.
    """
    publisher = shard.encode()
    columns = [rows.column(name).to_pylist() for name in ("key", "value", "topic", "offset", "headers")]
    moments = rows.column("timestamp").cast(pa.int64()).to_pylist()
    for key, stored, topic, offset, pairs, moment in zip(*columns, moments, strict=True):
        sender = next((pair["value"] for pair in pairs if pair["key"] == HEADER_SENDER), b"")
        value, encoding = _produced(stored, encoding_of(pairs))
        headers: Headers = [
            (HEADER_TOPIC, topic.encode()),
            (HEADER_SENDER, sender),
            (HEADER_PUBLISHER, publisher),
            (HEADER_NUMBER, b"%d" % offset),
        ]
        if encoding is not None:
            headers.append((HEADER_ENCODING, encoding.encode()))
        headers += [(pair["key"], pair["value"]) for pair in pairs if not pair["key"].startswith(RESERVED)]
        size = sum(len(name) + len(text or b"") + 10 for name, text in headers) + len(key or b"") + len(value or b"")
        yield Copied(Written(value, headers, size), key, offset, moment // 1000)


class Record(NamedTuple):
    """One record of Kafka, read as an event."""

    partition: int
    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    """Without the topic."""
    timestamp: int
    """Microseconds since 1970."""
    is_append_time: bool

    def stored(self) -> tuple[bytes | None, str]:
        """Return the value, and how it is encoded, as an embedded log would have them."""
        value, encoding = self.value, self.header(HEADER_ENCODING)
        if encoding != JSON or value is None:
            return value, encoding
        packed, encoding = pack_value(value, sys.maxsize)
        return packed, "" if encoding == JSON else encoding

    def header(self, name: str) -> str:
        """Return the text of a header; empty if there is none."""
        return next((text or b"" for key, text in self.headers if key == name), b"").decode("utf-8", "replace")

    @property
    def size(self) -> int:
        """Approximate memory of it, in bytes."""
        headers = sum(len(name) + len(text or b"") for name, text in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers + RECORD_OVERHEAD


def read_record(message: Message, topic: str) -> Record:
    """Read a record; others than bridges may have written it.

    Args:
        message: the record.
        topic: topic of what no bridge has written.
    """
    given = _headers_of(message)
    named = next((text or b"" for name, text in given if name == HEADER_TOPIC), b"").decode("utf-8", "replace")
    kind, milliseconds = message.timestamp()
    value = message.value()
    encoding = next((text for name, text in given if name == HEADER_ENCODING), None)
    # What says that it is packed and is not would come again and again to programs that cannot decode it.
    known = value is not None and encoding in (TEXT.encode(), PACKED.encode(), JSON.encode())
    if encoding is not None and not (known and _is_encoded(value or b"", encoding.decode())):
        given = [pair for pair in given if pair[0] != HEADER_ENCODING]
    return Record(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        topic=named if is_topic(named) else topic,
        key=message.key(),
        value=value,
        headers=[(name, text) for name, text in given if name != HEADER_TOPIC],
        timestamp=min(max(0, milliseconds), _LATEST) * 1000,
        is_append_time=kind == 2,
    )


def _headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    try:
        return list(message.headers() or ())  # type: ignore[arg-type]
    except (SystemError, UnicodeDecodeError):  # a name is not UTF-8: the client gives none of them then
        return []


def _is_encoded(value: bytes, encoding: str) -> bool:
    return encoding == JSON or type(payload_of(value, encoding)) is not bytes


def as_sent(record: Record, large: int) -> SentEvent:
    """Return an event as a consumer gets it; the value's size instead of a value of more than ``large`` bytes."""
    value, encoding = record.stored()
    if value is None:
        value, encoding = NIL, PACKED
    return SentEvent(
        offset=record.offset,
        topic=record.topic,
        key=key_text(record.key),
        headers={
            name: (text or b"").decode("utf-8", "replace")
            for name, text in record.headers
            if not name.startswith(RESERVED)
        },
        sender=record.header(HEADER_SENDER),
        encoding=encoding,
        timestamp=record.timestamp,
        value=value if len(value) <= large else len(value),
    )


def as_batch(records: Sequence[Record]) -> pa.RecordBatch:
    """Return the columns of events, as ``iris.spark_bridge.events.schema`` has them."""
    stored = [record.stored() for record in records]
    columns: list[list[object]] = [
        [record.key for record in records],
        [value for value, _ in stored],
        [record.topic for record in records],
        [record.partition for record in records],
        [record.offset for record in records],
        [record.timestamp for record in records],
        [LOG_APPEND_TIME if record.is_append_time else 0 for record in records],
        [_pairs(record, encoding) for record, (_, encoding) in zip(records, stored, strict=True)],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def _pairs(record: Record, encoding: str) -> list[dict[str, object]]:
    named = [(HEADER_ENCODING, encoding.encode())] if encoding else []
    own = [pair for pair in record.headers if pair[0] != HEADER_ENCODING]
    return [{"key": name, "value": text} for name, text in (*named, *own)]
