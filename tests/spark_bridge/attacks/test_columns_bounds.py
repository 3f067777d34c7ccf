"""Columns under attack: what is cut off, flipped, at its bound, null or repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from iris import spark_bridge
from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.json_values import pack, unpack
from iris.spark_bridge.events.schema import SCHEMA
from iris.spark_bridge.session.columns.protobuf import MARKED, marked
from tests.spark_bridge.attacks.test_columns_letters import letters
from tests.spark_bridge.attacks.test_columns_values import CORRUPT, record, rows_differ
from tests.spark_bridge.session.columns.test_parse import head
from tests.support.bridges import BridgeProcess
from tests.support.payloads import frame, long

pytestmark = pytest.mark.long


def test_avro_that_is_cut_or_flipped_harms_no_row_beside_it(avro: SparkSession) -> None:
    kinds = ("long", ["null", "string"], {"type": "array", "items": "double"}, {"type": "map", "values": "bytes"})
    whole = long(-(2**40)) + b"\2\6tea" + b"\4" + b"\0" * 16 + b"\0" + b"\2\2k\4xy\0"
    chosen = random.Random(3)
    cut = [whole[:end] for end in range(len(whole))]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    ]
    noise = [chosen.randbytes(chosen.randrange(40)) for _ in range(2000)]
    values = [head(5) + one for one in (*cut, *flipped, *noise)]
    mixed = [one for value in values for one in (value, head(5) + whole)]
    schema = record(*kinds)
    began = time.monotonic()
    rows = (
        spark_bridge.parse(frame(avro, *mixed), schema, format="avro", schemas={5: schema}).orderBy("_offset").collect()
    )
    assert time.monotonic() - began < 120
    for value, row in zip(mixed, rows, strict=True):
        assert tuple(row[name] for name in CORRUPT) in ((None, None), (value, "unfit"))
    assert {row["_corrupt_reason"] for row in rows[: 2 * len(cut) : 2]} == {"unfit"}
    assert {(row.f0, row.f1, len(row.f2)) for row in rows[1::2]} == {(-(2**40), "tea", 2)}


def test_avro_is_resolved_by_each_id_or_refused_for_its_rows_alone(avro: SparkSession) -> None:
    reader = record("double", ["null", "string"])
    schemas = {
        1: record("int", ["null", "string"]),
        2: record("long", "string"),
        3: record("string", "string"),  # not resolved to a double
        0: reader,
    }
    text = b"\6tea"
    values = [
        head(1) + b"\4\2" + text,
        head(2) + b"\4" + text,
        head(3) + text + text,
        head(0) + b"\0" * 8 + b"\2" + text,
    ]
    values += [head(2) + b"\4\2" + text + b"more", head(0)[:4], head(1)[::-1]]
    rows = (
        spark_bridge.parse(frame(avro, *values[:2], *values[3:]), reader, format="avro", unknown="corrupt",
        schemas={number: one for number, one in schemas.items() if number != 3}).orderBy("_offset").collect()
    )  # fmt: skip
    assert [(row.f0, row.f1) for row in rows[:3]] == [(2.0, "tea"), (2.0, "tea"), (0.0, "tea")]
    assert [row["_corrupt_reason"] for row in rows[4:]] == ["unframed", "unframed"]
    df = spark_bridge.parse(frame(avro, *values), reader, format="avro", schemas=schemas, unknown="corrupt")
    reasons = [row["_corrupt_reason"] for row in df.orderBy("_offset").collect()]
    assert (reasons[:2], reasons[2], reasons[3]) == ([None, None], "unfit", None)


def test_protobuf_that_does_not_parse_has_no_mark() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for at, (name, number) in enumerate((("item", 9), ("n", 5), ("data", 12), ("x", 1), ("y", 7)), 1):
        order.field.add(name=name, number=at, type=number, label=1)
    order.field.add(name="list", number=6, type=11, type_name=".shop.Order", label=3)
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(marked(files.SerializeToString(), "shop.Order")[0]).file:
        pool.Add(one)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))

    def read(payload: bytes) -> Any:
        try:
            return kind.FromString(payload)
        except DecodeError:
            return None

    chosen = random.Random(4)
    tags = [bytes([number << 3 | wire]) for number in range(1, 16) for wire in range(8)]
    # Without the mark itself: a publisher that has it could as well publish a message that is whole.
    parts = [*tags, *tags, b"\0", b"\1", b"\2ab", b"\x80", b"\xff", b"12345678", b"1234", MARKED[1:], b"\x0c"]
    fits = 0
    for _ in range(60_000):
        payload = b"".join(chosen.choices(parts, k=chosen.randrange(7)))
        alone, found = read(payload), read(payload + MARKED)
        if alone is None:
            assert found is None or not getattr(found, "__iris_mark"), payload
        else:
            assert getattr(found, "__iris_mark"), payload
            fits += 1
    assert fits > 2000


def test_decimals_at_their_bounds_are_read_as_from_json_reads_them(spark: SparkSession) -> None:
    chosen = random.Random(6)
    numbers = [
        "9" * 38,
        "9" * 39,
        "-" + "9" * 38,
        "0." + "9" * 38,
        "0." + "9" * 39,
        "0." + "0" * 37 + "1",
        "5e-39",
        "4e-39",
    ]
    numbers += [
        "99999999.994",
        "99999999.995",
        "-99999999.995",
        "1e38",
        "1e37",
        "9.99e37",
        "1e-9999",
        "1e9999",
        "0e9999",
    ]
    numbers += [
        "1e-1000",
        "-0",
        "0." + "0" * 999,
        "1" + "0" * 999,
        "1" + "0" * 1000,
        "9" * 9_000,
        "3e5a",
        "1e",
        "1eu",
        "2e,5",
    ]
    numbers += [f"{chosen.randrange(10**9)}.{chosen.randrange(10**9)}E{chosen.randrange(-45, 45)}" for _ in range(300)]
    forms = (
        '{"a":%s,"b":%s,"c":%s}',
        '{"a":"%s","b":"%s","c":"%s"}',
        '{"m":{"x":%s,"y":[%s]},"c":"%s"}',
        '{"c":%s,"z":"\\\\u%s%s"}',
    )
    values = [(form % (number, number, number)).encode() for number in numbers for form in forms]
    fields = "a DECIMAL(38,0), b DECIMAL(38,38), c DECIMAL(10,2), z STRING"
    fields += ", m STRUCT<x: DECIMAL(38,18), y: ARRAY<DECIMAL(5,5)>>"
    assert rows_differ(spark, fields, values) == []


def test_many_letters_e_hold_no_decimal(spark: SparkSession) -> None:
    """What each payload is searched for first stands in these all over."""
    size = 2**20
    units = (
        b"1e1,",
        b"0eA",
        b".Ee1",
        b"\\\\u00",
        b"1E+",
        b"9,",
        b'"1',
        b'"1e',
        b"\xf0\x9d\x9f\x8fe\xf0\x9d\x9f\x8f",
        b"[1e1,",
    )
    values = [
        start + unit * (size // len(unit)) + end
        for unit in units
        for start, end in ((b'{"s":"', b'"}'), (b'{"l":[', b"]}"))
    ]
    for value in values:
        began = time.monotonic()
        spark_bridge.parse(frame(spark, value), "s STRING, l ARRAY<DECIMAL(9,2)>, c DECIMAL(9,2)").collect()
        assert time.monotonic() - began < 30, value[:20]


def test_times_are_read_as_from_json_reads_them_in_any_zone(spark: SparkSession) -> None:
    chosen = random.Random(9)
    zones = [
        "",
        "Z",
        "+18:00",
        "+18:01",
        "-18:00",
        "+5:45",
        " Europe/Berlin",
        "[Asia/Kathmandu]",
        "UTC+1",
        " PST",
        "z",
        "+00",
        "GMT0",
    ]
    times = [
        "2024-03-10T02:30:00",
        "2024-10-27 02:30:00",
        "9999-12-31T23:59:59.999999",
        "10000-01-01T00:00:00",
        "-0001-01-01",
    ]
    times += [
        "0001-01-01T00:00:00",
        "1582-10-10T00:00:00",
        "2016-12-31T23:59:60",
        "1900-02-29",
        "2024-1-1",
        "1970-01-01T24:00:00",
    ]
    times += [
        "294247-01-10T04:00:54.775807",
        "-290308-12-21T19:59:05.224192",
        "2024-01-01T00:00:00.1234567",
        "1e9",
        "0",
        "-1",
    ]
    texts = [one + zone for one in times for zone in zones]
    texts += [str(chosen.randrange(-(2**63), 2**63)) for _ in range(50)]
    values = [b'{"t":"%s","n":"%s","d":"%s"}' % ((text.encode(),) * 3) for text in texts]
    values += [b'{"t":%s,"n":%s,"d":%s}' % ((text.encode(),) * 3) for text in texts[-80:]]
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    try:
        for zone in ("UTC", "America/New_York", "Pacific/Apia", "Asia/Kathmandu"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert rows_differ(spark, "t TIMESTAMP, n TIMESTAMP_NTZ, d DATE", values) == []
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


# -- msgpack ---------------------------------------------------------------------------------------------------


def test_msgpack_without_a_form_in_json_stays_wherever_it_is_nested() -> None:
    odd: list[Any] = [
        msgpack.ExtType(127, b""), msgpack.ExtType(0, b"x" * 17), msgpack.Timestamp(-1, 999_999_999), b"", float("nan"),
        {1: 1}, {None: 1}, {True: 1}, {1.5: 1}, {b"k": 1}, {"a": {2: 3}}, float("inf"),
    ]  # fmt: skip
    wraps: tuple[Callable[[Any], Any], ...] = (
        lambda x: x,
        lambda x: [1, [x]],
        lambda x: {"a": {"b": [None, x]}},
        lambda x: [*[{"k": 1}] * 20, x],
    )
    values: list[tuple[bytes, bool | None]] = [(msgpack.packb(wrap(one)), False) for one in odd for wrap in wraps]
    plain: list[Any] = [0, None, {"": ""}, [[]]]
    values += [(msgpack.packb(wrap(one)), True) for one in plain for wrap in wraps]
    values += [
        (b"\xca\x3f\x80\0\0", None),
        (b"\xd3" + b"\0" * 7 + b"\1", None),
        (b"\xde\0\1\xa1a\1", None),
    ]  # longer forms
    for value, text in values:
        batch = events(value)
        made = unpack(batch)
        encoding = made.to_pylist()[0]["headers"][0]["value"]
        assert text is None or encoding == (b"json" if text else b"msgpack"), value
        if text is not None:
            assert pack(made).to_pylist() == batch.to_pylist()


def events(*values: bytes | None, headers: Any = (("iris-encoding", b"msgpack"),)) -> pa.RecordBatch:
    row = {"topic": "t", "partition": 0, "offset": 0, "timestampType": 1}
    return pa.RecordBatch.from_pylist([{**row, "value": one, "headers": headers} for one in values], schema=SCHEMA)


def test_headers_that_are_odd_change_no_row_beside_theirs() -> None:
    packed = msgpack.packb({"n": 1})
    mark = ("iris-encoding", b"msgpack")
    kinds: list[Any] = [
        None, [], [mark], [mark, mark], [mark, ("iris-encoding", b"json")], [("iris-encoding", None)],
        [("Iris-Encoding", b"msgpack")],
        [("a", b"msgpack"), mark, ("z", None)], [("iris-encoding", b"msgpack\0")],
    ]  # fmt: skip
    chosen = random.Random(7)
    for _ in range(300):
        rows = [
            {"topic": "t", "partition": 0, "offset": at, "timestampType": 1,
             "value": chosen.choice((packed, None, b"\xc1", b"")), "headers": chosen.choice(kinds)}
            for at in range(chosen.randrange(12))
        ]  # fmt: skip
        whole = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        begin = chosen.randrange(len(rows) + 1)
        batch = whole.slice(begin, chosen.randrange(len(rows) + 1))
        made = unpack(batch)
        made.validate(full=True)
        for before, after in zip(batch.to_pylist(), made.to_pylist(), strict=True):
            is_packed = any(pair["key"] == mark[0] and pair["value"] == mark[1] for pair in before["headers"] or ())
            if is_packed and before["value"] == packed:
                assert after["value"] == b'{"n":1}'
            else:
                assert after == before


# -- nulls, and letters ----------------------------------------------------------------------------------------


def test_null_values_fit_in_each_format(avro: SparkSession) -> None:
    schema = record("int")
    given: tuple[tuple[str, dict[str, Any]], ...] = (
        ("n INT NOT NULL, d DECIMAL(9,2)", {}),
        (schema, {"format": "avro"}),
        (schema, {"format": "avro", "schemas": {1: schema}}),
        (schema, {"format": "avro", "schemas": {1: schema}, "unknown": "corrupt"}),
    )
    for kind, options in given:
        rows = spark_bridge.parse(frame(avro, None, None), kind, **options).collect()
        assert {tuple(row[name] for name in CORRUPT) for row in rows} == {(None, None)}
        assert {row[0] for row in rows} == {None}


def test_letters_are_known_by_epoch_shard_and_offset_alone(spark: SparkSession, realm: Any, tmp_path: Any) -> None:
    fields = (
        "_corrupt_record BINARY, _corrupt_reason STRING, _shard STRING, _offset BIGINT, _topic STRING, _partition INT, "
        "_key BINARY, _headers ARRAY<STRUCT<key: STRING, value: BINARY>>, x INT"
    )
    offsets = (0, 65_535, 65_536, 2**62)
    headers: tuple[Any, ...] = (
        None,
        [],
        [("iris-sender", b"")],
        [("bad-offset", b"9"), ("bad-shard", b"9@z"), ("iris-sender", b"s")],
    )
    rows = [
        (
            bytearray(b"" if at % 2 else b"x"),
            "unfit",
            f"{at % 2}@{epoch}",
            offset,
            "orders",
            at % 2,
            None,
            headers[at % 4],
            at,
        )
        for epoch in ("a", "b")
        for at, offset in enumerate(offsets)
    ]
    publish = spark_bridge.dead_letters("bad")
    with BridgeProcess(tmp_path / "log"):
        publish(spark.createDataFrame(rows[:4], fields).repartition(2), 0)
        batch = spark.createDataFrame(rows, fields)
        for number in range(2):
            publish(batch.unionAll(batch.withColumn("x", fn.lit(number))).repartition(3), number)
            found = letters(spark)
            assert (len(found), {*found.values()}) == (len(offsets), {2}), number  # one for each epoch
        topics = {row.topic for row in spark.read.format("iris").option("subscribe", "bad.>").load().collect()}
        assert topics == {"bad.0.0", "bad.1.0", "bad.0.1", f"bad.1.{2**46}"}
        with pytest.raises(ConfigError, match="column _headers"):
            publish(batch.drop("_headers"), 9)
