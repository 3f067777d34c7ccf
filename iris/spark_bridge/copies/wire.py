"""Wire of copies: the tunnel ``follow`` between a copy and its primary.

========== ======================================================= ===================================================
from       message                                                 meaning
========== ======================================================= ===================================================
copy       {copy, term, promised, revision, held: size}, bytes     who it is, the term of its log, and what it has
primary    {term, state: bytes}                                    which term it is of; how the bridge was started
primary    {change: bytes of the head, size: bytes of all}, bytes  a change to repeat
primary    {state: bytes}                                          other copies are known now
copy       {number, whole, next: {shard: offset}, revision}        what is on its disk, and which state it knows
copy       {promised}                                              it follows a later term: this primary is none now
either     {error: code, message: text}                            why it ends
========== ======================================================= ===================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import trio

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteError, RemoteProtocolError, TunnelBroken
from iris.kernel.tasks import run_in_thread
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.log import LogChange, decode_change_untrusted, encode_head

_PIECE: Final = 256 * KIB
"""Size of one message, in bytes: a chunk of the tunnel, and a frame, where nodes have ``BRIDGE_CONFIG``."""

_SMALL: Final = 16 * KIB
"""Size up to which parts share a message, in bytes."""

_MOST: Final = 1024 * MIB
"""Largest change, in bytes: the tables of a log that is at every limit, and 8 MiB of chunks."""


async def send_bytes(tunnel: Tunnel, data: bytes) -> None:
    """Send bytes, in messages of 256 KiB."""
    await _send(tunnel, (data,))


async def receive_bytes(tunnel: Tunnel, size: int) -> bytes:
    """Receive ``size`` bytes.

    Raises:
        RemoteProtocolError: something else came.
        RemoteError: the other end has ended.
    """
    parts: list[bytes] = []
    left = size
    while left > 0:
        part = await _receive(tunnel)
        if not isinstance(part, bytes):
            raise_error_of(part)
            raise RemoteProtocolError("a copy's tunnel carries a value where bytes were announced")
        parts.append(part)
        left -= len(part)
    if left:
        raise RemoteProtocolError("a copy's tunnel carries more bytes than were announced")
    return b"".join(parts)


async def send_change(tunnel: Tunnel, change: LogChange) -> None:
    """Send a change."""
    head = encode_head(change.head)
    await tunnel.send({"change": len(head), "size": len(head) + sum(map(len, change.data))})
    await _send(tunnel, (head, *change.data))


async def _send(tunnel: Tunnel, parts: Iterable[bytes | memoryview]) -> None:
    for piece in _pieces(parts):
        await tunnel._send_encoded(piece, packed=False)  # ``send`` would copy a view, and these never change


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of parts in pieces: small parts are put together, larger ones are not copied."""
    small = b""
    for part in parts:
        if len(small) + len(part) <= _SMALL:
            small += part
            continue
        if small:
            yield small
            small = b""
        for at in range(0, len(part), _PIECE):
            yield memoryview(part)[at : at + _PIECE]
    if small:
        yield small


async def receive_change(tunnel: Tunnel, fields: Mapping[str, object]) -> LogChange:
    """Receive the change that ``fields`` have announced.

    Raises:
        LogDamaged, RemoteProtocolError, RemoteError: it is none.
    """
    head, size = number(fields, "change"), number(fields, "size")
    if not head <= size <= _MOST:
        raise RemoteProtocolError(f"a change of {size} bytes: at most {_MOST} are taken")
    data = await receive_bytes(tunnel, size)
    if head < _PIECE:
        return decode_change_untrusted(data, head)
    return await run_in_thread(decode_change_untrusted, data, head)


async def receive_fields(tunnel: Tunnel) -> Mapping[str, object]:
    """Receive a message that has fields.

    Raises:
        RemoteProtocolError: it has none.
        RemoteError: the other end says why it ends.
        TunnelBroken: it has ended.
    """
    message = await _receive(tunnel)
    raise_error_of(message)
    if not isinstance(message, dict):
        raise RemoteProtocolError("a copy's tunnel carries something else than was announced")
    return cast("dict[str, object]", message)


async def _receive(tunnel: Tunnel) -> object:
    try:
        return cast("object", await tunnel.receive())
    except trio.EndOfChannel:
        raise TunnelBroken("the other end of a copy's tunnel has left") from None


def raise_error_of(message: Any) -> None:
    """Raise the error that a message reports, if it reports one."""
    if isinstance(message, dict):
        fields = cast("dict[str, object]", message)
        if "error" in fields:
            raise RemoteError(str(fields["error"]), str(fields.get("message", "")))


def number(fields: Mapping[str, object], name: str) -> int:
    """Return a whole number of a message.

    Raises:
        RemoteProtocolError: it is none.
    """
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise RemoteProtocolError(f"a copy's tunnel carries {value!r} for {name}")
    return value


def data(fields: Mapping[str, object], name: str) -> bytes:
    """Return bytes of a message.

    Raises:
        RemoteProtocolError: they are none.
    """
    value = fields.get(name)
    if not isinstance(value, bytes):
        raise RemoteProtocolError(f"a copy's tunnel carries {type(value).__name__} for {name}")
    return value
