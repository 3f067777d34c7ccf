"""Updates of a document as they come from others: Yjs's binary format, version 1, read and checked.  Sans-IO.

The library that keeps documents is written in Rust and trusts what it is given: a length that is a lie, or a reference
to what is not there, costs memory, a panic or the whole process.  So each update is read here first.  What passes is
well formed, holds no number that the library cannot count on from, and needs nothing that the document lacks: the
library then sets nothing aside.  Shared types within others are refused: it deletes them by recursion, and a chain of
100,000, which has a megabyte, ends the process.

Format: ``y-crdt/yrs`` (``updates/decoder.rs``) and ``yjs`` (``src/utils/encoding.js``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final, final

from msgspec import Struct

from iris.kernel.errors import RemoteProtocolError

Vector = Mapping[int, int]
"""By replica: how many units of what it has written are there.  Yjs calls it a state vector."""

EMPTY: Final = b"\x00\x00"
"""An update without anything in it."""

MAX_CLOCK: Final = 2**31
"""Units that one replica may have written: the library counts them with 32 bits."""
MAX_REPLICA: Final = 2**53
_MAX_DEPTH: Final = 32
"""Nesting of lists and maps within one value."""
_MALFORMED: Final = "an update of a document is malformed"


class MissingUpdates(Exception):
    """An update builds on others that have not come yet."""


@final
class UpdateExtent(Struct, frozen=True):
    """What an update holds, and what it needs.

    Attributes:
        blocks: by replica, the first unit that is in it and the end.
        needs: by replica, the end of what it refers to.
        deletes: whether it deletes something.
    """

    blocks: Mapping[int, tuple[int, int]]
    needs: Vector
    deletes: bool

    def check(self, known: Vector) -> None:
        """Make sure that a document can take the update as a whole.

        Raises:
            MissingUpdates: something has to come before it.
        """
        for replica, (start, _) in self.blocks.items():
            if start > known.get(replica, 0):
                raise MissingUpdates
        for replica, end in self.needs.items():
            if end > known.get(replica, 0) and (replica not in self.blocks or end > self.blocks[replica][1]):
                raise MissingUpdates


@final
class _Reader:
    """The bytes of an update from front to back.  Each method raises IndexError at their end."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self) -> int:
        """Read an unsigned number of 53 bits at most."""
        byte = self.data[self.at]
        self.at += 1
        if byte < 128:
            return byte
        value, shift = byte & 127, 7
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 56:
                raise RemoteProtocolError(f"{_MALFORMED}: a number has more than 53 bits")
        if value >= MAX_REPLICA:
            raise RemoteProtocolError(f"{_MALFORMED}: a number has more than 53 bits")
        return value

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self.data):
            raise IndexError

    def text(self) -> str:
        size = self.number()
        start = self.at
        self.skip(size)
        return self.data[start : self.at].decode()

    def value(self, depth: int = 0) -> None:
        """Read over one value."""
        kind = self.data[self.at]
        self.at += 1
        if kind == 119:
            self.text()
        elif kind == 125:  # a signed number: six bits and the sign come first
            byte = self.data[self.at]
            self.at += 1
            if byte & 128:
                self.number()
        elif kind == 123 or kind == 122:
            self.skip(8)
        elif kind == 124:
            self.skip(4)
        elif kind in (117, 118):
            if depth >= _MAX_DEPTH:
                raise RemoteProtocolError(f"{_MALFORMED}: a value is nested deeper than {_MAX_DEPTH}")
            for _ in range(self.count()):
                if kind == 118:
                    self.text()
                self.value(depth + 1)
        elif kind == 116:
            self.skip(self.number())
        elif kind not in (120, 121, 126, 127):
            raise RemoteProtocolError(f"{_MALFORMED}: there is no kind of value {kind}")

    def count(self) -> int:
        """Read how many things follow, each of which takes a byte or more."""
        count = self.number()
        if count > len(self.data) - self.at:
            raise IndexError
        return count

    def content(self, kind: int) -> int:
        """Read over the content of one item; return how many units it is long."""
        if kind == 8:
            count = self.count()
            for _ in range(count):
                self.value()
            return count
        if kind == 4:
            text = self.text()
            return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
        if kind == 1:
            return self.number()
        if kind == 3:
            self.skip(self.number())
        elif kind == 5:
            json.loads(self.text())
        elif kind == 6:
            self.text()
            json.loads(self.text())
        elif kind == 7:
            raise RemoteProtocolError(f"{_MALFORMED}: a shared type is within another one, use plain values there")
        else:
            raise RemoteProtocolError(f"{_MALFORMED}: there is no kind of content {kind}")
        return 1


def read_update_untrusted(data: bytes) -> UpdateExtent:
    """Read what an update holds and needs.

    Raises:
        RemoteProtocolError: it is malformed, or counts further than ``MAX_CLOCK``.
    """
    reader = _Reader(data)
    blocks: dict[int, tuple[int, int]] = {}
    needs: dict[int, int] = {}
    try:
        for _ in range(reader.count()):
            count, replica, start = reader.count(), reader.number(), reader.number()
            if replica in blocks or not count:
                raise RemoteProtocolError(f"{_MALFORMED}: a replica is in it twice, or with nothing")
            end = _read_block(reader, count, replica, start, needs)
            blocks[replica] = (start, end)
        deletes = reader.count()
        for _ in range(deletes):
            replica = reader.number()
            for _ in range(reader.count()):
                start = reader.number()
                end = start + reader.number()
                if end > MAX_CLOCK:
                    raise RemoteProtocolError(f"{_MALFORMED}: it counts further than {MAX_CLOCK}")
                if end > needs.get(replica, 0):
                    needs[replica] = end
    except (IndexError, ValueError, RecursionError):  # of texts that are no UTF-8 and no JSON, too
        raise RemoteProtocolError(_MALFORMED) from None
    if reader.at != len(data):
        raise RemoteProtocolError(f"{_MALFORMED}: {len(data) - reader.at} bytes come after its end")
    return UpdateExtent(blocks, needs, deletes > 0)


def _read_block(reader: _Reader, count: int, replica: int, clock: int, needs: dict[int, int]) -> int:
    """Read over what one replica has written; return the end."""
    number, data = reader.number, reader.data
    for _ in range(count):
        info = data[reader.at]
        reader.at += 1
        if info == 0:  # what was here is gone
            length = number()
        elif info == 10:
            raise RemoteProtocolError(f"{_MALFORMED}: something is left out in the middle")
        else:
            if info & 0xC0:
                for _ in range(2 if info & 0xC0 == 0xC0 else 1):
                    origin, at = number(), number() + 1
                    if origin == replica and at > clock:
                        raise RemoteProtocolError(f"{_MALFORMED}: something in it builds on what comes after it")
                    if at > needs.get(origin, 0):
                        needs[origin] = at
            else:
                if number() != 1:
                    raise RemoteProtocolError(f"{_MALFORMED}: a parent is no shared type of the document")
                reader.text()
                if info & 0x20:
                    reader.text()
            length = reader.content(info & 0x1F)
        if not length:
            raise RemoteProtocolError(f"{_MALFORMED}: something in it has no length")
        clock += length
        if clock > MAX_CLOCK:
            raise RemoteProtocolError(f"{_MALFORMED}: it counts further than {MAX_CLOCK}")
    return clock


def read_vector_untrusted(data: bytes) -> dict[int, int]:
    """Read how much a document has of each replica.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    reader = _Reader(data)
    try:
        vector = {reader.number(): reader.number() for _ in range(reader.count())}
    except IndexError:
        raise RemoteProtocolError(f"{_MALFORMED}: what a document has") from None
    if reader.at != len(data) or any(clock > MAX_CLOCK for clock in vector.values()):
        raise RemoteProtocolError(f"{_MALFORMED}: what a document has")
    return vector


def write_vector(vector: Vector) -> bytes:
    """Write how much there is of each replica: the same bytes for the same vector."""
    return b"".join(map(_varint, (len(vector), *(number for pair in sorted(vector.items()) for number in pair))))


def _varint(value: int) -> bytes:
    return bytes(_digits(value))


def _digits(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
