"""SP mapping: frames of a PUSH to a PULL over a stream, as nng and nanomsg send them.

First each end sends a header of eight bytes that says which of the two it is.  Then each frame stands behind its
length, eight bytes, big-endian; over a Unix socket there is one byte more before that, the type of the message.

Sources: sp-tcp-mapping-01 and sp-ipc-mapping-01 of nanomsg.  The latter gives 0 for the type of all messages; nanomsg
and nng send 1, and take nothing else.

A reverse connection has the roles exchanged: who dials is the PULL.  Behind its header comes the token that the PUSH
waits for, of ``TOKEN_SIZE`` letters and digits; this is Iris' own, and no other implementation dials so.
"""

from __future__ import annotations

import struct
from typing import Final

from iris.kernel.config import KIB

GREETING: Final = b"\0SP\0\0\x50\0\0"
"""The header of a PUSH."""

ANSWER: Final = b"\0SP\0\0\x51\0\0"
"""The header of a PULL."""

TOKEN_SIZE: Final = 32
"""Size in bytes of the token of a reverse connection."""

LENGTH: Final = struct.Struct(">Q")

MESSAGE: Final = 1
"""The type of everything that goes by ipc."""

TYPED: Final = 1
"""Size of the type in bytes."""

_TYPE_AND_LENGTH: Final = struct.Struct(">BQ")

_SMALL: Final = KIB
"""Limit in bytes up to which a frame goes in one piece: to copy it costs less than a piece more."""


def with_length(frame: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """Return what goes over TCP for a frame, in pieces."""
    size = len(frame)
    return (LENGTH.pack(size) + frame,) if size <= _SMALL else (LENGTH.pack(size), frame)


def with_type_and_length(frame: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """Return what goes over a Unix socket for a frame, in pieces."""
    size = len(frame)
    head = _TYPE_AND_LENGTH.pack(MESSAGE, size)
    return (head + frame,) if size <= _SMALL else (head, frame)
