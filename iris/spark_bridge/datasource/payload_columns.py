"""Payload columns: the fields that a user's schema names, parsed by Arrow from JSON.

``spark.readStream.format("iris").schema("carrier STRING, delay DOUBLE, _topic STRING")`` gives the payload's fields
``carrier`` and ``delay``, and the log's column ``topic``.  Columns whose names begin with an underscore are the log's.

Values are JSON in UTF-8, or msgpack where the publisher gave neither bytes nor a text; msgpack becomes JSON first
(``iris.spark_bridge.datasource.msgpack_json``).  All values of a batch are one text for Arrow's reader: no Python runs
for each of them.

Each value stands in an object of its own, ``{"v": value}``, so a value that is empty, or several values in one, cannot
shift the rows: it is an error.  After an error msgspec tells which payloads do not fit, and Arrow reads the others; if
it refuses one of these, too, the batch is bisected until that stands alone.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, cast, final, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.wire import decode_payload_untrusted, join_payload
from iris.spark_bridge.datasource.msgpack_json import packed_reader
from iris.spark_bridge.datasource.payload_types import may_be_no_number, text_reader
from iris.spark_bridge.errors import PayloadUnfit
from iris.spark_bridge.schema import HEADER_ENCODING, PACKED, SCHEMA

LOG_COLUMNS: Final[Mapping[str, str]] = {f"_{name}": name for name in SCHEMA.names}
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
"""What becomes of a payload that does not fit: a row of nulls, nothing, or an error that ends the query."""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
CORRUPT: Final = "_corrupt_record"
"""The column of payloads that do not fit, unless the user names another one."""

_UNFIT: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
"""What Arrow raises for a batch of which a payload does not fit."""

_WRAP: Final = "v"
_MIB: Final = 1 << 20


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypedColumns:
    """Columns that a user's schema asks for.  Made by ``typed_columns``."""

    schema: pa.Schema
    """Of the batches that Spark gets."""
    corrupt: str
    """Name of the column that gets payloads which do not fit, if the schema has it."""
    mode: Mode
    """What becomes of such a payload."""

    def parse(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events of a batch of the log with the user's columns.

        Raises:
            PayloadUnfit: a payload does not fit, and that is to be an error.
        """
        names = [name for name in self.schema.names if name not in LOG_COLUMNS and name != self.corrupt]
        kind = pa.struct([self.schema.field(name) for name in names])
        payloads, unfit = _parse_batch(batch, kind)
        if unfit and self.mode == "FAILFAST":
            row = unfit[0]
            place = {name: batch.column(name)[row].as_py() for name in ("partition", "offset", "topic")}
            raise PayloadUnfit(
                f"event {place['offset']} of shard {place['partition']}, on topic {place['topic']!r}, does not fit the "
                "schema. Change the schema, or set option mode to PERMISSIVE to go on with nulls, or to "
                "DROPMALFORMED to go on without it"
            )
        fields: dict[str, pa.Array[Any]] = dict(zip(names, payloads.flatten(), strict=True))
        columns: list[pa.Array[Any]] = []
        for field in self.schema:
            if field.name == self.corrupt:
                columns.append(_corrupt_values(batch, unfit, field.type))
            elif field.name in LOG_COLUMNS:
                columns.append(batch.column(LOG_COLUMNS[field.name]))
            else:
                columns.append(fields[field.name])
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if unfit and self.mode == "DROPMALFORMED":
            dropped = set(unfit)
            rows = rows.filter(pa.array([row not in dropped for row in range(rows.num_rows)]))
        return rows


def typed_columns(schema: pa.Schema, *, corrupt: str, mode: Mode) -> TypedColumns:
    """Check a user's schema.

    Raises:
        ConfigError: a column has a type that payloads cannot be read as, or the log's column has another one.
    """
    if corrupt in LOG_COLUMNS:
        raise ConfigError(f"option columnNameOfCorruptRecord is {corrupt!r}, a column of the log: take another name")
    if corrupt != CORRUPT and corrupt not in schema.names:
        raise ConfigError(f"option columnNameOfCorruptRecord is {corrupt!r}, and the schema has no such column: add it")
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise ConfigError(f"column {field.name} is in the schema more than once")
        if field.name in LOG_COLUMNS:
            wanted = SCHEMA.field(LOG_COLUMNS[field.name]).type
            if field.type != wanted:
                raise ConfigError(f"column {field.name} of the schema is {field.type}: the log's is {wanted}")
        elif field.name == corrupt:
            if field.type not in (pa.string(), pa.binary()):
                raise ConfigError(f"column {corrupt} of the schema is {field.type}: use string or binary")
        elif field.name.startswith("_"):
            close = difflib.get_close_matches(field.name, [*LOG_COLUMNS, corrupt], n=1)
            hint = f"did you mean {close[0]}?" if close else f"use {', '.join([*LOG_COLUMNS, corrupt])}"
            raise ConfigError(f"column {field.name} of the schema begins like one of the log, which has none: {hint}")
        else:
            _check_type(field.name, field.type)
        if not field.nullable:
            raise ConfigError(
                f"column {field.name} of the schema is NOT NULL, and a payload may lack it: leave that out"
            )
    if all(name in LOG_COLUMNS or name == corrupt for name in schema.names):
        raise ConfigError("the schema names no field of the payload: leave it out, and take the columns of the log")
    return TypedColumns(schema=schema, corrupt=corrupt, mode=mode)


def check_log_columns(schema: pa.Schema) -> None:
    """Make sure that a schema with the names of the log's columns has their types, too.

    Raises:
        ConfigError: it has not.
    """
    for field in schema:
        wanted = SCHEMA.field(field.name).type
        if field.type != wanted:
            raise ConfigError(
                f"column {field.name} of the schema is {field.type}, and the log's is {wanted}: leave schema(...) out "
                "and cast, or name the fields of the payload"
            )


def _check_type(name: str, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind):
        for field in kind:
            _check_type(f"{name}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        _check_type(name, kind.value_type)
    elif not (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_timestamp(kind)
    ):
        raise ConfigError(
            f"column {name} of the schema is {kind}: payloads are read as strings, numbers, booleans, timestamps, "
            "arrays and structs; read a string and cast it"
        )


def _parse_batch(batch: pa.RecordBatch, kind: pa.StructType) -> tuple[pa.StructArray, list[int]]:
    """Return the payloads as structs, with null for those that do not fit, and the rows of these."""
    values = batch.column("value")
    headers = cast("pa.ListArray", batch.column("headers"))
    pairs = cast("pa.StructArray", headers.flatten())
    is_packed = pc.and_(pc.equal(pairs.field("key"), HEADER_ENCODING), pc.equal(pairs.field("value"), PACKED.encode()))
    packed = pc.unique(pc.list_parent_indices(headers).filter(is_packed))
    if not len(packed):
        return _parse_texts(values, kind)
    if len(packed) == len(values):
        return _parse_packed(values, kind)
    every = pa.array(range(len(values)), packed.type)
    texts = every.filter(pc.invert(pc.is_in(every, value_set=packed)))
    first, unfit = _parse_packed(values.take(packed), kind)
    second, unfit_texts = _parse_texts(values.take(texts), kind)
    order = pa.concat_arrays([packed, texts])
    whole = pa.concat_arrays([first, second]).take(pc.sort_indices(order))
    rows: list[int] = order.take(pa.array(unfit + [len(packed) + row for row in unfit_texts], pa.int64())).to_pylist()
    return cast("pa.StructArray", whole), sorted(rows)


def _parse_packed(values: pa.Array[Any], kind: pa.StructType) -> tuple[pa.StructArray, list[int]]:
    reader = packed_reader(kind)
    lines = reader.to_lines(values)
    if lines is not None:
        with suppress(*_UNFIT):  # a value is out of the range of its column, for one
            parsed = _read_lines(lines, kind, len(values))
            if not _has_infinite(parsed):
                return cast("pa.StructArray", parsed), []
    texts = [reader.to_text(value) or _as_json(value) for value in values.to_pylist()]
    return _parse_texts(pa.array(texts, pa.binary()), kind)


def _as_json(value: bytes) -> bytes:
    try:
        payload = decode_payload_untrusted(join_payload(value, packed=True))
        if isinstance(payload, str):  # of an older log: it is JSON already, if it is anything that fits
            return payload.encode()
        return json.dumps(payload, ensure_ascii=False, default=_text).encode()
    except (RemoteProtocolError, ValueError, RecursionError):
        return b""  # which is no JSON: the row does not fit


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    raise ValueError(f"{type(value).__name__} has no place in a column")


def _parse_texts(texts: pa.Array[Any], kind: pa.StructType) -> tuple[pa.StructArray, list[int]]:
    try:
        return _parse(texts, kind), []
    except _UNFIT:
        places = pa.array(text_reader(kind).places(texts), pa.int64())
    parsed, refused = _bisect(texts.filter(places.is_valid()), kind)
    lost = pc.is_in(places, value_set=pa.array(refused, pa.int64()), skip_nulls=True)
    unfit = pc.indices_nonzero(pc.or_(pc.is_null(places), lost))
    return cast("pa.StructArray", parsed.take(places)), unfit.to_pylist()


def _bisect(texts: pa.Array[Any], kind: pa.StructType) -> tuple[pa.StructArray, list[int]]:
    parts: list[pa.Array[Any]] = []
    unfit: list[int] = []
    open_ranges = [(0, len(texts))]
    while open_ranges:
        begin, end = open_ranges.pop()
        if begin == end:
            continue
        try:
            parts.append(_parse(texts.slice(begin, end - begin), kind))
        except _UNFIT:
            if end - begin == 1:
                unfit.append(begin)
                parts.append(pa.nulls(1, kind))
            else:
                middle = (begin + end) // 2
                open_ranges += [(middle, end), (begin, middle)]
    return cast("pa.StructArray", pa.concat_arrays(parts) if parts else pa.nulls(0, kind)), unfit


def _parse(texts: pa.Array[Any], kind: pa.StructType) -> pa.StructArray:
    checked = texts.cast(pa.string())  # Arrow's reader takes any bytes for text, Spark does not
    several = pc.match_substring(checked, "\n")
    if pc.any(several).as_py():  # a line end is white space in JSON, but for within a string, which may not have it
        if None in text_reader(kind).places(texts.filter(several)):
            raise pa.ArrowInvalid("a string has a line end that is not escaped")
        checked = pc.replace_substring(checked, pattern="\n", replacement=" ")
    lines = pc.binary_join_element_wise(f'{{"{_WRAP}":', checked, "}\n", "")
    buffer = lines.buffers()[2]  # made here, so it holds these lines and nothing else
    assert buffer is not None
    parsed = _read_lines(buffer, kind, len(texts))
    if _has_infinite(parsed) and (len(texts) > 1 or not may_be_no_number(texts[0].as_py())):
        raise pa.ArrowInvalid("a number is out of the range of its column, unless it is written as Infinity")
    return cast("pa.StructArray", parsed)


def _has_infinite(values: pa.Array[Any]) -> bool:
    """Tell whether a number is infinite, as those become that are too large."""
    kind = values.type
    if pa.types.is_struct(kind):
        return any(_has_infinite(column) for column in cast("pa.StructArray", values).flatten())
    if pa.types.is_list(kind):
        return _has_infinite(cast("pa.ListArray", values).flatten())
    return pa.types.is_floating(kind) and bool(pc.any(pc.is_inf(values)).as_py())


def _read_lines(lines: bytes | pa.Buffer, kind: pa.StructType, count: int) -> pa.Array[Any]:
    table = pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=max(_MIB, len(lines) + 1)),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(_WRAP, kind)]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != count:
        raise pa.ArrowInvalid("some of the payloads are not one value each")
    column = table.column(_WRAP)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _corrupt_values(batch: pa.RecordBatch, unfit: list[int], kind: pa.DataType) -> pa.Array[Any]:
    if not unfit:
        return pa.nulls(batch.num_rows, kind)
    values: list[bytes | str | None] = [None] * batch.num_rows
    column = batch.column("value")
    for row in unfit:
        value: bytes = column[row].as_py()
        values[row] = value.decode("utf-8", "replace") if pa.types.is_string(kind) else value
    return pa.array(values, kind)
