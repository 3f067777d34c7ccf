"""Payloads as columns: what fits a user's schema becomes values, and what does not is taken for nothing else."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError
from iris.kernel.wire.kinds import Payload
from iris.kernel.wire.payload import encode_payload, join_payload, split_payload
from iris.spark_bridge.datasource.payloads import Mode, TimeFormats, check_log_columns, typed_columns
from iris.spark_bridge.datasource.payloads.decoding import PayloadDecoder
from iris.spark_bridge.datasource.payloads.kinds import StructFields
from iris.spark_bridge.errors import PayloadUnfit
from iris.spark_bridge.events.schema import SCHEMA, decode_events, encode_events
from tests.support.arrivals import fake_event

TIMESTAMP = pa.timestamp("us", tz="UTC")
FIELDS: list[tuple[str, pa.DataType]] = [("a", pa.int64()), ("b", pa.string())]


def read(
    payloads: list[Payload], fields: list[tuple[str, pa.DataType]] = FIELDS, *, mode: Mode = "PERMISSIVE"
) -> list[dict[str, Any]]:
    """Return the rows of events with these payloads, as they come out of the log."""
    stored = encode_events([fake_event(payload) for payload in payloads], shard=3, first=40, timestamp=0)
    typed = typed_columns(pa.schema(fields), corrupt="_corrupt_record", mode=mode)
    batch = typed.parse(decode_events(stored.serialize().to_pybytes()))
    batch.validate(full=True)
    assert batch.schema.equals(pa.schema(fields))
    return batch.to_pylist()


def packed(value: object) -> Payload:
    return encode_payload(value, MIB)


def test_fields_become_columns_whether_json_or_msgpack() -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "ü\n", "more": [1]}, {}]
    payloads: list[Payload] = [json.dumps(row).encode() for row in rows]
    expected = [{"a": 1, "b": "x"}, {"a": 2, "b": "ü\n"}, {"a": None, "b": None}]
    assert read(payloads) == expected
    assert read([packed(row) for row in rows]) == expected
    assert read([payloads[0], packed(rows[1]), payloads[2]]) == expected


def test_a_text_is_read_as_json_also_from_older_logs() -> None:
    text = '{"a": 1, "b": "ü"}'
    assert read([packed(text), text.encode(), packed({"a": 2})]) == [{"a": 1, "b": "ü"}] * 2 + [{"a": 2, "b": None}]
    # Before texts were stored as such they were in the log as msgpack.
    stored = encode_events([fake_event(packed([]))] * 2, shard=0, first=0, timestamp=0)
    values = pa.array([split_payload(packed(text))[0], split_payload(packed({"a": 3}))[0]], pa.binary())
    former = pa.RecordBatch.from_arrays([stored.column(0), values, *stored.columns[2:]], schema=SCHEMA)
    typed = typed_columns(pa.schema(FIELDS), corrupt="_corrupt_record", mode="FAILFAST")
    assert typed.parse(former).to_pylist() == [{"a": 1, "b": "ü"}, {"a": 3, "b": None}]


def test_every_kind_of_value_is_read() -> None:
    kinds: list[tuple[str, pa.DataType]] = [
        ("yes", pa.bool_()),
        ("small", pa.int8()),
        ("real", pa.float64()),
        ("exact", pa.decimal128(10, 2)),
        ("at", TIMESTAMP),
        ("list", pa.list_(pa.field("element", pa.int32()))),
        ("inner", pa.struct([pa.field("x", pa.string())])),
    ]
    text = b'{"yes":true,"small":-5,"real":2,"exact":12.5,"at":"2013-01-01T10:00:00Z","list":[1,2],"inner":{"x":"y"}}'
    (row,) = read([text], kinds)
    assert (row["yes"], row["small"], row["real"], str(row["exact"])) == (True, -5, 2.0, "12.50")
    assert row["at"].isoformat() == "2013-01-01T10:00:00+00:00"
    assert (row["list"], row["inner"]) == ([1, 2], {"x": "y"})


def test_columns_of_the_log_stand_beside_those_of_the_payload() -> None:
    fields: list[tuple[str, pa.DataType]] = [("_offset", pa.int64()), ("a", pa.int64()), ("_topic", pa.string())]
    assert read([b'{"a":7}', b'{"a":8}'], fields) == [
        {"_offset": 40, "a": 7, "_topic": "a.b"},
        {"_offset": 41, "a": 8, "_topic": "a.b"},
    ]


UNFIT = [
    b"",
    b" ",
    b"no json",
    b"5",
    b"[1]",
    b'"x"',
    b'{"a":1',
    b'{"a":1}{"a":2}',
    b'{"a":1}\n{"a":2}',
    b'{"a":1}}\n{"v":{"a":2}',
    b'1}{"v":2',
    b'{"a":1.5}',
    b'{"a":"1"}',
    b'{"a":99999999999999999999}',
    b"null",
    b'{"a":1,}',
    b'{"b":"\xff"}',
    packed(5),
    packed([1]),
    packed({"a": "x"}),
    packed({"a": math.nan}),
    packed({"b": b"\xff"}),
]


@pytest.mark.parametrize("payload", UNFIT)
def test_a_payload_that_does_not_fit_keeps_its_row_and_no_other_is_touched(payload: Payload) -> None:
    fields: list[tuple[str, pa.DataType]] = [*FIELDS, ("_corrupt_record", pa.binary())]
    good = b'{"a":1,"b":"x"}'
    rows = read([good, payload, good], fields)
    whole = {"a": 1, "b": "x", "_corrupt_record": None}
    raw = payload if isinstance(payload, bytes) else payload.data
    assert rows == [whole, {"a": None, "b": None, "_corrupt_record": raw}, whole]
    assert read([payload, good]) == [{"a": None, "b": None}, {"a": 1, "b": "x"}]


def test_a_payload_that_does_not_fit_may_be_an_error_that_names_it() -> None:
    with pytest.raises(PayloadUnfit, match=r"event 42 of shard 3, on topic 'a.b'.*PERMISSIVE"):
        read([b"{}", b"{}", b"nonsense", b"{}"], mode="FAILFAST")
    assert len(read([b"{}", b"{}"], mode="FAILFAST")) == 2


def test_a_payload_that_does_not_fit_may_be_left_out() -> None:
    fields: list[tuple[str, pa.DataType]] = [("_offset", pa.int64()), *FIELDS, ("_corrupt_record", pa.string())]
    rows = read([b'{"a":1}', b"nonsense", packed({"a": 2}), packed(5)], fields, mode="DROPMALFORMED")
    assert [(row["_offset"], row["a"], row["_corrupt_record"]) for row in rows] == [(40, 1, None), (42, 2, None)]
    assert read([b"nonsense"], mode="DROPMALFORMED") == []


values = st.one_of(
    st.fixed_dictionaries({}, optional={"a": st.none() | st.integers(-(2**63), 2**63 - 1), "b": st.none() | st.text()}),
    st.sampled_from(UNFIT),
)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=20), st.booleans())
def test_each_row_is_its_own_payload(given_values: list[Any], as_msgpack: bool) -> None:
    payloads: list[Payload] = [
        (packed(cast("object", value)) if as_msgpack else json.dumps(value).encode())
        if isinstance(value, dict)
        else value
        for value in given_values
    ]
    for value, row in zip(given_values, read(payloads), strict=True):
        fits = isinstance(value, dict)
        assert row == {name: value.get(name) if fits else None for name in ("a", "b")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("a", pa.duration("us"))], "column a of the schema is duration"),
        (
            [("a", pa.struct([pa.field("x", pa.map_(pa.int32(), pa.string()))]))],
            "column a.x .* keys are int32",
        ),
        ([("a", pa.int64()), ("_offset", pa.int32())], "column _offset of the schema is int32: the log's is int64"),
        ([("a", pa.int64()), ("_corrupt_record", pa.int32())], "use string or binary"),
        ([("_topic", pa.string())], "names no field of the payload"),
        ([("a", pa.int64()), ("_ofset", pa.int64())], "column _ofset .*: did you mean _offset"),
        ([("a", pa.int64()), ("_x", pa.int64())], "column _x .*: use _key, _value,.* _corrupt_record"),
        ([("a", pa.int64()), ("a", pa.string())], "column a is in the schema more than once"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(fields: list[tuple[str, pa.DataType]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        typed_columns(pa.schema(fields), corrupt="_corrupt_record", mode="PERMISSIVE")


def test_columns_that_are_not_null_are_refused() -> None:
    with pytest.raises(ConfigError, match="NOT NULL"):
        typed_columns(
            pa.schema([pa.field("a", pa.int64(), nullable=False)]), corrupt="_corrupt_record", mode="PERMISSIVE"
        )


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [("_offset", "is '_offset', a column of the log"), ("odd", "is 'odd', and the schema has no such column: add it")],
)
def test_a_column_for_what_does_not_fit_is_one_of_the_schema_and_not_of_the_log(corrupt: str, message: str) -> None:
    fields = [("a", pa.int64()), ("_offset", pa.int64())]
    with pytest.raises(ConfigError, match=f"option columnNameOfCorruptRecord {message}"):
        typed_columns(pa.schema(fields), corrupt=corrupt, mode="PERMISSIVE")


def test_the_columns_of_the_log_have_the_logs_types() -> None:
    check_log_columns(SCHEMA)
    other = pa.schema([pa.field("value", pa.string()) if field.name == "value" else field for field in SCHEMA])
    with pytest.raises(ConfigError, match="column value of the schema is string, and the log's is binary: leave"):
        check_log_columns(other)


def deep(depth: int) -> bytes:
    return b'{"a":1,"more":' + b"[" * depth + b"]" * depth + b"}"


texts = st.one_of(
    st.sampled_from([item for item in UNFIT if isinstance(item, bytes)]),
    st.sampled_from(
        [
            b"null",
            b'{"a":1.0}',
            b'{"a":1e2}',
            b'{"b":"\n"}',
            b'{"b":\n"x"}',
            b'{"more":"\n","a":1}',
            b'{"b":"\\ud800"}',
            b'{"b":"\\udc00"}',
            b'{"c":1e300}',
            b'{"c":3.5e38}',
            b'{"c":3.4028235e38}',
            b'{"c":NaN}',
            b'{"c":-Infinity}',
            b'{"c":Inf}',
            b'{"more":NaN}',
            b'{"c":1e999}',
            b'{"c":' + b"9" * 400 + b"}",
            b'{"more":1e999}',
            b'{"d":["2013-01-01",null]}',
            b'{"d":["now"]}',
            b'{"e":{"x":"1.25"}}',
            b'{"e":{"x":1.25}}',
            b'{"e":{"x":1.255}}',
            b'{"more":"\xff"}',
            b"\xef\xbb\xbf{}",
            deep(100),
            deep(3000),
            deep(100_000),
        ]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abcdex"), inner),
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=8))
def test_whether_a_payload_fits_does_not_depend_on_those_beside_it(payloads: list[Payload]) -> None:
    fields: list[tuple[str, pa.DataType]] = [
        *FIELDS,
        ("c", pa.float32()),
        ("d", pa.list_(pa.field("element", TIMESTAMP))),
        ("e", pa.struct([pa.field("x", pa.decimal128(10, 2))])),
        ("_corrupt_record", pa.binary()),
    ]
    # As texts, for nan equals nothing.
    assert repr(read(payloads, fields)) == repr([read([payload], fields)[0] for payload in payloads])


@pytest.mark.parametrize(
    "payload",
    [b'{"real":1e300}', b'{"real":-3.5e38}', b'{"wide":1e999}', b'{"all":[{"x":1e39}]}', packed({"real": 1e300})],
)
def test_a_number_that_its_column_cannot_hold_does_not_fit(payload: Payload) -> None:
    fields: list[tuple[str, pa.DataType]] = [
        ("real", pa.float32()),
        ("wide", pa.float64()),
        ("all", pa.list_(pa.field("element", pa.struct([pa.field("x", pa.float32())])))),
        ("_corrupt_record", pa.binary()),
    ]
    raw = payload if isinstance(payload, bytes) else payload.data
    empty = {"real": None, "wide": None, "all": None}
    assert read([payload, b'{"wide":1e300}'], fields) == [
        {**empty, "all": [{"x": None}] if payload == b'{"all":[{"x":1e39}]}' else None, "_corrupt_record": raw},
        {**empty, "wide": 1e300, "_corrupt_record": None},
    ]


def test_nan_and_infinity_are_read_as_python_writes_them() -> None:
    rows = [
        json.dumps({"x": math.nan}).encode(),
        packed({"x": math.inf}),
        b'{"x":-Infinity}',
        b'{"x":1e999}',
        b"no json",
    ]
    values = [row["x"] for row in read(rows, [("x", pa.float64())])]
    assert repr(values) == repr([math.nan, math.inf, -math.inf, None, None])


def test_a_line_end_stands_between_values_and_not_within_a_string() -> None:
    fields: list[tuple[str, pa.DataType]] = [*FIELDS, ("_corrupt_record", pa.binary())]
    broken = b'{"a":2,"b":"x\ny"}'
    assert read([b'{"a":1,\n"b":"x\\ny"}', broken], fields) == [
        {"a": 1, "b": "x\ny", "_corrupt_record": None},
        {"a": None, "b": None, "_corrupt_record": broken},
    ]


def test_only_payloads_that_are_refused_are_looked_at_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[bytes] = []
    look = PayloadDecoder._convert_text

    def counted(fields: StructFields, value: bytes) -> object:
        looked_at.append(value)
        return look(fields, value)

    monkeypatch.setattr(PayloadDecoder, "_convert_text", staticmethod(counted))
    rows = read([b'{"a":1}', b"no json", b'{"a":"1"}', b'{"b":5}', b'{"b":true}'] * 1000)
    assert [row["a"] for row in rows] == [1, None, None, None, None] * 1000
    assert [row["b"] for row in rows] == [None, None, None, "5", "true"] * 1000
    assert looked_at == [b'{"a":"1"}', b'{"b":true}'] * 1000


ALL_KINDS: list[tuple[str, pa.DataType]] = [
    ("a", pa.int64()),
    ("a name", pa.string()),
    ("real", pa.float64()),
    ("yes", pa.bool_()),
    ("at", TIMESTAMP),
    ("day", pa.date32()),
    ("exact", pa.decimal128(10, 2)),
    ("raw", pa.binary()),
    ("list", pa.list_(pa.field("element", pa.int32()))),
    ("lists", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.date32()))))),
    ("inner", pa.struct([pa.field("x", pa.string())])),
    ("map", pa.map_(pa.string(), pa.struct([pa.field("x", pa.decimal128(4, 1))]))),
    ("_corrupt_record", pa.binary()),
]
WHOLE: dict[str, Any] = {
    "a": -5,
    "a name": 'ü\n"\\',
    "real": 2,
    "yes": True,
    "at": "2013-01-01T10:00:00Z",
    "day": "2013-02-28",
    "exact": 12.5,
    "list": [1, None],
    "lists": [["2013-01-01"], [], None, ["2013-01-02", "2013-01-03"]],
    "inner": {"x": "y", "more": [{}]},
    "map": {"k": {"x": 1.5}, "l": None, "m": {}},
}


def test_json_and_msgpack_of_all_kinds_are_the_same_beside_rows_that_are_not_whole() -> None:
    payloads: list[Payload] = []
    for whole in (WHOLE, {}, dict.fromkeys(WHOLE), WHOLE):
        text = json.dumps({**whole, "raw": "AP8="} if whole is WHOLE else whole).encode()
        payloads += [text, packed({**whole, "raw": b"\0\xff"} if whole is WHOLE else whole)]
    first, same, *rest = read(payloads, ALL_KINDS)
    assert first == same == rest[-1] == rest[-2]
    assert rest[:-2] == [dict.fromkeys(dict(ALL_KINDS), None)] * 4
    assert (first["raw"], str(first["day"]), str(first["exact"])) == (b"\0\xff", "2013-02-28", "12.50")
    assert [len(inner) if inner is not None else None for inner in first["lists"]] == [1, 0, None, 2]
    assert str(first["map"]) == "[('k', {'x': Decimal('1.5')}), ('l', None), ('m', {'x': None})]"


@pytest.mark.parametrize(
    ("payload", "left"),
    [
        ({"a": 1, "day": "2013-02-30"}, {"a": 1}),
        ({"a": 1, "at": "2013-02-30T10:00:00Z", "day": "2013-02-28"}, {"a": 1, "day": "2013-02-28"}),
        ({"a": 1, "exact": 1.255}, {"a": 1}),
        ({"a": 1, "exact": 123456789}, {"a": 1}),
        ({"a": 1, "lists": [["2013-01-01"], ["no date"]]}, {"a": 1}),
        (
            {"a": 1, "map": {"k": {"x": 1}, "l": {"x": 1000}}},
            {"a": 1, "map": "[('k', {'x': Decimal('1.0')}), ('l', {'x': None})]"},
        ),
        ({"a": 1, "map": {"k": 5}}, {"a": 1}),
        ({"a": 1, "list": [1, 2**31]}, {"a": 1}),
        ({"a": "x", "list": [1]}, {"list": "[1]"}),
    ],
)
def test_what_fits_of_a_payload_stays(payload: dict[str, Any], left: dict[str, Any]) -> None:
    good = {"a": 2, "day": "2013-01-01", "exact": 1, "lists": [["2013-01-01"]], "map": {"k": None}}
    payloads: list[Payload] = [json.dumps(good).encode(), json.dumps(payload).encode(), packed(payload), packed(good)]
    before, *both, after = read(payloads, ALL_KINDS)
    assert before == after
    assert before["_corrupt_record"] is None
    for row in both:
        assert row.pop("_corrupt_record") is not None
        found = {name: value for name, value in row.items() if value is not None}
        assert {name: str(value) for name, value in found.items()} == {name: str(value) for name, value in left.items()}


def test_bytes_that_are_text_are_text() -> None:
    assert [row["b"] for row in read([packed({"b": b"x"}), packed({"b": "y"})])] == ["x", "y"]


def test_times_are_read_as_their_formats_say() -> None:
    formats = TimeFormats(timestamp="dd.MM.yyyy HH:mm[:ss.SSS]", date="d MMM yyyy", zone="Europe/Berlin")
    fields = [pa.field("at", TIMESTAMP), pa.field("day", pa.date32()), pa.field("_corrupt_record", pa.string())]
    typed = typed_columns(pa.schema(fields), corrupt="_corrupt_record", mode="PERMISSIVE", formats=formats)
    payloads: list[Payload] = [
        b'{"at":"05.07.2013 10:00","day":"5 Jul 2013"}',
        packed({"at": "05.01.2013 10:00:01.250"}),
        b'{"at":"2013-01-05T10:00:00Z"}',
    ]
    stored = encode_events([fake_event(payload) for payload in payloads], shard=3, first=40, timestamp=0)
    first, second, third = typed.parse(decode_events(stored.serialize().to_pybytes())).to_pylist()
    assert (first["at"].isoformat(), str(first["day"])) == ("2013-07-05T08:00:00+00:00", "2013-07-05")
    assert second["at"].isoformat() == "2013-01-05T09:00:01.250000+00:00"
    assert third == {"at": None, "day": None, "_corrupt_record": '{"at":"2013-01-05T10:00:00Z"}'}


def raw(data: bytes) -> Payload:
    """Return what a peer may send for a packed value."""
    return join_payload(data, packed=True)


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
@given(
    st.lists(
        mutated | st.binary(max_size=30) | st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\x81" * 100_000]), min_size=1
    )
)
def test_a_row_of_msgpack_is_the_same_alone_and_among_others(given_values: list[bytes]) -> None:
    payloads = [raw(data) for data in given_values]
    together = read(payloads, ALL_KINDS)
    alone = [read([payload], ALL_KINDS)[0] for payload in payloads]
    assert repr(together) == repr(alone)  # nan is not equal to itself
