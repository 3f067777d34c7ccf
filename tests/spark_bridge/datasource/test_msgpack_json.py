"""Msgpack payloads, read as one: each row is its own payload whatever stands in the others."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.config import MIB
from iris.kernel.wire.kinds import Payload
from iris.kernel.wire.payload import encode_payload, join_payload, split_payload
from iris.spark_bridge.datasource.msgpack_json import packed_reader
from iris.spark_bridge.datasource.payload_columns import typed_columns
from iris.spark_bridge.schema import decode_events, encode_events
from tests.support.arrivals import fake_event

FIELDS: list[tuple[str, pa.DataType]] = [
    ("a", pa.int64()),
    ("a name", pa.string()),
    ("real", pa.float64()),
    ("yes", pa.bool_()),
    ("at", pa.timestamp("us", tz="UTC")),
    ("exact", pa.decimal128(10, 2)),
    ("list", pa.list_(pa.field("element", pa.int32()))),
    ("inner", pa.struct([pa.field("x", pa.string())])),
    ("_corrupt_record", pa.binary()),
]
KIND = pa.struct(FIELDS[:-1])
WHOLE: dict[str, Any] = {
    "a": -5,
    "a name": 'ü\n"\\',
    "real": 2,
    "yes": True,
    "at": "2013-01-01T10:00:00Z",
    "exact": 12.5,
    "list": [1, None],
    "inner": {"x": "y", "more": [{}]},
    "unknown": {"deep": [1, {"b": b"\xff"}]},
}


def read(payloads: list[Payload]) -> list[dict[str, Any]]:
    stored = encode_events([fake_event(payload) for payload in payloads], shard=3, first=40, timestamp=0)
    typed = typed_columns(pa.schema(FIELDS), corrupt="_corrupt_record", mode="PERMISSIVE")
    return typed.parse(decode_events(stored.serialize().to_pybytes())).to_pylist()


def packed(value: object) -> Payload:
    return encode_payload(value, MIB)


def raw(data: bytes) -> Payload:
    """What a peer may send for a packed value."""
    return join_payload(data, packed=True)


def lines(values: list[object]) -> bytes | None:
    return packed_reader(KIND).to_lines(pa.array([split_payload(packed(value))[0] for value in values], pa.binary()))


def test_every_kind_of_value_is_read_at_once() -> None:
    assert lines([WHOLE, {}, {"a": None}]) is not None
    (row, *others) = read([packed(WHOLE), packed({}), packed({"a": None})])
    assert row["at"].isoformat() == "2013-01-01T10:00:00+00:00"
    assert str(row["exact"]) == "12.50"
    assert {name: row[name] for name in ("a", "a name", "real", "yes", "list", "inner", "_corrupt_record")} == {
        "a": -5,
        "a name": 'ü\n"\\',
        "real": 2.0,
        "yes": True,
        "list": [1, None],
        "inner": {"x": "y"},
        "_corrupt_record": None,
    }
    assert others == [dict.fromkeys(dict(FIELDS), None)] * 2


_ODD: list[object] = [
    5,
    None,
    [1],
    "x",
    {"a": 1.0},
    {"a": "1"},
    {"real": math.nan},
    {"real": math.inf},
    {"a name": b"x"},
    {"list": [{}]},
]


@pytest.mark.parametrize("value", _ODD)
def test_what_json_says_otherwise_is_not_read_at_once(value: object) -> None:
    assert lines([{"a": 1}, value]) is None


def test_bytes_that_are_text_are_text() -> None:
    assert [row["a name"] for row in read([packed({"a name": b"x"}), packed({"a name": "y"})])] == ["x", "y"]


def test_a_number_out_of_range_is_unfit_and_no_other_is_touched() -> None:
    rows = read([packed({"a": 1}), packed({"a": 2**63}), packed({"a": 3})])
    assert [row["a"] for row in rows] == [1, None, 3]
    assert [row["_corrupt_record"] is None for row in rows] == [True, False, True]


def test_json_and_msgpack_in_one_batch_keep_their_rows() -> None:
    rows = read([b'{"a":0}', packed({"a": 1}), b"no json", packed(5), b'{"a":4}', packed({"a": 5})])
    assert [row["a"] for row in rows] == [0, 1, None, None, 4, 5]
    assert [row["_corrupt_record"] for row in rows] == [None, None, b"no json", b"\x05", None, None]


whole = packed({"a": 7})
cut_off, surplus = raw(split_payload(whole)[0][:-1]), raw(split_payload(whole)[0] * 2)
swallowing = raw(
    b"\x81\xa1a\xc4\x14"
)  # a binary that is as long as what stands before the next value, and one byte more


@pytest.mark.parametrize(
    "payloads",
    [
        [cut_off, whole, surplus],
        [surplus, whole, cut_off],
        [swallowing, whole],
        [swallowing, raw(b"\x81" + split_payload(whole)[0]), surplus, whole],
        [raw(b""), whole],
        [raw(b"\xdd\xff\xff\xff\xff"), whole],
        [raw(b"\x81" * 100_000), whole],
        [raw(b"\x81\x01\x02"), whole],
    ],
)
def test_a_payload_that_is_malformed_shifts_no_other(payloads: list[Payload]) -> None:
    rows = read(payloads)
    for payload, row in zip(payloads, rows, strict=True):
        good = payload is whole
        assert row["a"] == (7 if good else None)
        assert row["_corrupt_record"] == (None if good else split_payload(payload)[0])


def _mutate(data: bytes, at: int, byte: bytes) -> bytes:
    return data[: at % (len(data) + 1)] + byte + data[at % (len(data) + 1) + 1 :]


mutated = st.builds(
    _mutate,
    st.sampled_from(
        [split_payload(packed(value))[0] for value in (WHOLE, {"a": 1, "a name": "x" * 40}, {"list": [1]})]
    ),
    st.integers(0, 300),
    st.binary(max_size=2),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(mutated | st.binary(max_size=30), min_size=1, max_size=8))
def test_a_row_is_the_same_alone_and_among_others(given_values: list[bytes]) -> None:
    payloads = [raw(data) for data in given_values]
    together = read(payloads)
    alone = [read([payload])[0] for payload in payloads]
    assert repr(together) == repr(alone)  # nan is not equal to itself
