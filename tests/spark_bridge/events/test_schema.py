"""Columns of events: what Spark gets is what was published."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from iris.kernel.config import MIB
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.kernel.wire.payload import encode_payload, join_payload
from iris.patterns.messages import Sender
from iris.patterns.pubsub.subscribe.events import EventRun
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.runs import stored_size
from iris.spark_bridge.events.schema import SCHEMA, decode_events, encode_events
from tests.support.arrivals import fake_event


def rows(events: list[EventRun], **place: int) -> list[dict[str, Any]]:
    batch = encode_events(events, **({"shard": 3, "first": 40, "timestamp": 1_000_000} | place))
    batch.validate(full=True)
    again = decode_events(batch.serialize().to_pybytes())
    assert again.equals(batch)
    return again.to_pylist()


def test_the_columns_are_exactly_those_that_spark_derives() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    spark = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", ArrayType(header)),
        ]
    )
    assert to_arrow_schema(spark, timezone="UTC").equals(SCHEMA, check_metadata=True)


def test_a_row_holds_the_event_and_its_place() -> None:
    first, second = rows([fake_event(b"one", topic="x.y", key="k"), fake_event(b"two")])
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"one", "x.y")
    assert (first["partition"], first["offset"], first["timestampType"]) == (3, 40, 1)
    assert first["timestamp"].timestamp() == 1.0
    assert (second["key"], second["offset"]) == (None, 41)


def test_the_sender_stands_in_a_header() -> None:
    (row,) = rows([fake_event(b"")])
    assert row["headers"] == [{"key": "iris-sender", "value": b"publishers"}]


def test_a_payload_that_was_not_bytes_is_stored_as_msgpack_and_marked() -> None:
    events = [fake_event(encode_payload({"a": [1, None]}, MIB)), fake_event(b"plain")]
    packed, plain = rows(events)
    assert packed["value"] == bytes.fromhex("81a1619201c0")
    assert {"key": "iris-encoding", "value": b"msgpack"} in packed["headers"]
    assert plain["headers"] == [{"key": "iris-sender", "value": b"publishers"}]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_a_text_is_stored_as_utf8_and_marked(size: int) -> None:
    text = ("ü" * size)[:size]
    row, plain = rows([fake_event(encode_payload(text, MIB)), fake_event(text.encode())])
    assert row["value"] == plain["value"] == text.encode()
    assert {"key": "iris-encoding", "value": b"utf-8"} in row["headers"]
    assert plain["headers"] == [{"key": "iris-sender", "value": b"publishers"}]


@pytest.mark.parametrize(
    "data", [b"", b"\xa2x", b"\xa1xy", b"\xa1\xff", b"\xd9", b"\xd9\x05x", b"\xda\x00", b"\xdb\x00\x00"]
)
def test_what_is_no_text_is_stored_as_it_came(data: bytes) -> None:
    """A publisher may send anything: the log holds it, and readers find out."""
    (row,) = rows([fake_event(join_payload(data, packed=True))])
    assert row["value"] == data
    assert {"key": "iris-encoding", "value": b"msgpack"} in row["headers"]


def test_publishers_cannot_forge_the_headers_of_the_bridge() -> None:
    (row,) = rows([fake_event(b"", headers={"iris-sender": "root", "trace": "7"})])
    assert row["headers"] == [
        {"key": "iris-sender", "value": b"publishers"},
        {"key": "trace", "value": b"7"},
    ]


def test_an_empty_key_is_not_a_missing_key() -> None:
    empty, missing = rows([fake_event(key=""), fake_event(key=None)])
    assert (empty["key"], missing["key"]) == (b"", None)


texts = st.text(max_size=8)


@settings(deadline=None)  # the first use of Arrow takes a while
@given(
    st.lists(
        st.builds(
            fake_event,
            payload=st.one_of(st.binary(max_size=20), st.integers(0, 9).map(lambda n: encode_payload(n, MIB))),
            topic=st.sampled_from(["a", "a.b", "ü.ß"]),
            key=st.none() | texts,
            headers=st.dictionaries(texts, texts, max_size=3),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_event_comes_out_as_it_went_in(events: list[EventRun]) -> None:
    for at, (event, row) in enumerate(zip(events, rows(events), strict=True)):
        (raw,) = event.payloads
        assert row["value"] == (raw if isinstance(raw, bytes) else raw.data)
        assert row["topic"] == event.topic
        assert row["key"] == (None if event.key is None else event.key.encode())
        assert row["offset"] == 40 + at
        own = {item["key"]: item["value"] for item in row["headers"]}
        for name, text in event.headers.items():
            assert name.startswith("iris-") or own[name] == text.encode()


@pytest.mark.parametrize("data", [b"", b"x" * 100, pa.schema([("a", pa.int32())]).serialize().to_pybytes()])
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(LogDamaged):
        decode_events(data)


def test_headers_and_key_that_a_run_shares_count_for_each_of_its_events() -> None:
    sender = Sender("publishers", NodeId("a" * 32))
    events = kinds.Events("t", 0, 0, None, None, "k" * 50, (b"",) * 100, ())
    run = EventRun(sender, events, {"h": "x" * 1000}, 0, plain=True)
    columns = encode_events([run], shard=0, first=0, timestamp=0).nbytes
    assert columns / 2 < stored_size(run) <= columns
