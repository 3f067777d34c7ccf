"""Wire of copies: the tunnel ``follow`` between a copy and its primary, and what a promotion asks the copies.

The copy sends ``Follow`` and, as bytes, what it has.  The primary answers with ``FollowAnswer``.  From then on it sends
``ToCopy``, and the copy ``FromCopy``.  Either may end it by {error: code, message: text}.
"""

# Not ``from __future__ import annotations``, see ``iris.patterns.bridge_protocol``.

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, TypeVar

import trio
from msgspec import Meta, Struct

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteError, RemoteProtocolError, TunnelBroken
from iris.kernel.tasks import run_in_thread
from iris.patterns.bridge_protocol import Name, Number, Offset, as_fields, read_reply
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.log import LogChange, decode_change_untrusted, encode_head

T = TypeVar("T")

_PIECE: Final = 256 * KIB
"""Size of one message, in bytes: a chunk of the tunnel, and a frame, where nodes have ``BRIDGE_CONFIG``."""

_SMALL: Final = 16 * KIB
"""Size up to which parts share a message, in bytes."""

_MOST: Final = 1024 * MIB
"""Largest change, in bytes: the tables of a log that is at every limit, and 8 MiB of chunks."""


_MOST_HELD: Final = 256 * MIB


class Follow(Struct, kw_only=True):
    """Identity of a copy, and its place in the log."""

    copy: Name
    term: Number
    """Term of its log."""
    promised: Number
    revision: Number
    held: Annotated[int, Meta(ge=0, le=_MOST_HELD)]
    """Size of the bytes that follow."""
    disk: Annotated[str, Meta(max_length=64)] = ""
    """Identity of its disk; empty: a copy of 0.9."""


class FollowAnswer(Struct, kw_only=True):
    """Term of the primary, and the state of its log: see ``encode_state``."""

    term: Number
    state: bytes


class AnnouncedChange(Struct, kw_only=True):
    """A change to repeat, in the bytes that follow."""

    head: Number
    """Size of its head, in bytes."""
    size: Annotated[int, Meta(ge=0, le=_MOST)]
    """Size of all."""

    def __post_init__(self) -> None:
        if self.head > self.size:
            raise ValueError(f"a change of {self.size} bytes has a head of {self.head}")


class ToCopy(Struct, omit_defaults=True, kw_only=True):
    """Message of a primary to a copy: one of these."""

    change: AnnouncedChange | None = None
    state: bytes | None = None
    """State in which other copies are known now."""
    asked: Number | None = None
    """Number of a question whether the copy still follows."""


class OnDisk(Struct, kw_only=True):
    """Progress of a copy: what is on its disk, and the revision of the state that it knows."""

    number: Number
    whole: bool
    next: dict[Number, Offset]
    revision: Number


class FromCopy(Struct, omit_defaults=True, kw_only=True):
    """Message of a copy to its primary: one of these."""

    on_disk: OnDisk | None = None
    promised: Number | None = None
    """Later term that it follows: this primary is none now."""
    follows: Number | None = None
    """Number of a question that it answers: it still follows."""


class CopyState(Struct, kw_only=True):
    """State of a copy, as it reports it to a promotion."""

    copy: Name
    term: Number
    number: Number
    whole: bool
    promised: Number
    revision: Number
    copies: tuple[Name, ...]
    counted: tuple[Name, ...]
    min_copies: Number
    next: dict[Number, Offset]
    problem: str = ""
    followed: Number = 0
    """Term of the primary that it follows now; 0: none."""
    emptied: bool = False
    """True if it counted, began anew with nothing, and is catching up."""
    granted: bool = False
    """True if it has made the promise that it was asked for."""

    @property
    def place(self) -> tuple[int, int]:
        """Term and number of the copy's last change; copies of one log compare by this pair."""
        return self.term, self.number


class Promise(Struct, omit_defaults=True, kw_only=True):
    """Follow no primary of a term below this one."""

    term: Number
    succeeded: Number | None = None
    """Term of the primary that is to be succeeded: who follows a later one does not promise. None: whichever."""


class Promote(Struct, kw_only=True):
    """Become the primary of a term that was promised, if this copy is meant."""

    copy: Name
    term: Number
    min_copies: Number | None = None


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
            _raise_refusal(part)
            raise RemoteProtocolError("a copy's tunnel carries a value where bytes were announced")
        parts.append(part)
        left -= len(part)
    if left:
        raise RemoteProtocolError("a copy's tunnel carries more bytes than were announced")
    return b"".join(parts)


async def send_change(tunnel: Tunnel, change: LogChange) -> None:
    """Send a change."""
    head = encode_head(change.head)
    announced = AnnouncedChange(head=len(head), size=len(head) + sum(map(len, change.data)))
    await send_message(tunnel, ToCopy(change=announced))
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


async def receive_change(tunnel: Tunnel, announced: AnnouncedChange) -> LogChange:
    """Receive the announced change; raise LogDamaged, RemoteProtocolError or RemoteError if none comes."""
    data = await receive_bytes(tunnel, announced.size)
    if announced.head < _PIECE:
        return decode_change_untrusted(data, announced.head)
    return await run_in_thread(decode_change_untrusted, data, announced.head)


async def send_message(tunnel: Tunnel, message: Struct) -> None:
    """Send one of the messages above."""
    await tunnel.send(as_fields(message))  # numbers of shards are keys, which travel as texts


async def receive_message(tunnel: Tunnel, kind: type[T]) -> T:
    """Receive a message.

    Raises:
        RemoteProtocolError: it is another one.
        RemoteError: the other end says why it ends.
        TunnelBroken: it has ended.
    """
    message = await _receive(tunnel)
    _raise_refusal(message)
    return read_reply(kind, message)


async def _receive(tunnel: Tunnel) -> object:
    try:
        message: object = await tunnel.receive()
        return message
    except trio.EndOfChannel:
        raise TunnelBroken("the other end of a copy's tunnel has left") from None


def _raise_refusal(message: object) -> None:
    match message:
        case {"error": str(code), "message": str(text)}:
            raise RemoteError(code, text)
        case _:
            pass
