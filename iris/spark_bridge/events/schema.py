"""Schema of an event: the columns of Spark's Kafka source, so that existing queries need a new format and nothing else.

========== ======================= ==========================================================================
column     Spark type              content
========== ======================= ==========================================================================
key        binary                  the publisher's ``key=`` in UTF-8, or null
value      binary                  the payload; a text in UTF-8, None as null, others that were not bytes in msgpack
topic      string                  the topic
partition  int                     number of the shard
offset     bigint                  position in the shard: 0, 1, 2, ... without gaps
timestamp  timestamp               when the bridge stored it; never decreases within a shard
timestampType int                  1, as in Kafka: the time of the log's append
headers    array<struct<key,value>> the publisher's headers, and those that start with ``iris-``
========== ======================= ==========================================================================

Headers added by the bridge: ``iris-sender`` (verified name of the publisher's cluster) and, for payloads that were
not bytes, ``iris-encoding`` with the value ``utf-8`` or ``msgpack``.  Names that a publisher gives and that start with
``iris-`` are dropped, so that these can be believed.  Of what Spark writes ``iris-encoding`` stays where it is true of
the value: what a query has read is the same event when it writes it.

An event whose value is null is a *tombstone*: where only the last event of each key is kept, it says that the key is
gone (``cleanup.policy=compact`` of a topic in Kafka).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.names import MAX_KEY
from iris.kernel.wire import Payload, decode_payload_untrusted, join_payload, split_payload
from iris.patterns.pubsub.interest import check_topic
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.record_batches import read_batch_untrusted

HEADER_SENDER: Final = "iris-sender"
HEADER_ENCODING: Final = "iris-encoding"
TEXT: Final = "utf-8"
PACKED: Final = "msgpack"
"""Values of ``HEADER_ENCODING``."""
HEADER_SINK: Final = "iris-sink"
"""Header of events that a bridge publishes for Spark: the query that wrote them."""
HEADER_BRIDGE: Final = "iris-bridge"
"""Header of the same events: the bridge whose log they are in, so that none of its members stores them again."""

HEADER_TOPIC: Final = "iris-topic"
"""Header of records in Kafka: the topic that an event was published on."""
HEADER_PUBLISHER: Final = "iris-publisher"
"""Header of records in Kafka: the node that has published an event."""
HEADER_NUMBER: Final = "iris-number"
"""Header of records in Kafka: the event's number among those of its publisher on its topic.  A repeat has the same."""

RESERVED: Final = "iris-"
LOG_APPEND_TIME: Final = 1

MAX_VALUE: Final = MIB
"""Largest value that Spark may publish, in bytes: the payload that nodes accept by default."""

MAX_HEADERS: Final = 7 * KIB
"""Limit of a row's headers that Spark publishes, in bytes: what nodes accept by default, less the bridge's own."""
MAX_HEADER_COUNT: Final = 500

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", _HEADERS),
    ]
)
"""Schema that Spark derives from SPARK_SCHEMA: it compares the two and accepts no other batch."""

NO_EVENTS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)
"""Made without a list: with the first one that it is given, Arrow imports pandas, for a quarter of a second."""

SPARK_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)

SINK_SCHEMA: Final = pa.schema([SCHEMA.field(name) for name in ("key", "value", "topic", "headers")])
"""Columns that Spark publishes: the log sets the others."""

_SHARD: Final = pa.field("shard", pa.string())


def columns(*, headers: bool, shard: bool) -> pa.Schema:
    """Return what Spark's source yields: the log's columns, and the shard's id if that is asked for."""
    return pa.schema([field for field in SCHEMA if headers or field.name != "headers"] + [_SHARD] * shard)


def spark_schema(*, headers: bool, shard: bool) -> str:
    """Return the same in Spark's words."""
    kept = SPARK_SCHEMA if headers else SPARK_SCHEMA[: SPARK_SCHEMA.index(", headers")]
    return f"{kept}, shard string" if shard else kept


def encode_events(runs: Sequence[EventRun], *, shard: int, first: int, timestamp: int) -> pa.RecordBatch:
    """Make the columns of events that get the offsets ``first``, ``first + 1``, ...

    Args:
        runs: at least one event.
        shard: number of the shard.
        first: offset of the first event.
        timestamp: microseconds since 1970, one for all of them.
    """
    values: list[bytes | None] = []
    encodings: list[str | None] | None = None
    for run in runs:
        payloads = run.payloads
        if run.plain:
            values += cast("Sequence[bytes]", payloads)
            if encodings is not None:
                encodings += [None] * len(payloads)
            continue
        if encodings is None:
            encodings = []
            encodings += [None] * len(values)
        for payload in payloads:
            value, encoding = stored_value(payload)
            values.append(value)
            encodings.append(encoding)
    counts = [len(run.payloads) for run in runs]
    return _place(
        _spread([None if run.key is None else run.key.encode() for run in runs], counts, pa.binary()),
        pa.array(values, pa.binary()),
        _spread([run.topic for run in runs], counts, pa.string()),
        _headers(runs, encodings),
        shard=shard,
        first=first,
        timestamp=timestamp,
    )


NIL: Final = b"\xc0"
"""None, packed."""


def stored_value(payload: Payload) -> tuple[bytes | None, str | None]:
    """Return the value of a payload and how it is encoded, if it was not bytes."""
    if type(payload) is bytes:
        return payload, None
    data, _ = split_payload(payload)
    if data == NIL:
        return None, None
    text = _text_untrusted(data)
    return (data, PACKED) if text is None else (text, TEXT)


def _text_untrusted(data: bytes) -> bytes | None:
    """Return the UTF-8 of a packed text, or None if it is another value, or none at all."""
    first = data[0] if data else 0
    if 0xA0 <= first <= 0xBF:
        size, begin = first & 0x1F, 1
    elif 0xD9 <= first <= 0xDB:
        begin = 1 + (1 << (first - 0xD9))
        size = int.from_bytes(data[1:begin])
    else:
        return None
    if len(data) != begin + size:
        return None
    text = data[begin:]
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return text


def check_rows(rows: pa.RecordBatch) -> None:
    """Make sure that rows of SINK_SCHEMA can be published.

    Raises:
        ConfigError: a topic is null or malformed, or something is too large for an event.
    """
    if nulls := rows.column("topic").null_count:
        raise ConfigError(f"column topic is null in {nulls} rows: it must not be")
    for topic in set(rows.column("topic").to_pylist()):
        check_topic(topic)
    for name, limit in (("value", MAX_VALUE), ("key", MAX_KEY)):
        largest = pc.max(pc.binary_length(rows.column(name))).as_py() or 0
        if largest > limit:
            raise ConfigError(f"column {name} has {largest} bytes in a row: the limit of an event is {limit}")
    _check_headers(rows.column("headers"))


def _check_headers(headers: pa.Array[list[dict[str, Any]] | None]) -> None:
    if headers.null_count == len(headers):
        return
    most = pc.max(pc.list_value_length(headers)).as_py() or 0
    if most > MAX_HEADER_COUNT:  # before each of them becomes an object
        raise ConfigError(f"column headers has {most} headers in a row: the limit of an event is {MAX_HEADER_COUNT}")
    for pairs in headers.to_pylist():
        given = [pair for pair in pairs or () if pair is not None]
        size = sum(len((pair["key"] or "").encode()) + len(pair["value"] or b"") for pair in given)
        if size > MAX_HEADERS:
            raise ConfigError(
                f"column headers has {len(given)} headers of {size} bytes in a row: the limit of an event is "
                f"{MAX_HEADERS} bytes"
            )


def place_rows(rows: pa.RecordBatch, *, sender: str, shard: int, first: int, timestamp: int) -> pa.RecordBatch:
    """Make the columns of rows that Spark publishes (SINK_SCHEMA); as ``encode_events``."""
    return _place(
        rows.column("key"),
        rows.column("value"),
        rows.column("topic"),
        _row_headers(rows, sender),
        shard=shard,
        first=first,
        timestamp=timestamp,
    )


def _place(
    keys: pa.Array[object],
    values: pa.Array[object],
    topics: pa.Array[object],
    headers: pa.Array[object],
    *,
    shard: int,
    first: int,
    timestamp: int,
) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            keys,
            values,
            topics,
            _integers(pa.int32(), array("i", [shard]) * count),
            _integers(pa.int64(), array("q", range(first, first + count))),
            _integers(_TIMESTAMP, array("q", [timestamp]) * count),
            _integers(pa.int32(), array("i", [LOG_APPEND_TIME]) * count),
            headers,
        ],
        schema=SCHEMA,
    )


def _spread(values: Sequence[str | bytes | None], counts: Sequence[int], kind: pa.DataType) -> pa.Array[object]:
    """Return each of the values as often as its count says; 0.1 us less for each event if all are alike."""
    if values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), sum(counts))
    every: list[str | bytes | None] = []
    for value, count in zip(values, counts, strict=True):
        every += [value] * count
    return pa.array(every, kind)


def _texts_as_bytes(texts: Sequence[str | None]) -> pa.Array[object]:
    # UTF-8 strings and binaries have the same layout: the buffers are taken as they are.
    strings = pa.array(texts, pa.string())
    return pa.Array.from_buffers(pa.binary(), len(strings), strings.buffers(), strings.null_count)


def _integers(kind: pa.DataType, values: array[int]) -> pa.Array[object]:
    # Ten times faster than a list of int; the buffer keeps the array alive.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(memoryview(values))], 0)


def _headers(runs: Sequence[EventRun], encodings: Sequence[str | None] | None) -> pa.Array[object]:
    if encodings is None and not any(run.headers for run in runs):
        counts = [len(run.payloads) for run in runs]
        senders = _spread([run.sender.cluster.encode() for run in runs], counts, pa.binary())
        names_alike = _spread([HEADER_SENDER], [len(senders)], pa.string())
        return _header_lists(names_alike, senders, array("i", range(len(senders) + 1)))
    names: list[str] = []
    texts: list[str] = []
    ends = array("i", [0])
    for run in runs:
        own = [(name, text) for name, text in run.headers.items() if not name.startswith(RESERVED)]
        for _ in run.payloads:
            names.append(HEADER_SENDER)
            texts.append(run.sender.cluster)
            encoding = None if encodings is None else encodings[len(ends) - 1]
            if encoding is not None:
                names.append(HEADER_ENCODING)
                texts.append(encoding)
            for name, text in own:
                names.append(name)
                texts.append(text)
            ends.append(len(names))
    return _header_lists(pa.array(names, pa.string()), _texts_as_bytes(texts), ends)


def _row_headers(rows: pa.RecordBatch, sender: str) -> pa.Array[object]:
    name = sender.encode()
    names: list[str] = []
    values: list[bytes | None] = []
    ends = array("i", [0])
    for at, given in enumerate(rows.column("headers").to_pylist()):
        names.append(HEADER_SENDER)
        values.append(name)
        if given and (encoding := encoding_of(given)) and _is_encoded(rows.column("value")[at].as_py(), encoding):
            names.append(HEADER_ENCODING)
            values.append(encoding.encode())
        for pair in given or ():
            if pair is not None and pair["key"] is not None and not pair["key"].startswith(RESERVED):
                names.append(pair["key"])
                values.append(pair["value"])
        ends.append(len(names))
    return _header_lists(pa.array(names, pa.string()), pa.array(values, pa.binary()), ends)


def _header_lists(names: pa.Array[object], values: pa.Array[object], ends: array[int]) -> pa.Array[object]:
    pairs = pa.Array.from_buffers(_HEADER, len(names), [None], 0, children=[names, values])
    return pa.Array.from_buffers(_HEADERS, len(ends) - 1, [None, pa.py_buffer(memoryview(ends))], 0, children=[pairs])


def encoding_of(pairs: Sequence[Mapping[str, Any] | None] | None) -> str | None:
    """Return how headers of the log say that the value is encoded; None: it is bytes."""
    for pair in pairs or ():
        if pair is not None and pair["key"] == HEADER_ENCODING:
            return next((encoding for encoding in (TEXT, PACKED) if pair["value"] == encoding.encode()), None)
    return None


def _is_encoded(value: bytes | None, encoding: str) -> bool:
    """Return whether a value is what Spark says of it: others believe it."""
    return value is not None and type(payload_of(value, encoding)) is not bytes


def payload_of(value: bytes | None, encoding: str | None) -> Any:
    """Return the payload of which a log holds this value; the bytes, where they are not encoded so."""
    if value is None:
        return None
    try:
        if encoding == TEXT:
            return value.decode()
        return decode_payload_untrusted(join_payload(value, packed=True)) if encoding == PACKED else value
    except (UnicodeDecodeError, RemoteProtocolError):
        return value


def key_text(key: bytes | None) -> str | None:
    """Return a key of the log as publishers give it; bytes that are not UTF-8 in hexadecimal: keys stay different."""
    return None if key is None else key.decode("utf-8", "backslashreplace")


def check_texts(rows: Sequence[Mapping[str, Any]]) -> None:
    """Make sure that rows of SINK_SCHEMA can be published as they are, where keys and headers are text.

    Raises:
        ConfigError: one of these is not UTF-8.
    """
    for row in rows:
        pairs = [pair for pair in row["headers"] or () if pair is not None]
        for name, value in (("key", row["key"]), *(("headers", pair["value"]) for pair in pairs)):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                raise ConfigError(
                    f"column {name} has {value!r} in a row, which is not UTF-8 and would not arrive as it is: leave "
                    "out option delivery, which takes any bytes, or encode it, as by base64(...)"
                ) from None


def header_texts(pairs: Sequence[Mapping[str, Any] | None] | None) -> dict[str, str]:
    """Return headers of the log as publishers give them: there values are bytes, here text."""
    return {
        pair["key"]: (pair["value"] or b"").decode("utf-8", "replace")
        for pair in pairs or ()
        if pair is not None and pair["key"] is not None and not pair["key"].startswith(RESERVED)
    }


def decode_events(data: bytes | memoryview) -> pa.RecordBatch:
    """Return the columns in ``data``, which ``serialize`` of a batch of SCHEMA has written; nothing is copied.

    It may come from a peer.

    Raises:
        LogDamaged: it is something else.
    """
    try:
        return read_batch_untrusted(data, SCHEMA)
    except RemoteProtocolError as error:
        raise LogDamaged(str(error)) from error
