"""Columns of payloads: what ``parse`` gives is what Spark's own functions give, and nothing that fits is changed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.readwriter import DataStreamReader

from iris import spark_bridge
from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.json_values import pack, unpack
from iris.spark_bridge.events.schema import SCHEMA, SPARK_SCHEMA
from tests.support.bridges import BridgeProcess, publish
from tests.support.payloads import frame, long, payloads
from tests.support.spark_packages import PROTOBUF, spark_packages

PAYLOADS = [
    b'{"s":"x","n":1,"d":1.5,"t":"2024-03-10T02:30:00 PST","day":"24","b":"aGk=","m":{"k":[1,2]},"amount":12.345}',
    b'{"s":1.50,"n":128,"d":-INF,"amount":"7e-41"}',
    b'{"s":"\\ud800","t":"2024-03-10T02:30:00 posix/UTC","amount":"1_000"}',
    b'{"b":"aGV\\nsbG8=","n":1}',
    b'{"amount":1e9999}',
    b'{"s":"a1e123456","amount":0.5}',
    b'{"s":"12e45678-90ab","m":{"k":[1]},"amount":1e-05}',
    b'{"s":"\\u00e9a1e12345","d":1e-05,"x":[1e-05,12345678,9],"amount":"2e3"}',
    b'{"s":"x\\\\u","amount":"1,000.5"}',
    b'{"s":"3e\\u00e9","amount":"3e\\u6771","n":1}',
    b'{"s":"half',
    b"[1,2]",
    b'[{"s":"in a list"}]',
    b'"text"',
    b"null",
    b"",
    b"\xff\xfe",
    b'{"s":"\xff"}',
    b'{"n":1,"n":2}',
    b"{'s':'quoted'}",
    b'{"s":"x"} behind it',
    b'{"a":' * 1100,
    None,
]
FIELDS = (
    "s STRING, n TINYINT, d DOUBLE, t TIMESTAMP, day DATE, b BINARY, m MAP<STRING, ARRAY<INT>>, amount DECIMAL(10,2)"
)


def test_a_payload_in_a_text_that_does_not_fit_is_bytes(spark: SparkSession) -> None:
    rows = spark_bridge.parse(spark.createDataFrame([("é",), ('{"n":1}',)], "value STRING"), "n INT").collect()
    assert [tuple(row) for row in rows] == [(None, "é".encode(), "unfit"), (1, None, None)]


def test_json_is_read_as_from_json_reads_it(spark: SparkSession) -> None:
    """The same rows, beside the bytes of what does not fit and one fixed word."""
    values = [*PAYLOADS, *payloads(300, 7)]
    df = frame(spark, *values)
    own = spark_bridge.parse(df, FIELDS).orderBy("_offset").collect()
    text = fn.col("value").cast("string")
    options = {"columnNameOfCorruptRecord": "corrupt"}
    sparks = df.select(fn.from_json(text, f"{FIELDS}, corrupt STRING", options).alias("p")).select("p.*").collect()
    names = [name.split()[0] for name in FIELDS.replace("STRING, ARRAY", "").split(", ")]
    for payload, row, other in zip(values, own, sparks, strict=True):
        assert repr([row[name] for name in names]) == repr([other[name] for name in names]), payload  # NaN, too
        assert row["_corrupt_record"] == (None if other.corrupt is None else payload)
        assert row["_corrupt_reason"] == (None if other.corrupt is None else "unfit")
    assert {b"[1,2]", b"\xff\xfe"} <= {row["_corrupt_record"] for row in own}


@pytest.mark.parametrize(
    "payload",
    [
        b'{"s":"x","amount":1e-1000000000}',
        b'{"amount":0e-1000000000}',
        b'{"amount":"1e-500000000"}',
        b'{"amount" : +1E+500000000 }',
        b"{'amount':'1e400000000'}",
        b'{"amount":"1\\u0065-400000000"}',
        b'{"amount":"\xef\xbc\x91e-\xef\xbc\x94' + b"\xef\xbc\x90" * 8 + b'"}',
        b'{"deep":[{"amount":1.0e0050000000}]}',
        b'{"amount":"1e4,00,000000"}',
        b'{"amount":"1,e,-400000000"}',
        b'{"amount":"1e4\\u0030\\u0030000000"}',
        b'{"amount":"\\u0966\\u096ae-400000000"}',
        b'[1e5,2,{"amount":1},{"amount":1e400000000',
        b'{"amount":1e400000000x}',
        b'{"amount":"%s"}' % (b"1" * 2**20),
    ],
)
def test_a_decimal_that_would_take_spark_hours_does_not_fit(spark: SparkSession, payload: bytes) -> None:
    schema = "s STRING, amount DECIMAL(10,2), deep ARRAY<STRUCT<amount: DECIMAL(38,2)>>"
    (row,) = spark_bridge.parse(frame(spark, payload), schema).collect()
    assert (row.s, row.amount, row["_corrupt_reason"]) == (None, None, "unfit")
    assert bytes(row["_corrupt_record"]) == payload


def test_what_is_long_ends_soon(spark: SparkSession) -> None:
    long = [b"1" * 2**20, b" " * 2**20 + b"1", b"2024-01-01T00:00:00" + b"0" * 2**20, b"1e" + b"9" * 999, b"," * 2**20]
    values = [b'{"x":"%s"}' % text for text in long] + [b'{"x":%s}' % text for text in long] + [b'{"x":' * 2**17]
    for kind in ("DECIMAL(38,10)", "TIMESTAMP", "DATE", "DOUBLE", "BIGINT", "STRING"):
        rows = (
            spark_bridge.parse(frame(spark, *values), f"x {kind}").select("x", fn.length("_corrupt_record")).collect()
        )
        assert len(rows) == len(values)


def test_arguments_that_make_no_sense_are_refused(spark: SparkSession) -> None:
    df = frame(spark, b"{}")
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("a INT", {"format": "xml"}, "format is 'xml'"),
        ("a INT", {"unknown": "skip"}, "'skip'"),
        ("a INT", {"schemas": {1: "{}"}}, "schemas is about Avro"),
        ("a INT, _corrupt_record STRING", {}, "which parse adds itself"),
        ("a INT, _OFFSET INT", {}, "field _OFFSET .* another column"),
        ("a INT, A INT", {}, "field a .* another column"),
        ("MAP<STRING, INT>", {}, "name the fields"),
        *((text, {"format": "avro"}, "no schema of an Avro record") for text in ("{}", "[", '"int"')),
        ('{"type":"record","fields":[{"name":"n"}]}', {"format": "avro"}, "no schema of an Avro record"),
        (RECORD, {"format": "avro", "schemas": {}}, "schemas is empty"),
        (RECORD, {"format": "avro", "options": {"Mode": "FAILFAST"}}, "option Mode"),
        (RECORD, {"format": "avro", "options": {"recursiveFieldMaxDepth": "3"}}, "recursiveFieldMaxDepth"),
        ("a DECIMAL(9,2)", {"options": {"locale": "sv"}}, "option locale"),
        ("a INT", {"options": {"ColumnNameOfCorruptRecord": "x"}}, "option ColumnNameOfCorruptRecord"),
        *((arrays(items), {"format": "avro"}, "takes no bytes") for items in EMPTY),
        ("shop.Order", {"format": "protobuf"}, "need schemas"),
        ("shop.Order", {"format": "protobuf", "schemas": b"\xff"}, "no descriptor set"),
    )
    for schema, given, message in cases:
        with pytest.raises(ConfigError, match=message):
            spark_bridge.parse(df, schema, **given)
    with pytest.raises(ConfigError, match="reads the column value"):
        spark_bridge.parse(df.drop("value"), "a INT")


# -- msgpack -------------------------------------------------------------------------------------------------


def event(value: bytes | None, encoding: str | None) -> dict[str, Any]:
    headers = [("iris-sender", b"x"), *([("iris-encoding", encoding.encode())] if encoding else []), ("h", b"y")]
    return {"value": value, "topic": "t", "partition": 0, "offset": 0, "timestampType": 1, "headers": headers}


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"n": 1, "list": [None, 2.5, -0.0, 1e300], "é": "\x00\U0001f600"}, True),
        ({"big": 2**64 - 1, "small": -(2**63), "inner": {"a": {}}}, True),
        ([], True),
        (7, True),
        (True, True),
        ({"b": b"bytes"}, False),
        ({"f": float("nan")}, False),
        ([float("-inf")], False),
        ({1: 2}, False),
        ({"t": msgpack.Timestamp(1, 2)}, False),
        (msgpack.ExtType(5, b"x"), False),
    ],
)
def test_msgpack_becomes_json_where_it_has_such_a_form_and_comes_back(payload: Any, text: bool) -> None:
    rows = [event(b"raw", None), event(msgpack.packb(payload), "msgpack"), event(None, None), event(b"t", "utf-8")]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    for one, at in ((batch, 1), (batch.slice(1, 2), 0)):
        made = unpack(one)
        made.validate(full=True)
        row = made.to_pylist()[at]
        assert row["headers"][1]["value"] == (b"json" if text else b"msgpack")
        assert [pair["key"] for pair in row["headers"]] == ["iris-sender", "iris-encoding", "h"]
        assert not text or json.loads(row["value"]) == payload
        assert made.to_pylist()[:at] + made.to_pylist()[at + 1 :] == one.to_pylist()[:at] + one.to_pylist()[at + 1 :]
        assert pack(made).to_pylist() == one.to_pylist()


def test_what_is_not_msgpack_or_not_json_stays_as_it_is() -> None:
    for rows in (
        [event(b"\xc1", "msgpack"), event(b"\x81" * 2000, "msgpack"), event(b"\xdd\xff\xff\xff\xff", "msgpack")],
        [event(b"{}", None), event(None, "msgpack")],
        [],
    ):
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        assert unpack(batch).to_pylist() == batch.to_pylist()
    for value in (b"{", b"\xff", b"[" * 3000, b'{"a":1}x'):
        batch = pa.RecordBatch.from_pylist([event(value, "json")], schema=SCHEMA)
        assert pack(batch).to_pylist() == batch.to_pylist()


def test_a_text_of_an_older_log_is_a_text() -> None:
    batch = pa.RecordBatch.from_pylist([event(msgpack.packb('{"n":1}'), "msgpack")], schema=SCHEMA)
    (row,) = unpack(batch).to_pylist()
    assert (row["value"], row["headers"][1]["value"]) == (b'{"n":1}', b"utf-8")


# -- Avro ----------------------------------------------------------------------------------------------------

RECORD = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "item", "type": ["null", "string"], "default": None}, {"name": "n", "type": "int"}],
    }
)
OLD = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "n", "type": "int"}]})


EMPTY: tuple[Any, ...] = (
    "null",
    {"type": "null"},
    {"type": "record", "name": "E", "fields": []},
    {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]},
    ["null", {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}],
)


def arrays(items: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    )


def head(number: int) -> bytes:
    return b"\0" + struct.pack(">I", number)


def test_avro_is_read_by_the_schema_that_its_frame_names(avro: SparkSession) -> None:
    schemas = {7: RECORD, 300: OLD}
    values = [
        head(7) + b"\2\6tea\2",
        head(7) + b"\0\0",
        head(300) + b"\4",
        head(7) + b"\2\6te",
        head(7),
        head(8) + b"\0\0",
        b"{}",
        b"",
        None,
    ]
    df = frame(avro, *values)
    rows = (
        spark_bridge.parse(df, RECORD, format="avro", schemas=schemas, unknown="corrupt").orderBy("_offset").collect()
    )
    assert [(row.item, row.n, row["_corrupt_reason"]) for row in rows] == [
        ("tea", 1, None),
        (None, 0, None),
        (None, 2, None),
        (None, None, "unfit"),
        (None, None, "unfit"),
        (None, None, "unknown"),
        (None, None, "unframed"),
        (None, None, "unframed"),
        (None, None, None),
    ]
    assert [row["_corrupt_record"] for row in rows] == [None, None, None, *values[3:8], None]
    failing = spark_bridge.parse(df, RECORD, format="avro", schemas=schemas)
    fits = failing.where("_corrupt_record IS NULL")
    for query in (failing, fits, fits.select("n"), fits.select("_offset"), failing.select("_corrupt_reason")):
        with pytest.raises(PySparkException, match=r"an event has the schema 8, and parse knows \[7, 300\]"):
            query.collect()
    (plain,) = spark_bridge.parse(frame(avro, b"\2\6tea\2"), RECORD, format="avro").collect()
    assert (plain.item, plain.n, plain["_corrupt_record"]) == ("tea", 1, None)


@pytest.mark.parametrize(
    ("items", "payload"),
    [
        ("int", long(2**28)),
        ("int", long(2**40)),
        ("string", long(1) + long(2**30)),
        ("bytes", long(1) + long(2**30)),
        ({"type": "map", "values": "int"}, long(1) + long(2**30)),
        ({"type": "array", "items": "int"}, long(1) + long(2**28)),
    ],
)
def test_avro_that_claims_more_than_it_has_does_not_fit(avro: SparkSession, items: Any, payload: bytes) -> None:
    (row,) = spark_bridge.parse(frame(avro, payload + b"\2x"), arrays(items), format="avro").collect()
    assert (row.a, row["_corrupt_reason"]) == (None, "unfit")


def test_avro_that_nests_in_itself_is_refused(avro: SparkSession) -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    with pytest.raises(Exception, match="recursive reference"):
        spark_bridge.parse(frame(avro, b"\2" * 20_000), json.dumps(node), format="avro")


# -- Protobuf ------------------------------------------------------------------------------------------------


def descriptors() -> bytes:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    order.field.add(name="item", number=1, type=9, label=1)
    order.field.add(name="n", number=2, type=5, label=1)
    return bytes(files.SerializeToString())


def test_protobuf_is_read_and_what_is_cut_off_does_not_fit(spark: SparkSession) -> None:
    if not any(PROTOBUF[0] in package.name for package in spark_packages()):
        pytest.skip(f"Maven has not fetched the package: mvn dependency:get -Dartifact=org.apache.spark:{PROTOBUF[0]}")
    whole = b"\n\3tea\x10\5"
    values = [*(whole[:end] for end in range(len(whole) + 1)), None, b"\xff", b"\x0b" * 100_000, b"\n\3te\xff"]
    df = frame(spark, *values)
    rows = spark_bridge.parse(df, "shop.Order", format="protobuf", schemas=descriptors()).orderBy("_offset").collect()
    fits = {0: (None, None), 5: ("tea", None), 7: ("tea", 5), 8: (None, None)}
    for at, row in enumerate(rows):
        assert (row.item, row.n) == fits.get(at, (None, None))
        assert (row["_corrupt_record"], row["_corrupt_reason"]) == (
            (None, None) if at in fits else (values[at], "unfit")
        )
    framed = [head(7) + b"\2\2" + whole, head(7) + b"\0" + whole, head(9) + b"\2\2" + whole, b"", None]
    found = spark_bridge.parse(
        frame(spark, *framed), "shop.Order", format="protobuf", schemas={7: descriptors()}, unknown="corrupt"
    ).collect()
    assert [(row.item, row["_corrupt_reason"]) for row in found] == [
        ("tea", None),
        (None, "unfit"),
        (None, "unknown"),
        (None, "unframed"),
        (None, None),
    ]


# -- the source ----------------------------------------------------------------------------------------------


def test_the_source_gives_bytes_and_refuses_a_schema(spark: SparkSession, realm: Path, tmp_path: Path) -> None:
    with BridgeProcess(tmp_path / "log"):
        publish([b'{"n":1}', {"n": 2}, '{"n":3}', {"n": b"x"}, b"odd"])  # type: ignore[list-item]
        events = spark.read.format("iris").load()
        rows = spark_bridge.parse(events, "n INT").orderBy("_offset").collect()
        assert [(row.n, row["_topic"], row["_corrupt_record"]) for row in rows] == [
            (1, "a.b", None),
            (2, "a.b", None),
            (3, "a.b", None),
            (None, "a.b", msgpack.packb({"n": b"x"})),
            (None, "a.b", b"odd"),
        ]
        few = spark.read.format("iris").option("includeHeaders", "false").option("includeShard", "true").load()
        assert {row["_shard"].partition("@")[0] for row in spark_bridge.parse(few, "n INT").collect()} == {"0"}
        for given in ("n INT, _offset BIGINT", SPARK_SCHEMA.replace("bigint", "int")):
            for read in (spark.read, spark.readStream):
                with pytest.raises(Exception, match=r"no schema\(.*\).*iris\.spark_bridge\.parse"):
                    _run(read.format("iris").schema(given), tmp_path)
        with pytest.raises(Exception, match=r"no option badTopic any more: iris\.spark_bridge\.parse"):
            spark.read.format("iris").option("badTopic", "x").load()


def _run(reader: DataFrameReader | DataStreamReader, directory: Path) -> None:
    df = reader.load()
    if not df.isStreaming:
        df.collect()
        return
    query = df.writeStream.format("noop").option("checkpointLocation", str(directory / "refused")).start()
    query.processAllAvailable()
