"""Payload types: what a payload must be to fit a user's schema, as types of msgspec, for msgpack and for JSON.

They are a little wider than what Arrow reads, and narrower only where ``TextReader`` knows: msgspec says quickly which
payloads of a batch do not fit, and Arrow has the last word on the others.
"""

from __future__ import annotations

import functools
import sys
from typing import Annotated, Any, Final, final

import msgspec
import pyarrow as pa

_Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""JSON has no nan, and msgspec writes null for it."""

_FLOAT_MAX: Final = float.fromhex("0x1.fffffeffffffep+127")
"""The last double that is not rounded to an infinite float."""
_Float = Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)]

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a payload that does not fit."""


def payload_struct(kind: pa.StructType) -> type[msgspec.Struct]:
    """Return a class with the fields of ``kind``, each of which may be missing or null."""
    fields = list(kind)
    return msgspec.defstruct(
        "Payload",
        [(f"f{number}", _type(field.type) | None, None) for number, field in enumerate(fields)],
        rename={f"f{number}": field.name for number, field in enumerate(fields)},
        omit_defaults=True,
    )


@final
class TextReader:
    """Tells which payloads of JSON fit.  Get one from ``text_reader``.

    Args:
        kind: the fields that are wanted.
    """

    def __init__(self, kind: pa.StructType) -> None:
        self._decode: Final = msgspec.json.Decoder(payload_struct(kind) | None).decode

    def places(self, texts: pa.Array[Any]) -> list[int | None]:
        """Return the place of each payload among those that may fit, or None."""
        decode = self._decode
        places: list[int | None] = []
        count = 0
        for text in texts.to_pylist():
            try:
                decode(text)
            except RecursionError:  # too deep for msgspec, also in fields that nobody wants
                pass
            except UNREADABLE:
                if not may_be_no_number(text):
                    places.append(None)
                    continue
            places.append(count)
            count += 1
        return places


def may_be_no_number(text: bytes) -> bool:
    """Tell whether ``NaN`` or ``Infinity`` may be in it: not JSON, but Python writes and Arrow reads them."""
    return b"NaN" in text or b"Inf" in text


@functools.lru_cache(maxsize=64)
def text_reader(kind: pa.StructType) -> TextReader:
    """Return this process's reader for the fields of ``kind``; to make one takes 0.2 ms."""
    return TextReader(kind)


def _type(kind: pa.DataType) -> Any:
    """Return what a value of an Arrow type is in JSON and in msgpack."""
    if isinstance(kind, pa.StructType):
        return payload_struct(kind)
    if isinstance(kind, pa.ListType):
        return list[_type(kind.value_type) | None]  # type: ignore[misc]  # made at run time
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_float32(kind):
        return int | _Float
    if pa.types.is_floating(kind):
        return int | _Finite
    if pa.types.is_decimal(kind):
        return int | _Finite | str
    return str
