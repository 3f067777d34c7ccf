"""Payload decoding: JSON and msgpack to the columns of a schema, each payload by itself.

msgspec reads a payload and builds the wanted fields only: 0.2 us for one of seven fields, and the columns that Arrow
makes of these take as long again.  A payload that it refuses is looked at once more, in Python, by the rules of
``kinds``: so what does not fit costs by its number, and nothing depends on what stands beside it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import msgspec
import pyarrow as pa
from pyarrow import compute

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import decode_payload_untrusted, join_payload
from iris.spark_bridge.datasource.payloads.framed import unpacker
from iris.spark_bridge.datasource.payloads.framing import PayloadFraming
from iris.spark_bridge.datasource.payloads.kinds import Misfit, Real, StructFields
from iris.spark_bridge.datasource.payloads.times import TimeFormats

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a payload that it refuses."""

_from_json: Final = json.JSONDecoder(parse_float=Real).decode


@final
class PayloadDecoder:
    """Reads payloads.  Get one from ``payload_decoder``.

    Args:
        kind: the fields that are wanted.
        formats: of times.
        framing: of payloads in Avro or Protobuf.
    """

    def __init__(self, kind: pa.StructType, formats: TimeFormats, framing: PayloadFraming | None = None) -> None:
        self._unpack: Final = None if framing is None else unpacker(framing)
        self._texts: Final = StructFields(kind, formats, packed=False)
        self._packed: Final = StructFields(kind, formats, packed=True)
        self._of_text: Final = msgspec.json.Decoder(self._texts.quick).decode
        self._of_packed: Final = msgspec.msgpack.Decoder(self._packed.quick).decode

    def read(
        self, values: Sequence[bytes], packed: Sequence[bool] | bool
    ) -> tuple[list[pa.Array[Any]], dict[int, str]]:
        """Return a column for each field; and for each payload that does not fit its place and the reason.

        Args:
            values: the payloads.
            packed: which of them are msgpack; the others are JSON.
        """
        if self._unpack is not None:
            unpack = self._unpack
            return self._read_rows(values, self._texts, lambda value: _convert(self._texts, unpack(value)), _give_up)
        if not isinstance(packed, bool):
            return self._read_mixed(values, packed)
        fields = self._packed if packed else self._texts
        quick = self._of_packed if packed else self._of_text
        careful = self._look_at_packed if packed else self._look_at_text
        return self._read_rows(values, fields, quick, careful)

    @staticmethod
    def _read_rows(
        values: Sequence[bytes],
        fields: StructFields,
        quick: Callable[[bytes], Any],
        careful: Callable[[bytes, Exception], Any],
    ) -> tuple[list[pa.Array[Any]], dict[int, str]]:
        rows: list[Any] = []
        unfit: dict[int, str] = {}
        for value in values:
            try:
                try:
                    rows.append(quick(value))
                except _UNREADABLE as error:
                    rows.append(careful(value, error))
            except Misfit as misfit:
                unfit[len(rows)] = misfit.reason
                rows.append(fields.empty if misfit.rest is None else misfit.rest)
        columns, missed = fields.build(rows)
        for at, miss in missed.items():
            unfit.setdefault(at, miss.reason)
        return columns, unfit

    def _read_mixed(
        self, values: Sequence[bytes], packed: Sequence[bool]
    ) -> tuple[list[pa.Array[Any]], dict[int, str]]:
        places = [[at for at, found in enumerate(packed) if found is wanted] for wanted in (True, False)]
        parts = [
            self.read([values[at] for at in chosen], wanted)
            for chosen, wanted in zip(places, (True, False), strict=True)
        ]
        order = pa.array(places[0] + places[1])
        back = compute.sort_indices(order)
        columns = [
            pa.concat_arrays([one, other]).take(back) for one, other in zip(parts[0][0], parts[1][0], strict=True)
        ]
        unfit = {chosen[at]: why for chosen, (_, part) in zip(places, parts, strict=True) for at, why in part.items()}
        return columns, unfit

    def _look_at_text(self, value: bytes, error: Exception) -> Any:
        syntax = isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError)
        if syntax and b"NaN" not in value and b"Inf" not in value:  # Python writes these, and they are not JSON
            raise Misfit(_first_line(error))
        return self._convert_text(self._texts, value)

    def _look_at_packed(self, value: bytes, _: Exception) -> Any:
        try:
            payload = decode_payload_untrusted(join_payload(value, packed=True))
        except RemoteProtocolError as error:
            raise Misfit(_first_line(error)) from None
        if isinstance(payload, str):  # of an older log: it is JSON, if it is anything that fits
            return self._convert_text(self._packed, payload.encode())
        return _convert(self._packed, payload)

    @staticmethod
    def _convert_text(fields: StructFields, value: bytes) -> Any:
        try:
            payload = _from_json(value.decode())
        except RecursionError:
            raise Misfit("it is nested too deeply") from None
        except ValueError as error:
            raise Misfit(f"no JSON: {_first_line(error)}") from None
        return _convert(fields, payload)


def _convert(fields: StructFields, payload: Any) -> Any:
    try:
        return fields.careful(payload)
    except RecursionError:
        raise Misfit("it is nested too deeply") from None


def _give_up(_: bytes, error: Exception) -> Any:
    raise Misfit(_first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


@functools.lru_cache(maxsize=64)
def _decoder(schema: bytes, formats: TimeFormats, framing: PayloadFraming | None) -> PayloadDecoder:
    return PayloadDecoder(pa.struct(list(pa.ipc.read_schema(pa.py_buffer(schema)))), formats, framing)


def payload_decoder(schema: pa.Schema, formats: TimeFormats, framing: PayloadFraming | None = None) -> PayloadDecoder:
    """Return this process's decoder for the fields of a schema; to make one takes 0.2 ms.

    Raises:
        ConfigError: payloads are not read as one of its types, or a library for their framing is not installed.
    """
    return _decoder(schema.serialize().to_pybytes(), formats, framing)  # to Arrow a variant is as the struct in it
