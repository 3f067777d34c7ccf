"""Arrow IPC from untrusted processes: record batches, decoded at a bounded cost.

Arrow's own reader of streams allocates what the sender claims: a body may be compressed (3 KiB of it become 64 MiB), in
the present form of it or in that of 2020, and a message may be of any size.  So a message is examined before Arrow
decodes it: an uncompressed body lies in the bytes that have arrived, and takes no more than these.  Each batch is then
validated in full, because Arrow follows offsets without a check: 20 us for a chunk of 900 events.

An encapsulated message is FF FF FF FF, the length of its metadata as a little-endian int32, the metadata, which is a
flatbuffer ``Message`` (Message.fbs of the Arrow format), and its body.  A stream is the message of a schema, those of
batches, and a length of 0 or nothing at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO, Final

import pyarrow as pa

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteProtocolError

MAX_BODY: Final = 4 * MIB
"""Largest batch in a stream, in bytes: ``write_rows`` makes batches of 1 MiB, or of one row, which is little more."""

MAX_METADATA: Final = 64 * KIB
"""Largest metadata of a message, in bytes: 700 for our columns."""

_PREFIX: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF

_OFFSET: Final = struct.Struct("<I")
_DISTANCE: Final = struct.Struct("<i")
_NUMBER: Final = struct.Struct("<H")
_LENGTH: Final = struct.Struct("<q")

_V5: Final = 4
"""The only version without the form of compression of 2020, which V4 has in its custom metadata."""
_BATCH: Final = 3


def read_rows_untrusted(file: IO[bytes], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream; at most ``MAX_BODY`` and its metadata are in memory at a time.

    Raises:
        RemoteProtocolError: it is no stream of this schema, or one that takes more memory than it should.
        OSError: the file cannot be read.
    """
    first = True
    while (message := _next_message(file)) is not None:
        if first:
            _check_schema(message, schema)
            first = False
        else:
            yield read_batch_untrusted(message, schema)
    if first:
        raise RemoteProtocolError("it ends before it says which columns it has")


def _next_message(file: IO[bytes]) -> bytes | None:
    prefix = file.read(_PREFIX.size)
    if not prefix:
        return None
    if len(prefix) < _PREFIX.size:
        raise RemoteProtocolError("a message is cut off")
    continuation, length = _PREFIX.unpack(prefix)
    if continuation != _CONTINUATION or not 0 <= length <= MAX_METADATA:
        raise RemoteProtocolError("no message of Arrow IPC begins where one should")
    if not length:
        return None
    metadata = file.read(length)
    try:
        table = _OFFSET.unpack_from(metadata)[0]
        place = _fields(metadata, table)[3]
        body = _LENGTH.unpack_from(metadata, table + place)[0] if place else 0
    except struct.error:
        raise RemoteProtocolError("the metadata of a message leads out of it") from None
    if not 0 <= body <= MAX_BODY:
        raise RemoteProtocolError(f"a batch claims to have {body} bytes: the limit is {MAX_BODY}")
    message = b"".join((prefix, metadata, file.read(body)))
    if len(message) < _PREFIX.size + length + body:
        raise RemoteProtocolError("a message is cut off")
    return message


def _check_schema(message: bytes, schema: pa.Schema) -> None:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise RemoteProtocolError(f"its columns cannot be read: {error}") from None
    if not found.equals(schema):
        raise RemoteProtocolError(f"it holds other columns: {', '.join(found.names)}")


def read_batch_untrusted(data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in one encapsulated message; it refers to ``data``, and takes no memory besides.

    Raises:
        RemoteProtocolError: it is something else, is compressed, or does not hold what it says.
    """
    view = memoryview(data)
    if len(view) < _PREFIX.size:
        raise RemoteProtocolError("a message is cut off")
    continuation, length = _PREFIX.unpack_from(view)
    if continuation != _CONTINUATION or not 0 < length <= min(MAX_METADATA, len(view) - _PREFIX.size):
        raise RemoteProtocolError("no message of Arrow IPC begins where one should")
    metadata = view[_PREFIX.size : _PREFIX.size + length]
    try:
        table = _OFFSET.unpack_from(metadata)[0]
        version, kind, header = _fields(metadata, table)[:3]
        if not kind or metadata[table + kind] != _BATCH:
            raise RemoteProtocolError("it is no record batch")
        if not version or _NUMBER.unpack_from(metadata, table + version)[0] != _V5:
            raise RemoteProtocolError("it is of a version of Arrow IPC before 1.0: write it with V5")
        if not header:
            raise RemoteProtocolError("the metadata of a message lacks what it is about")
        at = table + header
        if _fields(metadata, at + _OFFSET.unpack_from(metadata, at)[0])[3]:
            raise RemoteProtocolError("it is compressed: write it without compression")
    except (struct.error, IndexError):
        raise RemoteProtocolError("the metadata of a message leads out of it") from None
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(view), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise RemoteProtocolError(f"not a record batch: {error}") from None
    return batch


def _fields(data: bytes | memoryview, table: int) -> list[int]:
    """Return where the first four fields of a table in a flatbuffer are, as Arrow's C++ has it; 0: not there.

    A table begins with its distance from its vtable; that has its own size, the size of the table, and the places of
    the fields in it, 0 for those that are not there.

    Raises:
        struct.error: it leads out of its bytes.
    """
    vtable = table - _DISTANCE.unpack_from(data, table)[0]
    if vtable < 0:
        raise struct.error("a vtable before the first byte")
    known = min(4, max(0, _NUMBER.unpack_from(data, vtable)[0] - 3) // 2)
    return [*struct.unpack_from(f"<{known}H", data, vtable + 4), 0, 0, 0, 0]
