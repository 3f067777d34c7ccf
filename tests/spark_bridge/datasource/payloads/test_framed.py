"""Payloads in Avro and Protobuf: frames, schemas of a registry and of files, and what happens when one is missing."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql import SparkSession

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.options import parse_source_options
from iris.spark_bridge.datasource.payloads import (
    AS_SPARK_CASTS,
    PayloadFraming,
    TimeFormats,
    read_framing,
    typed_columns,
)
from iris.spark_bridge.datasource.payloads.decoding import PayloadDecoder
from iris.spark_bridge.errors import RegistryUnreachable
from tests.support.bridges import BridgeProcess, publish
from tests.support.schema_registry import SchemaRegistry, schema_registry

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

Fields = list[tuple[str, pa.DataType]]

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "n", "type": "int"}, {"name": "item", "type": ["null", "string"]}],
}
LATER: dict[str, Any] = {
    **ORDER,
    "fields": [
        {"name": "item", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "number", "type": "long", "aliases": ["n"]},
    ],
}
READER: dict[str, Any] = {
    **ORDER,
    "fields": [
        {"name": "number", "type": "long", "aliases": ["n"]},
        {"name": "price", "type": "double", "default": -1.0},
    ],
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(schema)), value)
    return stream.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + data


def add(registry: SchemaRegistry, schema: dict[str, Any], subject: str = "orders-value") -> int:
    return registry.add(subject, {"schema": json.dumps(schema)})


def read(framing: PayloadFraming, fields: Fields, payloads: list[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    columns, unfit = PayloadDecoder(pa.struct(fields), AS_SPARK_CASTS, framing).read(payloads, False)
    return pa.RecordBatch.from_arrays(columns, names=[name for name, _ in fields]).to_pylist(), unfit


def of_registry(
    encoding: Any, registry: SchemaRegistry, *, settings: Path | None = None, path: Path | None = None
) -> PayloadFraming:
    return read_framing(
        encoding,
        registry=registry.url,
        settings=None if settings is None else str(settings),
        path=None if path is None else str(path),
        message=None,
    )


def of_files(encoding: Any, path: Path, message: str | None = None) -> PayloadFraming:
    return read_framing(encoding, registry=None, settings=None, path=str(path), message=message)


def test_each_payload_is_read_with_the_schema_of_its_writer(registry: SchemaRegistry, tmp_path: Path) -> None:
    first, second = add(registry, ORDER), add(registry, LATER)
    payloads = [
        framed(first, avro(ORDER, {"n": 1, "item": "tea"})),
        framed(second, avro(LATER, {"number": 2, "item": None, "price": 1.5})),
    ] * 50
    fields: Fields = [("n", pa.int32()), ("item", pa.string()), ("price", pa.float64())]
    rows, unfit = read(of_registry("avro", registry), fields, payloads)
    assert rows == [{"n": 1, "item": "tea", "price": None}, {"n": None, "item": None, "price": 1.5}] * 50
    assert unfit == {}
    assert len(registry.requests) == 2
    # With a schema of the reader's: names of former times, and values that were not written.
    (tmp_path / "reader.avsc").write_text(json.dumps(READER))
    resolved = of_registry("avro", registry, path=tmp_path / "reader.avsc")
    rows, _ = read(resolved, [("number", pa.int64()), ("price", pa.float64())], payloads[:2])
    assert rows == [{"number": 1, "price": -1.0}, {"number": 2, "price": 1.5}]


def test_what_cannot_be_read_is_named_and_nothing_else_is_touched(registry: SchemaRegistry) -> None:
    number = add(registry, ORDER)
    other = registry.add("p", {"schema": "eA==", "schemaType": "PROTOBUF"})
    broken = registry.add("b", {"schema": "{"})
    text = registry.add("t", {"schema": '"string"'})
    good = framed(number, avro(ORDER, {"n": 1, "item": None}))
    bad = {
        b"": "does not begin with a zero and the number of a schema",
        b'{"n":1}': "does not begin with a zero",
        framed(77, good[5:]): f"schema 77 is not in the registry {registry.url}",
        good[:-1]: "no Avro of its schema",
        good + b"x": "something is behind it",
        framed(other, b""): "is of type PROTOBUF",
        framed(broken, b""): "cannot be used",
        framed(text, b"\x02x"): "not one of records",
        framed(number, avro(LATER, {"number": 2**40, "item": None, "price": 1.5})): "no Avro of its schema",
    }
    rows, unfit = read(of_registry("avro", registry), [("n", pa.int32())], [good, *bad, good])
    assert rows == [{"n": 1}, *[{"n": None}] * len(bad), {"n": 1}]
    for at, (payload, reason) in enumerate(bad.items(), 1):
        assert reason in unfit[at], payload


def test_an_unknown_schema_is_asked_for_once(registry: SchemaRegistry) -> None:
    framing = of_registry("avro", registry)
    decoder = PayloadDecoder(pa.struct([("n", pa.int32())]), AS_SPARK_CASTS, framing)
    for _ in range(2):
        _, unfit = decoder.read([framed(5, b"x")] * 100, False)
        assert len(unfit) == 100
    assert [path.partition("?")[0] for path in registry.requests] == ["/schemas/ids/5"]


def test_a_registry_that_does_not_answer_is_an_error_and_no_bad_payload(
    registry: SchemaRegistry, tmp_path: Path
) -> None:
    fields: Fields = [("n", pa.int32())]
    payload = framed(add(registry, ORDER), avro(ORDER, {"n": 1, "item": None}))
    (tmp_path / "quick.json").write_text('{"max.retries": 0}')
    quick = of_registry("avro", registry, settings=tmp_path / "quick.json")
    registry.failing = 503
    with pytest.raises(RegistryUnreachable, match=r"it answers 503: .*schemaRegistryConfig, and start the query again"):
        read(quick, fields, [payload])
    registry.failing = None
    assert read(quick, fields, [payload])[0] == [{"n": 1}]
    registry.password = "me:secret"
    for name, password in (("me", "secret"), ("other", "x")):
        settings = {"max.retries": 0, "basic.auth.user.info": f"me:{password}"}
        (tmp_path / f"{name}.json").write_text(json.dumps(settings))
    assert read(of_registry("avro", registry, settings=tmp_path / "me.json"), fields, [payload])[0] == [{"n": 1}]
    with pytest.raises(RegistryUnreachable, match="it answers 401"):
        read(of_registry("avro", registry, settings=tmp_path / "other.json"), fields, [payload])


def test_schemas_of_files_need_no_registry(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "8.avsc").write_text(json.dumps(LATER))
    (tmp_path / "README").write_text("")
    payloads = [framed(7, avro(ORDER, {"n": 1, "item": "x"})), framed(9, b"")]
    rows, unfit = read(of_files("avro", tmp_path), [("n", pa.int32())], payloads)
    assert (rows, unfit) == ([{"n": 1}, {"n": None}], {1: "there is no file with schema 9"})
    single = of_files("avro", tmp_path / "8.avsc")
    (tmp_path / "8.avsc").unlink()  # it was read, and travels with the query
    payload = avro(LATER, {"number": 5, "item": None, "price": 1.0})
    assert read(single, [("number", pa.int64())], [payload])[0] == [{"number": 5}]


def test_avros_kinds_become_sparks() -> None:
    logical = {"at": "timestamp-micros", "day": "date", "id": "uuid", "exact": "decimal", "clock": "time-millis"}
    kinds = {"at": "long", "day": "int", "id": "string", "exact": "bytes", "clock": "int"}
    fields: list[dict[str, Any]] = [
        {"name": name, "type": {"type": kinds[name], "logicalType": of, "precision": 10, "scale": 2}}
        for name, of in logical.items()
    ]
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "boolean"}]}
    fields += [
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "color", "type": {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}},
        {"name": "list", "type": {"type": "array", "items": ["null", "float"]}},
        {"name": "map", "type": {"type": "map", "values": inner}},
    ]
    schema = {"type": "record", "name": "All", "fields": fields}
    value: dict[str, Any] = {
        "at": datetime.datetime(2013, 1, 1, 10, 0, 0, 5, tzinfo=datetime.UTC),
        "day": datetime.date(2013, 1, 2),
        "id": uuid.uuid5(uuid.NAMESPACE_OID, "x"),
        "exact": decimal.Decimal("12.50"),
        "clock": datetime.time(10, 1),
        "raw": b"\0\xff",
        "color": "BLUE",
        "list": [1.5, None],
        "map": {"k": {"x": True}},
    }
    columns: Fields = [
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("id", pa.string()),
        ("exact", pa.decimal128(10, 2)),
        ("clock", pa.string()),
        ("raw", pa.binary()),
        ("color", pa.string()),
        ("list", pa.list_(pa.field("element", pa.float32()))),
        ("map", pa.map_(pa.string(), pa.struct([("x", pa.bool_())]))),
    ]
    framing = PayloadFraming(encoding="avro", single=json.dumps(schema).encode())
    ((row,), unfit) = read(framing, columns, [avro(schema, value)])
    assert unfit == {}
    assert row == {**value, "id": str(value["id"]), "clock": "10:01:00", "map": [("k", {"x": True})]}


def file_of_orders(package: str = "shop") -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="orders.proto", package=package, syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.add(name="Other").field.add(name="z", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    inner = order.nested_type.add(name="Line")
    inner.field.add(name="item", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    kinds = order.enum_type.add(name="Kind")
    kinds.value.add(name="NEW", number=0)
    kinds.value.add(name="OLD", number=1)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    of = f".{package}.Order"
    for number, (name, kind, repeated, type_name) in enumerate(
        [
            ("n", field.TYPE_INT64, False, None),
            ("lines", field.TYPE_MESSAGE, True, f"{of}.Line"),
            ("kind", field.TYPE_ENUM, False, f"{of}.Kind"),
            ("counts", field.TYPE_MESSAGE, True, f"{of}.CountsEntry"),
            ("at", field.TYPE_MESSAGE, False, ".google.protobuf.Timestamp"),
            ("raw", field.TYPE_BYTES, False, None),
        ],
        1,
    ):
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    return file


def order_class(file: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Order"))


COLUMNS: Fields = [
    ("n", pa.int64()),
    ("lines", pa.list_(pa.field("element", pa.struct([("item", pa.string())])))),
    ("kind", pa.string()),
    ("counts", pa.map_(pa.string(), pa.int32())),
    ("at", pa.timestamp("us", tz="UTC")),
    ("raw", pa.binary()),
]


def test_messages_of_protobuf_are_read_from_the_registry_and_from_files(
    registry: SchemaRegistry, tmp_path: Path
) -> None:
    file = file_of_orders()
    schema = {"schema": base64.b64encode(file.SerializeToString()).decode(), "schemaType": "PROTOBUF"}
    number = registry.add("orders-value", schema)
    message = order_class(file)(n=2**40, lines=[{"item": "tea"}], kind=1, counts={"k": 5}, raw=b"\xff")
    message.at.FromJsonString("2013-01-01T10:00:00.5Z")
    data = message.SerializeToString()
    expected: dict[str, Any] = {
        "n": 2**40,
        "lines": [{"item": "tea"}],
        "kind": "OLD",
        "counts": [("k", 5)],
        "at": datetime.datetime(2013, 1, 1, 10, 0, 0, 500_000, tzinfo=datetime.UTC),
        "raw": b"\xff",
    }
    empty: dict[str, object] = {"n": 0, "lines": [], "kind": "NEW", "counts": [], "at": None, "raw": b""}
    second = b"\x02\x02"  # one number, which is 1: the second message of the file
    payloads = [
        framed(number, second + data),
        framed(number, second),
        framed(number, b"\x00\x08\x05"),  # the first one, which has none of the fields
        framed(number, b"\x02\x08"),  # the fifth one
        framed(number, second + b"\xff"),
        framed(number, b"\xff" * 9),
        framed(9, second),
        b"x",
    ]
    rows, unfit = read(of_registry("protobuf", registry), COLUMNS, payloads)
    nothing = dict.fromkeys(expected)
    assert rows == [expected, empty, *[nothing] * 6]
    reasons = ["no message at [4]", "no Protobuf of its schema", "is cut off", "schema 9 is not in", "does not begin"]
    assert sorted(unfit) == [3, 4, 5, 6, 7]
    for at, reason in enumerate(reasons, 3):
        assert reason in unfit[at]
    (tmp_path / "orders.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    single = of_files("protobuf", tmp_path / "orders.desc", "shop.Order")
    assert read(single, COLUMNS, [data, b""]) == ([expected, empty], {})
    (tmp_path / "orders.desc").rename(tmp_path / "7.desc")
    assert read(of_files("protobuf", tmp_path), COLUMNS, [framed(7, second + data)]) == ([expected], {})


def test_what_confluents_own_serializers_write_is_read(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    written = cast("Any", AvroSerializer)(client, json.dumps(ORDER))(
        {"n": 5, "item": "tea"}, SerializationContext("orders", MessageField.VALUE)
    )
    assert written is not None
    rows, unfit = read(of_registry("avro", registry), [("n", pa.int32()), ("item", pa.string())], [written])
    assert (rows, unfit) == ([{"n": 5, "item": "tea"}], {})
    kind = order_class(file_of_orders("other"))
    serializer = cast("Any", ProtobufSerializer)(
        kind, client, {"use.deprecated.format": False, "skip.known.types": True}
    )
    written = serializer(kind(n=7, lines=[{"item": "x"}]), SerializationContext("messages", MessageField.VALUE))
    assert written is not None
    rows, unfit = read(of_registry("protobuf", registry), COLUMNS[:2], [written])
    assert (rows, unfit) == ([{"n": 7, "lines": [{"item": "x"}]}], {})


def test_schemas_that_refer_to_others_are_read(registry: SchemaRegistry) -> None:
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "x", "type": "int"}]}
    add(registry, item, "item")
    order = {"type": "record", "name": "shop.Order", "fields": [{"name": "item", "type": "shop.Item"}]}
    references = [{"name": "shop.Item", "subject": "item", "version": 1}]
    number = registry.add("order", {"schema": json.dumps(order), "references": references})
    payload = framed(number, avro({**order, "fields": [{"name": "item", "type": item}]}, {"item": {"x": 3}}))
    rows, unfit = read(of_registry("avro", registry), [("item", pa.struct([("x", pa.int32())]))], [payload])
    assert (rows, unfit) == ([{"item": {"x": 3}}], {})


AVRO = {"payloadFormat": "avro"}
PROTOBUF = {"payloadFormat": "protobuf", "payloadSchema": __file__}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AVRO, "payloads in avro need a schema: give option schemaRegistry or payloadSchema"),
        ({"schemaRegistry": "http://x"}, "option schemaRegistry is about Avro and Protobuf"),
        ({**AVRO, "payloadSchema": "/nowhere"}, "payloadSchema is '/nowhere', which cannot be read: No such"),
        ({**AVRO, "payloadSchema": __file__}, "a file that is no schema of Avro records"),
        (PROTOBUF, "option payloadMessage names the message"),
        ({**PROTOBUF, "payloadMessage": "x"}, "no descriptor set, as protoc"),
        ({**PROTOBUF, "schemaRegistry": "http://x"}, "schemaRegistry and payloadSchema contradict each other"),
        ({**AVRO, "schemaRegistry": "http://x", "schemaRegistryConfig": __file__}, "no file with JSON"),
        ({**AVRO, "schemaRegistryConfig": __file__, "payloadSchema": "x"}, "is about a registry"),
        ({**AVRO, "payloadSchema": str(Path(__file__).parent)}, r"no file there has a name such as 7\.avsc"),
        ({**AVRO, "schemaRegistry": "ftp://x"}, "option schemaRegistry: "),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_source_options(options)


@pytest.mark.parametrize(("encoding", "library"), [("avro", "fastavro"), ("protobuf", "google.protobuf")])
def test_a_library_that_is_not_installed_is_named(
    encoding: Any, library: str, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"iris.spark_bridge.datasource.payloads.{encoding}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"payloads in {encoding} need .*: pip install 'iris-mesh\[{encoding}\]'"):
        of_registry(encoding, registry)


def test_formats_of_times_are_for_texts() -> None:
    framing = PayloadFraming(encoding="avro", single=json.dumps(ORDER).encode())
    with pytest.raises(ConfigError, match="times in avro are no texts"):
        typed_columns(
            pa.schema([("n", pa.int32())]),
            corrupt="_corrupt_record",
            mode="PERMISSIVE",
            formats=TimeFormats(date="yyyy"),
            framing=framing,
        )


def test_spark_reads_avro_of_a_registry(
    spark: SparkSession, realm: Path, tmp_path: Path, registry: SchemaRegistry
) -> None:
    number, later = add(registry, ORDER), add(registry, LATER)
    payloads = [
        framed(number, avro(ORDER, {"n": 1, "item": "tea"})),
        framed(later, avro(LATER, {"number": 2, "item": "milk", "price": 1.5})),
        framed(77, b""),
    ]
    options = {"payloadFormat": "avro", "schemaRegistry": registry.url}
    reader = spark.read.format("iris").schema("n INT, item STRING, _offset BIGINT, _corrupt_record BINARY")
    with BridgeProcess(tmp_path / "log"):
        publish(payloads, topic="orders.new")
        rows = reader.options(**options).load().orderBy("_offset").collect()
        assert [(row.n, row.item) for row in rows] == [(1, "tea"), (None, "milk"), (None, None)]
        assert [row._corrupt_record is None for row in rows] == [True, True, False]
        with pytest.raises(Exception, match="schema 77 is not in the registry http"):
            reader.options(**options).option("mode", "FAILFAST").load().collect()
