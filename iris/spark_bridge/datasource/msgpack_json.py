"""Msgpack payloads to JSON lines, a batch at a time: four calls into C for all payloads, no Python for each.

The payloads are joined and decoded as one array.  One that is cut off, or has surplus bytes, would shift those behind
it.  So before each payload stands a *token*, 16 random bytes that no publisher could know, and the array must consist
of as many pairs of the token and a value as there are payloads.

Only the requested fields are built, in the types that they can have as JSON: other fields of a payload take no memory.
A batch in which one payload has anything else (bytes for a text, nan, another type) is converted payload by payload, by
``iris.spark_bridge.datasource.payload_columns``.  Payloads that can be read here still are, so that a row does not
depend on its neighbours.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Final, cast, final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from iris.spark_bridge.datasource.payload_types import UNREADABLE, payload_struct

_TOKEN_BYTES: Final = 16
_BEFORE_TOKEN: Final = b"\xc4\x10"  # a binary of 16 bytes
_BEFORE_VALUE: Final = b"\x81\xa1v"  # a map of one entry, under "v"


@final
class PackedReader:
    """Turns payloads into lines ``{"v": payload}``.  Get one from ``packed_reader``.

    Args:
        kind: the fields that are wanted.
    """

    def __init__(self, kind: pa.StructType) -> None:
        payload = payload_struct(kind)
        line = msgspec.defstruct("Line", [("v", payload)])
        self._single = msgspec.msgpack.Decoder(payload)
        self._decoder: msgspec.msgpack.Decoder[list[object]] = msgspec.msgpack.Decoder(list[bytes | line])  # type: ignore[valid-type]  # made at run time
        self._encoder = msgspec.json.Encoder()

    def to_lines(self, payloads: pa.Array[Any]) -> bytes | None:
        """Return a line for each payload, or None if one of them is something that is not read here."""
        count = len(payloads)
        token = os.urandom(_TOKEN_BYTES)
        before = pa.scalar(_BEFORE_TOKEN + token + _BEFORE_VALUE, pa.binary())
        joined = pc.binary_join_element_wise(before, payloads, pa.scalar(b"", pa.binary()))
        buffer = joined.buffers()[2]  # made here, so it holds these payloads and nothing else
        try:
            items = self._decoder.decode(b"\xdd" + (2 * count).to_bytes(4) + cast("bytes", buffer))
        except UNREADABLE:
            return None
        if items[::2] != [token] * count:
            return None
        return self._encoder.encode_lines(items[1::2])

    def to_text(self, payload: bytes) -> bytes | None:
        """Return one payload as JSON, or None if it is something that is not read here."""
        try:
            return self._encoder.encode(self._single.decode(payload))
        except UNREADABLE:
            return None


@functools.lru_cache(maxsize=64)
def packed_reader(kind: pa.StructType) -> PackedReader:
    """Return this process's reader for the fields of ``kind``; to make one takes 0.2 ms."""
    return PackedReader(kind)
