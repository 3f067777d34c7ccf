"""Columns under attack: payloads that hold Spark, values and names that attackers choose, without a bridge."""

from __future__ import annotations

import json
import random
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from iris import spark_bridge
from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.json_values import pack, unpack
from iris.spark_bridge.events.schema import SCHEMA
from tests.support.payloads import frame, long

pytestmark = pytest.mark.long
CORRUPT = ("_corrupt_record", "_corrupt_reason")


def rows_differ(spark: SparkSession, fields: str, values: list[bytes], **options: str) -> list[bytes]:
    """Return the payloads of which ``parse`` makes other fields, as texts, than ``from_json`` does."""
    df = frame(spark, *values)
    schema = StructType.fromDDL(fields)
    assert isinstance(schema, StructType)
    texts = [fn.col(f"`{field.name}`").cast("string") for field in schema]
    own = spark_bridge.parse(df, fields, options=options).orderBy("_offset").select(*texts, *CORRUPT).collect()
    whole = fn.from_json(
        fn.col("value").cast("string"), f"{fields}, bad STRING", {**options, "columnNameOfCorruptRecord": "bad"}
    )
    other = df.select("offset", whole.alias("p")).orderBy("offset").select("p.*").select(*texts, "bad").collect()
    for value, row in zip(values, own, strict=True):
        assert row[-2:] in ((None, None), (value, "unfit"))
    return [
        value
        for value, one, two in zip(values, own, other, strict=True)
        if one[:-2] != two[:-1] or (one[-1] is None) != (two[-1] is None)
    ]


FIELDS = (
    "s STRING, n BIGINT, d DOUBLE, f FLOAT, t TIMESTAMP, nt TIMESTAMP_NTZ, day DATE, i INTERVAL DAY TO SECOND, "
    "y INTERVAL YEAR TO MONTH, b BINARY, m MAP<STRING, STRING>, l ARRAY<STRUCT<x: INT>>"
)
TEXTS: tuple[bytes, ...] = (
    b'\xef\xbb\xbf{"s":"bom"}', b'{"s":"a","s":"b"}', b'{"s":"\\udc00\\ud83d"}', b'{"s":"\x00"}', b'{"s":"\\u0000"}',
    '{"s":"x"}'.encode("utf-16"), '{"s":"x"}'.encode("utf-32"), b'{"s":"\xed\xa0\x80"}', b'{"s":"\xf4\x90\x80\x80"}',
    b'{"i":"INTERVAL \'1 2:3:4.5\' DAY TO SECOND"}', b'{"i":"%s"}' % (b"9" * 300), b'{"y":"%s-1"}' % (b"9" * 100),
    b'{"m":{"a":1,"a":2}}', b'{"m":{"a":{"b":1.50}}}', b'{"l":[{"x":1},{"x":"q"}]}', b'{"l":{"x":1}}', b'{"S":"x"}',
    b'{"s":"x"}{"s":"y"}', b'[{"s":"x"},{"s":"y"}]', b"[]", b"{}", b"  ", b'{"_corrupt_record":"mine"}',
    b'{"n":9223372036854775808}', b'{"n":1.0}', b'{"d":"NaN"}', b'{"d":1e400}', b'{"f":1e39}', b'{"t":1e18}',
    b'{"t":9999999999999999999}', b'{"t":"294247-01-10T04:00:54.775807Z"}', b'{"t":"now"}', b'{"day":99999999999}',
    b'{"nt":"2020-01-01 1:1:1"}', b'{"b":"!!"}', b"{s:'x'}", b'{"n":007}', b'/*c*/{"s":"x"}', b'{"s":1e99999}',
    b'{"q":' + b"[" * 1100, b'{"s":' + b"1" * 1001 + b"}", b'{"s":' + b"[" * 999 + b"]" * 999 + b"}",
    b'{"%s":1}' % (b"k" * 60_000),
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"primitivesAsString": "true", "allowComments": "true", "allowUnquotedFieldNames": "true"},
        {"allowNumericLeadingZeros": "true", "allowNonNumericNumbers": "false", "allowUnquotedControlChars": "true"},
        {"timestampFormat": "yyyy-MM-dd", "dateFormat": "dd/MM", "timeZone": "Asia/Kathmandu", "locale": "de"},
    ],
)
def test_texts_of_strangers_are_read_as_from_json_reads_them(spark: SparkSession, options: dict[str, str]) -> None:
    assert rows_differ(spark, FIELDS, [*TEXTS], **options) == []


def test_texts_with_numbers_are_read_as_from_json_reads_them_beside_a_decimal(spark: SparkSession) -> None:
    chosen = random.Random(8)
    numbers = ["1e5", "1E+5", "1e-9999", ".5", "5.", "1,0,0e5", "0x10", "1_000", "+1", "00001", "1e00005", "9" * 39]
    numbers += ["".join(chosen.choices("0123456789.,+-eE _x'", k=chosen.randrange(1, 7))) for _ in range(600)]
    forms = ('{"amount":%s}', '{"amount":"%s","s":"k"}', '{"s":"%s"}', '{"l":[%s,1e-05]}')
    values = [(form % number).encode() for number in numbers for form in forms]
    assert rows_differ(spark, "amount DECIMAL(20,4), s STRING, l ARRAY<DECIMAL(38,18)>", values) == []


def test_many_exponents_that_are_not_long_do_not_hold_a_decimal(spark: SparkSession) -> None:
    """From_json alone takes minutes for 1 MiB of these."""
    numbers = (b"1e-9999", b'"1e-9999"', b'"-9e-9,9,9,9"', b"12345.678E-09999", "'\uff11e-9999'".encode())
    values = [
        b'{"x":[' + separator.join([number] * count) + b"]}"
        for number in numbers
        for separator in (b",", b" ,\n\t")
        for count in (16, 17, 100_000)
    ]
    rows = (
        spark_bridge.parse(frame(spark, *values), "x ARRAY<DECIMAL(38,2)>")
        .orderBy("_offset")
        .select("_corrupt_reason")
        .collect()
    )
    assert [row[0] for row in rows] == [None, "unfit", "unfit"] * (len(values) // 3)
    usual = b'{"x":[1],"d":[' + b",".join([b"1e-300"] * 100) + b"]}"
    (row,) = spark_bridge.parse(frame(spark, usual), "x ARRAY<DECIMAL(38,2)>, d ARRAY<DOUBLE>").collect()
    assert (len(row.d), row["_corrupt_reason"]) == (100, None)


def test_long_texts_hold_no_type(spark: SparkSession) -> None:
    size = 2**18
    units = (b"1:", b"-", b"1-", b"INTERVAL ", b"1 day ", b"-1 days -", b".", b"+", b"P1Y", b"1e", b"=", b"\\n", b"A")
    values = [b'{"x":"%s"}' % (unit * (size // len(unit))) for unit in units]
    for kind in ("INTERVAL DAY TO SECOND", "INTERVAL YEAR TO MONTH", "INTERVAL", "TIME(6)", "TIMESTAMP_NTZ", "VARIANT"):
        rows = spark_bridge.parse(frame(spark, *values), f"x {kind}").select("_corrupt_reason").collect()
        assert {row[0] for row in rows} <= {None, "unfit"}


def test_a_row_is_read_alike_beside_any_others(spark: SparkSession) -> None:
    fields = "s STRING, n BIGINT, amount DECIMAL(9,2)"
    values = [*TEXTS, b'{"s":"x","n":1,"amount":2}', b'{"amount":1e400000000}']

    def read(order: list[bytes]) -> dict[bytes, tuple[Any, ...]]:
        rows = spark_bridge.parse(frame(spark, *order), fields).orderBy("_offset").collect()
        return {value: (*row[:3], *row[3:5]) for value, row in zip(order, rows, strict=True)}

    assert read(values) == read(values[::-1]) == read([*values, *values])


# -- names -----------------------------------------------------------------------------------------------------


def test_columns_of_any_name_keep_what_they_hold(spark: SparkSession) -> None:
    df = frame(spark, b'{"a":1,"parsed":2,"reason":3,"__parsed":4}')
    names = ["a.b", "c`d", "parsed", "__parsed", "_corrupt_record", "_corrupt_reason", "reason", "_key", "", "e f"]
    for at, name in enumerate(names):
        df = df.withColumn(name, fn.lit(at))
    (row,) = spark_bridge.parse(df, "a INT, parsed INT, reason INT").collect()
    assert (row.a, row.parsed, row.reason, row["_corrupt_record"]) == (1, 2, 3, None)
    assert {name: row[f"_{name}"] for name in names} == {name: at for at, name in enumerate(names)}


def test_a_payload_within_a_payload_keeps_the_reason_of_the_outer_one(spark: SparkSession) -> None:
    df = frame(spark, b'{"inner":"{}"}', b"nonsense")
    outer = spark_bridge.parse(df, "inner STRING").withColumn("value", fn.coalesce("inner", fn.lit('{"n":1}')))
    rows = spark_bridge.parse(outer.drop("inner"), "n INT").orderBy("__offset").collect()
    assert [(row.n, row["_corrupt_reason"], row["__corrupt_reason"]) for row in rows] == [
        (None, None, None),
        (1, None, "unfit"),
    ]


@pytest.mark.parametrize("name", ["corrupt_record", "Corrupt_Reason", "OFFSET"])
def test_two_columns_of_one_name_are_refused(spark: SparkSession, name: str) -> None:
    df = frame(spark, b"{}")
    df = df.select("*", fn.lit(1).alias(name))
    with pytest.raises(ConfigError, match="two columns would be _"):
        spark_bridge.parse(df, "a INT")


def test_a_schema_without_fields_tells_what_fits(spark: SparkSession) -> None:
    for schema in ("", StructType([])):
        rows = spark_bridge.parse(frame(spark, b"{}", b"x", None), schema).orderBy("_offset").collect()
        assert [row["_corrupt_reason"] for row in rows] == [None, "unfit", None]


# -- msgpack ---------------------------------------------------------------------------------------------------


def unpacked(value: bytes) -> tuple[bytes, bytes, bool]:
    """Return what the source makes of msgpack, what it says it is, and whether the sink makes the same of that."""
    row = {"value": value, "topic": "t", "partition": 0, "offset": 0, "timestampType": 1}
    batch = pa.RecordBatch.from_pylist([{**row, "headers": [("iris-encoding", b"msgpack")]}], schema=SCHEMA)
    made = unpack(batch)
    (found,) = made.to_pylist()
    return found["value"], found["headers"][0]["value"], pack(made).to_pylist() == batch.to_pylist()


def test_msgpack_that_would_not_come_back_is_left_as_it_is() -> None:
    for levels in (1, 499, 500):
        assert unpacked(b"\x91" * levels + b"\xc0")[1:] == (b"json", True)
        assert unpacked(b"\x81\xa1a" * levels + b"\xc0")[1:] == (b"json", True)
    for value in (
        *(start * levels + b"\xc0" for start in (b"\x91", b"\x81\xa1[") for levels in (501, 900, 1024, 100_000)),
        b"\x82\xa1a\x01\xa1a\x02", b"\xa3\xed\xa0\x80", b"\xa1\xff", b"\x01\x02", b"", b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xd7\xff" + b"\xff" * 8,
        b"\x81\xc4\x01a\x01", b"\x81\xc0\x01", b"\x81\x90\x01", b"\xdd\x00\x01\x00\x01" + b"\x80" * 65_537,
    ):  # fmt: skip
        assert unpacked(value) == (value, b"msgpack", True)
    assert unpacked(msgpack.packb(["[" * 5000] * 9))[1:] == (b"json", True)


def test_values_of_all_kinds_come_back_from_json() -> None:
    chosen = random.Random(5)

    def value(depth: int = 0) -> Any:
        if depth < 4 and chosen.random() < 0.3:
            count = chosen.randrange(4)
            if chosen.random() < 0.5:
                return [value(depth + 1) for _ in range(count)]
            return {chr(chosen.randrange(0xD800)) * at: value(depth + 1) for at in range(count)}
        leaves = (None, True, chosen.randrange(-(2**63), 2**64), float(chosen.randrange(10**20)), -0.0, 5e-324, "")
        return chosen.choice((*leaves, chosen.uniform(-1e9, 1e9) * 10.0 ** chosen.randrange(-300, 290)))

    for _ in range(2000):
        packed = msgpack.packb([value()])
        assert unpacked(packed)[1:] == (b"json", True), packed


# -- Avro ------------------------------------------------------------------------------------------------------


def record(*kinds: Any) -> str:
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
MAP = {"type": "map", "values": ["null", "int"]}
INTS = {"type": "array", "items": "int"}
LISTS = {"type": "array", "items": INTS}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38}


@pytest.mark.parametrize(
    ("kinds", "fits", "misfits"),
    [
        ([ENUM], [b"\0"], [long(5), long(-1), long(2**40)]),
        ([["null", "int", "string"]], [b"\0", b"\2\6"], [long(9), long(-1), b"\4" + long(-5), b"\4" + long(2**31 + 5)]),
        (
            [INTS],
            [long(-2) + long(2) + b"\2\4\0", long(-2) + long(-9) + b"\2\4\0"],
            [long(-(2**63)), long(2**63 - 1), long(2**31) + b"\2", b"\2\2" + long(2**20) + b"\2", long(-(2**31))],
        ),
        ([MAP], [b"\2\0\0\0"], [long(2**31), b"\2" + long(-3), long(2**20) + b"\0\0"]),
        ([LISTS], [b"\0"], [(b"\2" + long(2**20)) * 9000, (long(20) + (long(2**20) + b"\0" * 5) * 20)]),
        ([INTS] * 40, [b"\0" * 40], [long(2**20) * 40]),
        (["bytes"] * 3, [b"\0" * 3], [long(2**26) * 3, long(2**31 - 1), long(-1)]),
        ([DECIMAL], [b"\2\5"], [b"\0", long(100) + b"\x7f" * 100]),
        (["int", "long"], [b"\x80\x80\x80\x80\0\2"], [b"\xff" * 11, b"\xff\xff\xff\xff\xff\1\2"]),
    ],
    ids=["enum", "union", "array", "map", "lists", "arrays", "bytes", "decimal", "varint"],
)
def test_avro_of_strangers_fits_or_does_not(
    avro: SparkSession, kinds: list[Any], fits: list[bytes], misfits: list[bytes]
) -> None:
    df = spark_bridge.parse(frame(avro, *fits, *misfits, None), record(*kinds), format="avro")
    rows = df.orderBy("_offset").select(*CORRUPT).collect()
    assert [tuple(row) for row in rows] == [
        *((None, None) for _ in fits),
        *((value, "unfit") for value in misfits),
        (None, None),
    ]


def test_ids_at_both_ends_are_read_and_others_refused(avro: SparkSession) -> None:
    schema = record("int")
    values = [b"\0\xff\xff\xff\xff\2", b"\0\0\0\0\0\4", b"\0\x7f\xff\xff\xff\2", b"\1\0\0\0\0\2", b"\0\0\0\0"]
    df = spark_bridge.parse(
        frame(avro, *values), schema, format="avro", schemas={0: schema, 2**32 - 1: schema}, unknown="corrupt"
    )
    rows = df.orderBy("_offset").collect()
    assert [row.f0 for row in rows] == [1, 2, None, None, None]
    assert [row["_corrupt_reason"] for row in rows] == [None, None, "unknown", "unframed", "unframed"]
    for wrong in (-1, 2**32, "7", True, None, 1.0):
        for kind, one in (("avro", schema), ("protobuf", b"")):
            given: Any = {wrong: one}
            with pytest.raises(ConfigError, match="schemas has the id"):
                spark_bridge.parse(frame(avro, b""), schema, format=kind, schemas=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schema",
    [
        record({"type": "array", "items": {"type": "error", "name": "E", "fields": []}}),
        record({"type": "map", "values": [{"type": "record", "name": "E", "fields": []}]}),
        record({"type": "array", "items": ["int", {"type": {"type": "null"}}]}),
        '{"type":"record","name":"R","fields":[{"name":"a","type":' + '{"type":' * 5000 + '"int"' + "}" * 5002,
        None,
    ],
)
def test_schemas_that_could_hold_anything_are_refused(avro: SparkSession, schema: Any) -> None:
    of_all: dict[str, Any] = {"schema": schema}
    of_one: dict[str, Any] = {"schema": record("int"), "schemas": {1: schema}}
    for given in (of_all, of_one):
        with pytest.raises(ConfigError):
            spark_bridge.parse(frame(avro, b""), **given, format="avro")
