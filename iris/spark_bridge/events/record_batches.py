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
from typing import IO, Final, final

import pyarrow as pa

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteProtocolError

MAX_BODY: Final = 4 * MIB
"""Largest batch in a stream, in bytes: ``write_rows`` makes batches of 1 MiB, or of one row, which is little more."""

MAX_METADATA: Final = 64 * KIB
"""Largest metadata of a message, in bytes: 700 for our columns."""

_PREFIX: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF

# Numbers of fields in Message.fbs.
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_COMPRESSION: Final = 3  # of RecordBatch
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
    body = _Flatbuffer(metadata).number(_BODY_LENGTH, "q")
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
    message = _Flatbuffer(view[_PREFIX.size : _PREFIX.size + length])
    if message.number(_HEADER_TYPE, "B") != _BATCH:
        raise RemoteProtocolError("it is no record batch")
    if message.number(_VERSION, "h") != _V5:
        raise RemoteProtocolError("it is of a version of Arrow IPC before 1.0: write it with V5")
    if message.table(_HEADER).has(_COMPRESSION):
        raise RemoteProtocolError("it is compressed: write it without compression")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(view), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise RemoteProtocolError(f"not a record batch: {error}") from None
    return batch


@final
class _Flatbuffer:
    """A table in a flatbuffer, read as Arrow's C++ reads it, which verifies the rest.

    A table begins with its distance from its vtable; that has its own size, the size of the table, and the places of
    the fields in it, 0 for those that are not there.

    Raises:
        RemoteProtocolError: it leads out of its bytes.
    """

    def __init__(self, data: bytes | memoryview, at: int | None = None) -> None:
        self._data = data
        self._at = self._read("I", 0) if at is None else at
        self._vtable = self._at - self._read("i", self._at)
        self._size = self._read("H", self._vtable)

    def _read(self, kind: str, at: int) -> int:
        size = struct.calcsize(kind)
        if not 0 <= at <= len(self._data) - size:
            raise RemoteProtocolError("the metadata of a message leads out of it")
        value: int = struct.unpack_from(f"<{kind}", self._data, at)[0]
        return value

    def _place(self, field: int) -> int:
        """Return where a field is; 0: it is not there."""
        entry = 4 + 2 * field
        place = self._read("H", self._vtable + entry) if entry < self._size else 0
        return self._at + place if place else 0

    def has(self, field: int) -> bool:
        """Return whether a field is there."""
        return self._place(field) != 0

    def number(self, field: int, kind: str) -> int:
        """Return a field that is a number, of a kind as ``struct`` names it; 0 if it is not there."""
        place = self._place(field)
        return self._read(kind, place) if place else 0

    def table(self, field: int) -> _Flatbuffer:
        """Return the table to which a field leads."""
        place = self._place(field)
        if not place:
            raise RemoteProtocolError("the metadata of a message lacks what it is about")
        return _Flatbuffer(self._data, place + self._read("I", place))
