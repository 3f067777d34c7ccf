"""Payload columns: the fields that a user's schema names.

``spark.readStream.format("iris").schema("carrier STRING, delay DOUBLE, _topic STRING")`` gives the payload's fields
``carrier`` and ``delay``, and the log's column ``topic``.  Columns whose names begin with an underscore are the log's.

Values are JSON in UTF-8, or msgpack where the publisher gave neither bytes nor a text.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, cast, final, get_args

import pyarrow as pa
import pyarrow.compute as pc

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.payloads.decoding import payload_decoder
from iris.spark_bridge.datasource.payloads.framing import PayloadFraming
from iris.spark_bridge.datasource.payloads.times import TimeFormats, check_formats
from iris.spark_bridge.errors import PayloadUnfit
from iris.spark_bridge.events.schema import HEADER_ENCODING, PACKED, SCHEMA

LOG_COLUMNS: Final[Mapping[str, str]] = {f"_{name}": name for name in SCHEMA.names}
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
"""What becomes of a payload that does not fit: a row of nulls, nothing, or an error that ends the query."""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
CORRUPT: Final = "_corrupt_record"
"""The column of payloads that do not fit, unless the user names another one."""


TakeUnfit = Callable[[pa.RecordBatch, Mapping[int, str]], None]
AS_SPARK_CASTS: Final = TimeFormats()


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
    formats: TimeFormats = AS_SPARK_CASTS
    """Of dates and timestamps."""
    framing: PayloadFraming | None = None
    """Of payloads in Avro or Protobuf."""

    def parse(self, batch: pa.RecordBatch, take_unfit: TakeUnfit | None = None) -> pa.RecordBatch:
        """Return the events of a batch of the log with the user's columns.

        Args:
            batch: of the log.
            take_unfit: gets the batch and what does not fit, by row with the reason, if something does not.

        Raises:
            PayloadUnfit: a payload does not fit, and that is to be an error.
        """
        fields = _payload_fields(self.schema, self.corrupt)
        found, unfit = self._read(batch, fields)
        if unfit and self.mode == "FAILFAST":
            row = min(unfit)
            place = {name: batch.column(name)[row].as_py() for name in ("partition", "offset", "topic")}
            raise PayloadUnfit(
                f"event {place['offset']} of shard {place['partition']}, on topic {place['topic']!r}, does not fit the "
                f"schema ({unfit[row]}). Change the schema, or set option mode to PERMISSIVE to go on with nulls, or "
                "to DROPMALFORMED to go on without it"
            )
        if unfit and take_unfit is not None:
            take_unfit(batch, unfit)
        by_name = dict(zip(fields.names, found, strict=True))
        columns: list[pa.Array[Any]] = []
        for field in self.schema:
            if field.name == self.corrupt:
                columns.append(_corrupt_values(batch, unfit, field.type))
            elif field.name in LOG_COLUMNS:
                columns.append(batch.column(LOG_COLUMNS[field.name]))
            else:
                columns.append(by_name[field.name])
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if unfit and self.mode == "DROPMALFORMED":
            rows = rows.filter(pa.array([row not in unfit for row in range(rows.num_rows)]))
        return rows

    def _read(self, batch: pa.RecordBatch, fields: pa.Schema) -> tuple[Sequence[pa.Array[Any]], Mapping[int, str]]:
        """Return the columns of payloads, and what does not fit, by row.  Where there is no payload all are null."""
        decoder = payload_decoder(fields, self.formats, self.framing)
        values, packed = batch.column("value"), _are_packed(batch)
        if not values.null_count:
            return decoder.read(values.to_pylist(), packed)
        given: list[bytes | None] = values.to_pylist()
        rows = [row for row, value in enumerate(given) if value is not None]
        there = [value for value in given if value is not None]
        found, unfit = decoder.read(there, packed if isinstance(packed, bool) else [packed[row] for row in rows])
        spread = [_spread(column, rows, batch.num_rows) for column in found]
        return spread, {rows[at]: reason for at, reason in unfit.items()}


def _spread(column: pa.Array[Any], rows: Sequence[int], count: int) -> pa.Array[Any]:
    """Return a column of ``count`` rows that has the values of one at these, and nulls elsewhere."""
    places: list[int | None] = [None] * count
    for at, row in enumerate(rows):
        places[row] = at
    return column.take(pa.array(places, pa.int64()))


def typed_columns(
    schema: pa.Schema,
    *,
    corrupt: str,
    mode: Mode,
    formats: TimeFormats = AS_SPARK_CASTS,
    framing: PayloadFraming | None = None,
) -> TypedColumns:
    """Check a user's schema.

    Raises:
        ConfigError: a column has a type that payloads cannot be read as, or the log's column has another one; a format
            of times is not understood.
    """
    check_formats(formats)
    if framing is not None and formats != AS_SPARK_CASTS:
        raise ConfigError(f"times in {framing.encoding} are no texts: leave their formats and timeZone out")
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
        if not field.nullable:
            raise ConfigError(
                f"column {field.name} of the schema is NOT NULL, and a payload may lack it: leave that out"
            )
    if all(name in LOG_COLUMNS or name == corrupt for name in schema.names):
        raise ConfigError("the schema names no field of the payload: leave it out, and take the columns of the log")
    payload_decoder(_payload_fields(schema, corrupt), formats, framing)
    return TypedColumns(schema=schema, corrupt=corrupt, mode=mode, formats=formats, framing=framing)


def _payload_fields(schema: pa.Schema, corrupt: str) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in LOG_COLUMNS and field.name != corrupt])


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


def _are_packed(batch: pa.RecordBatch) -> list[bool] | bool:
    """Return which payloads are msgpack; one answer, if it is the same for all."""
    headers = cast("pa.ListArray", batch.column("headers"))
    pairs = cast("pa.StructArray", headers.flatten())
    is_packed = pc.and_(pc.equal(pairs.field("key"), HEADER_ENCODING), pc.equal(pairs.field("value"), PACKED.encode()))
    packed: set[int] = set(pc.list_parent_indices(headers).filter(is_packed).to_pylist())
    if not packed or len(packed) == batch.num_rows:
        return bool(packed)
    return [row in packed for row in range(batch.num_rows)]


def _corrupt_values(batch: pa.RecordBatch, unfit: Collection[int], kind: pa.DataType) -> pa.Array[Any]:
    if not unfit:
        return pa.nulls(batch.num_rows, kind)
    values: list[bytes | str | None] = [None] * batch.num_rows
    column = batch.column("value")
    for row in unfit:
        value: bytes = column[row].as_py()
        values[row] = value.decode("utf-8", "replace") if pa.types.is_string(kind) else value
    return pa.array(values, kind)
