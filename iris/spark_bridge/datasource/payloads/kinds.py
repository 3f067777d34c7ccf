"""Kinds of columns: what a payload's field may be, and how many of them become an Arrow column.

A value is read in two ways, and the second has the last word:

- ``quick``, a type of msgspec: it takes what is written as usual, in C, and refuses the rest.
- ``careful``, Python for one value that was refused: it takes all that Spark's ``from_json`` takes.

Both give the same values for the same field: ``build`` makes Arrow of these, for all rows at once, and says which are
none after all (a 30th of February).  Nothing is changed silently: a number that its column cannot hold does not fit.

What does not fit is null, and what is around it stays as far as ``from_json`` leaves it: the other fields of a struct
stay, an array or a map goes with its element.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import json
import math
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, cast, final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.variant_utils import VariantUtils

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.payloads.times import (
    TimeFormats,
    date_reader,
    timestamp_reader,
    usual_texts,
)


class Miss(NamedTuple):
    """Why a value does not fit."""

    reason: str
    whole: bool
    """Whether nothing of it is left; else a field of a struct in it is null."""


class Misfit(Exception):
    """A value does not fit; ``rest`` is what is left of it, None if that is nothing."""

    def __init__(self, reason: str, rest: Any = None) -> None:
        self.reason = reason
        self.rest = rest


Missed = Mapping[int, Miss]
"""What does not fit, by its place among the values."""


class Kind(NamedTuple):
    """A kind of column.  Made by ``kind_of``."""

    quick: Any
    """The type for msgspec."""
    careful: Callable[[Any], Any]
    """Converts a value of JSON (numbers that are not whole as ``Real``) or msgpack; raises Misfit.  Never gets None."""
    build: Callable[[Sequence[Any]], tuple[pa.Array[Any], Missed]]

    @property
    def keeps_null(self) -> bool:
        """Whether a null is a value: a variant may be null."""
        return self.quick is msgspec.Raw

    @property
    def nullable(self) -> Any:
        """The type for msgspec where a null may stand."""
        return self.quick if self.keeps_null else self.quick | None


@final
class Real(str):
    """A number of JSON that is not whole, as it is written."""

    __slots__ = ()


_NONE: Final[Missed] = {}
_FLOAT_MAX: Final = float.fromhex("0x1.fffffeffffffep+127")
"""The last double that is not rounded to an infinite float."""
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "+INF": math.inf, "-Infinity": -math.inf, "-INF": -math.inf}
"""Texts that are numbers, for Spark."""


def kind_of(found: pa.DataType, formats: TimeFormats, *, packed: bool, path: str = "") -> Kind:
    """Return how values of an Arrow type are read.

    Args:
        found: the type, as Spark has it for a column.
        formats: of times.
        packed: whether from msgpack; else from JSON.
        path: of the column.

    Raises:
        ConfigError: payloads are not read as this.
    """
    if isinstance(found, pa.StructType):
        return _variant(packed) if is_variant(found) else _struct(found, formats, packed=packed, path=path)
    if isinstance(found, pa.MapType):
        if not pa.types.is_string(found.key_type):
            raise ConfigError(f"column {path} of the schema is a map whose keys are {found.key_type}: use STRING")
        return _map(found, kind_of(found.item_type, formats, packed=packed, path=path))
    if isinstance(found, pa.ListType):
        return _list(found, kind_of(found.value_type, formats, packed=packed, path=path))
    if pa.types.is_boolean(found):
        return _plain(found, bool, lambda value: value if value is True or value is False else _refuse(value, found))
    if pa.types.is_integer(found):
        return _integer(found)
    if pa.types.is_floating(found):
        return _floating(found)
    if pa.types.is_string(found):
        return Kind(str | int, _text, _build_texts)
    if pa.types.is_binary(found):
        return _plain(found, bytes, _bytes)
    if isinstance(found, pa.Decimal128Type):
        return _decimal(found)
    if isinstance(found, pa.TimestampType):
        return _timestamp(found, formats)
    if pa.types.is_date32(found):
        return _date(found, formats)
    raise ConfigError(
        f"column {path} of the schema is {found}: payloads are read as strings, numbers, booleans, dates, timestamps, "
        "binaries, variants, arrays, maps and structs; read a string and cast it"
    )


def _refuse(value: Any, kind: pa.DataType) -> Any:
    raise Misfit(f"{_short(value)} is no {kind}")


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Real) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _plain(kind: pa.DataType, quick: Any, careful: Callable[[Any], Any]) -> Kind:
    def build(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
        return pa.array(values, kind), _NONE

    return Kind(quick, careful, build)


def _one_by_one(
    values: Sequence[Any], places: Sequence[int], kind: pa.DataType, read: Callable[[Any], Any]
) -> tuple[dict[int, Any], dict[int, Miss]]:
    """Return the values at some places, and which of them are none."""
    good: dict[int, Any] = {}
    missed: dict[int, Miss] = {}
    for at in places:
        try:
            good[at] = read(values[at])
        except (ValueError, OverflowError, ArithmeticError):
            missed[at] = Miss(f"{_short(values[at])} is no {kind}", whole=True)
    return good, missed


# -- numbers -------------------------------------------------------------------------------------------------


def _integer(kind: pa.DataType) -> Kind:
    bound = 1 << (kind.bit_width - 1)

    def careful(value: Any) -> int:
        if type(value) is int and -bound <= value < bound:
            return value
        return cast("int", _refuse(value, kind))

    return _plain(kind, Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)], careful)


def _floating(kind: pa.DataType) -> Kind:
    most = _FLOAT_MAX if pa.types.is_float32(kind) else sys.float_info.max

    def careful(value: Any) -> float:
        if type(value) is str and value in _WORDS:
            return _WORDS[value]
        if type(value) is float and not math.isfinite(value):
            return value
        if type(value) in (int, float, Real):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if abs(number) <= most:
                return number
        return cast("float", _refuse(value, kind))

    quick: Any = float
    if pa.types.is_float32(kind):
        quick = Annotated[float, msgspec.Meta(ge=-most, le=most)]
    return _plain(kind, quick, careful)


def _decimal(kind: pa.Decimal128Type) -> Kind:
    context = decimal.Context(prec=kind.precision, traps=[decimal.InvalidOperation])
    unit = decimal.Decimal(1).scaleb(-kind.scale)

    def careful(value: Any) -> decimal.Decimal:
        if type(value) in (int, str, float, Real, decimal.Decimal):
            try:
                return decimal.Decimal(str(value))
            except decimal.InvalidOperation:
                pass
        return cast("decimal.Decimal", _refuse(value, kind))

    def exact(value: decimal.Decimal | None) -> decimal.Decimal | None:
        if value is None:
            return None
        found = value.quantize(unit, context=context)
        if found != value:
            raise ValueError("digits would be lost")
        return found

    def build(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
        try:
            return pa.array(values, kind), _NONE
        except (pa.ArrowInvalid, pa.ArrowTypeError, decimal.DecimalException):
            good, missed = _one_by_one(values, range(len(values)), kind, exact)
            return pa.array([good.get(at) for at in range(len(values))], kind), missed

    return Kind(decimal.Decimal, careful, build)


# -- texts ---------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Return a text; what is something else is taken as it is written, as Spark does."""
    if type(value) is str:
        found = value
    elif type(value) is bytes:
        try:
            found = value.decode()
        except UnicodeDecodeError:
            raise Misfit("bytes that are no text in UTF-8") from None
    elif isinstance(value, _TIMES):
        found = value.isoformat()
    else:
        found = str(value) if isinstance(value, _WRITTEN) else _as_json(value)
    if not found.isprintable():
        try:
            found.encode()
        except UnicodeEncodeError:
            raise Misfit("half a pair of surrogates is no text") from None
    return found


_TIMES: Final = (datetime.date, datetime.time)
_WRITTEN: Final = (Real, decimal.Decimal, uuid.UUID)
"""What Avro and Protobuf have besides, and how it is written."""


def _build_texts(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
    try:
        return pa.array(values, pa.string()), _NONE
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # whole numbers are among them, as identifiers often are
        return pa.array([str(value) if type(value) is int else value for value in values], pa.string()), _NONE


def _as_json(value: Any) -> str:
    if isinstance(value, (Real, decimal.Decimal)):
        return str(value)
    if isinstance(value, _TIMES):
        return f'"{value.isoformat()}"'
    if isinstance(value, uuid.UUID):
        return f'"{value}"'
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_as_json(item)}" for name, item in items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_as_json, cast("list[object]", value))) + "]"
    if isinstance(value, bytes):
        raise Misfit("bytes have no form in JSON")
    return json.dumps(value, ensure_ascii=False)


def _bytes(value: Any) -> bytes:
    """Return bytes; a text is base64, in which there may be line ends."""
    if type(value) is bytes:
        return value
    if type(value) is str:
        try:
            return base64.b64decode(re.sub(r"[ \t\r\n]", "", value), validate=True)
        except (binascii.Error, ValueError):
            raise Misfit(f"{_short(value)} is no base64") from None
    return cast("bytes", _refuse(value, pa.binary()))


# -- times ---------------------------------------------------------------------------------------------------

_SECOND: Final = 1_000_000


def _timestamp(kind: pa.TimestampType, formats: TimeFormats) -> Kind:
    zoned = kind.tz is not None
    of_text = timestamp_reader(formats, zoned=zoned)
    as_usual = (formats.timestamp if zoned else formats.timestamp_ntz) is None

    def read(value: Any) -> int | None:
        if type(value) is int:  # seconds
            if abs(value) > 2**63 // _SECOND:
                raise ValueError("a time that is too far away")
            return value * _SECOND
        return None if value is None else of_text(value)

    return _times(kind, str | int if zoned else str, read, as_usual=as_usual)


def _date(kind: pa.DataType, formats: TimeFormats) -> Kind:
    of_text = date_reader(formats)

    def read(value: Any) -> int | None:
        return None if value is None else of_text(value)

    return _times(kind, str, read, as_usual=formats.date is None)


def _times(kind: pa.DataType, quick: Any, read: Callable[[Any], int | None], *, as_usual: bool) -> Kind:
    taken = (str,) if quick is str else (str, int)
    number = pa.int32() if pa.types.is_date(kind) else pa.int64()

    def careful(value: Any) -> Any:
        if isinstance(value, _TIMES):
            return value.isoformat()
        return value if type(value) in taken else _refuse(value, kind)

    def build(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
        usual = usual_texts(values, kind) if as_usual else None
        if usual is None:
            good, missed = _one_by_one(values, range(len(values)), kind, read)
            return pa.array([good.get(at) for at in range(len(values))], number).cast(kind), missed
        column, others = usual
        if not others:
            return column, _NONE
        good, missed = _one_by_one(values, others, kind, read)
        placed = pa.array([good.get(at) for at in range(len(values))], number).cast(kind)
        return pc.coalesce(column, placed), missed

    return Kind(quick, careful, build)


# -- what holds others ---------------------------------------------------------------------------------------


def _struct(kind: pa.StructType, formats: TimeFormats, *, packed: bool, path: str) -> Kind:
    fields = StructFields(kind, formats, packed=packed, path=path)

    def build(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
        mask = None
        if None in values:
            mask = pa.array([value is None for value in values])
            values = [fields.empty if value is None else value for value in values]
        columns, missed = fields.build(values)
        found = pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask) if columns else pa.nulls(0, kind)
        return found, missed

    return Kind(fields.quick, fields.careful, build)


@final
class StructFields:
    """The fields of a payload, or of a struct in one.

    Args:
        kind: the fields that are wanted; others are passed over.
        formats, packed, path: see ``kind_of``.
    """

    def __init__(self, kind: pa.StructType, formats: TimeFormats, *, packed: bool, path: str = "") -> None:
        names = [field.name for field in kind]
        self._fields: Final = [
            (
                f"f{number}",
                field.name,
                kind_of(field.type, formats, packed=packed, path=f"{path}.{field.name}" if path else field.name),
            )
            for number, field in enumerate(kind)
        ]
        # Short names of its own: a name in a payload may be anything.  Nothing in it refers back, so it needs no
        # garbage collection.
        self.quick: Final = msgspec.defstruct(
            "Payload",
            [(slot, field.nullable, None) for slot, _, field in self._fields],
            rename=dict(zip((slot for slot, _, _ in self._fields), names, strict=True)),
            gc=False,
            eq=False,
        )
        self.empty: Final = self.quick()
        self._careful: Final = [(slot, name, kind.careful, kind.keeps_null) for slot, name, kind in self._fields]

    def careful(self, value: Any) -> Any:
        """Convert a dict; see ``Kind``."""
        if type(value) is not dict:
            raise Misfit(f"{_short(value)} is no object")
        entries = cast("dict[str, Any]", value)
        found: dict[str, Any] = {}
        missed: str | None = None
        for slot, name, careful, keeps_null in self._careful:
            entry = entries.get(name)
            if entry is not None or (keeps_null and name in entries):
                try:
                    found[slot] = careful(entry)
                except Misfit as error:
                    found[slot] = error.rest
                    missed = missed or _at(name, error.reason)
        struct = self.quick(**found)
        if missed is not None:
            raise Misfit(missed, struct)
        return struct

    def build(self, structs: Sequence[Any]) -> tuple[list[pa.Array[Any]], Missed]:
        """Return a column for each field, and which structs have one that does not fit."""
        columns: list[pa.Array[Any]] = []
        all_missed: dict[int, Miss] = {}
        for slot, name, kind in self._fields:
            column, missed = kind.build(list(map(attrgetter(slot), structs)))
            columns.append(column)
            for at, miss in missed.items():
                all_missed.setdefault(at, Miss(_at(name, miss.reason), whole=False))
        return columns, all_missed


def _at(name: str, reason: str) -> str:
    return f"{name}: {reason}"


def _elements(values: Sequence[Any], missed: Missed) -> dict[int, Miss]:
    """Return which lists hold elements that do not fit, from the places of these among all elements."""
    ends = list(accumulate(0 if value is None else len(value) for value in values))
    found: dict[int, Miss] = {}
    at = 0
    for place in sorted(missed):
        while ends[at] <= place:
            at += 1
        miss = missed[place]
        found[at] = Miss(miss.reason, whole=miss.whole or (at in found and found[at].whole))
    return found


def _offsets(values: Sequence[Any]) -> pa.Array[Any]:
    """Return where each list begins among all elements, and where the last one ends; a null is a list that is null."""
    begins = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    offsets = [None if value is None else begin for value, begin in zip(values, begins, strict=False)]
    return pa.array([*offsets, begins[-1]], pa.int32())


def _nested(
    values: Sequence[Any], assemble: Callable[[Sequence[Any]], tuple[pa.Array[Any], Missed]]
) -> tuple[pa.Array[Any], Missed]:
    """Build arrays or maps; one with an element of which nothing is left becomes null."""
    column, missed = assemble(values)
    if not missed:
        return column, _NONE
    of_lists = _elements(values, missed)
    gone = {at for at, miss in of_lists.items() if miss.whole}
    if gone:
        column, _ = assemble([None if at in gone else value for at, value in enumerate(values)])
    return column, of_lists


def _list(kind: pa.ListType, element: Kind) -> Kind:
    def assemble(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
        inner, missed = element.build(list(chain.from_iterable(value for value in values if value is not None)))
        return pa.ListArray.from_arrays(_offsets(values), inner, type=kind), missed

    def careful(value: Any) -> Any:
        if type(value) is not list:
            raise Misfit(f"{_short(value)} is no array")
        return _each(cast("list[object]", value), element)

    return Kind(list[element.nullable], careful, lambda values: _nested(values, assemble))  # type: ignore[name-defined]


def _map(kind: pa.MapType, item: Kind) -> Kind:
    def assemble(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
        there = [value for value in values if value is not None]
        keys = pa.array(list(chain.from_iterable(there)), pa.string())
        inner, missed = item.build(list(chain.from_iterable(value.values() for value in there)))
        return pa.MapArray.from_arrays(_offsets(values), keys, inner, type=kind), missed

    def careful(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit(f"{_short(value)} is no object")
        entries = cast("dict[str, Any]", value)
        names = [_text(name) for name in entries]
        rest: Any
        try:
            rest, missed = _each(list(entries.values()), item), None
        except Misfit as error:
            if error.rest is None:
                raise
            rest, missed = error.rest, error.reason
        found = dict(zip(names, rest, strict=True))
        if missed is not None:
            raise Misfit(missed, found)
        return found

    return Kind(dict[str, item.nullable], careful, lambda values: _nested(values, assemble))  # type: ignore[name-defined]


def _each(values: list[Any], kind: Kind) -> list[Any]:
    found: list[Any] = []
    missed: str | None = None
    for value in values:
        try:
            found.append(None if value is None and not kind.keeps_null else kind.careful(value))
        except Misfit as error:
            if error.rest is None:
                raise
            found.append(error.rest)
            missed = error.reason
    if missed is not None:
        raise Misfit(missed, found)
    return found


# -- variants ------------------------------------------------------------------------------------------------


def _variant(packed: bool) -> Kind:
    """Return the kind of a variant: any value, encoded by PySpark, in Python, one by one."""

    def text_of(value: Any) -> str:
        if isinstance(value, str):
            return value
        raw = bytes(cast("msgspec.Raw", value))
        return _as_json(msgspec.msgpack.decode(raw)) if packed else raw.decode()

    def build(values: Sequence[Any]) -> tuple[pa.Array[Any], Missed]:
        missed: dict[int, Miss] = {}
        found: list[tuple[bytes, bytes] | None] = []
        for at, value in enumerate(values):
            pair = None
            if value is not None:
                try:
                    pair = VariantUtils.parse_json(text_of(value))
                except (ValueError, RecursionError, OverflowError, ArithmeticError, PySparkException) as error:
                    missed[at] = Miss(f"no variant: {error}", whole=True)
            found.append(pair)
        fields = [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
        columns = [
            pa.array([b"" if pair is None else pair[number] for pair in found], pa.binary()) for number in (0, 1)
        ]
        mask = pa.array([pair is None for pair in found], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask), missed

    return Kind(msgspec.Raw, _as_json, build)
