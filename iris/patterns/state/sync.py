"""Synchronization of two replicas over a tunnel: one gets what it lacks of the other.

The one that asks sends the digest of its document, 16 bytes.  If the other one has the same, it says so, and that is
all.  Else it gets the vector and the digests of all buckets, and sends its vector, the numbers of writers that are in
use, and the entries of the buckets that differ, in pieces; an empty message ends them.  What it sends is its document
at one moment, so the one that asks takes it as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, TypeVar, final

import msgspec
import trio
from msgspec import Meta, Struct

from iris.kernel.config import KIB
from iris.kernel.errors import RemoteProtocolError
from iris.patterns.state.entries import (
    AT_A_TIME,
    BUCKETS,
    MAX_VALUE,
    WRITERS,
    Entry,
    Vector,
    encode,
    read_entries_untrusted,
)
from iris.patterns.state.replica import Replica
from iris.patterns.tunnel import Tunnel

_T = TypeVar("_T")

_PIECE: Final = 64 * KIB
"""Bytes of entries after which a piece ends; it ends after ``AT_A_TIME`` of them as well."""
_LONGEST: Final = _PIECE + MAX_VALUE + 8 * KIB
_BUCKETS_AT_A_TIME: Final = 16
"""Buckets whose digests are computed in one step: some ms of a full document."""

_EQUAL: Final = b""
_DIFFERENT: Final = b"\x01"


@final
class _Question(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    vector: Vector
    digests: Annotated[
        list[Annotated[bytes, Meta(min_length=16, max_length=16)]], Meta(min_length=BUCKETS, max_length=BUCKETS)
    ]


@final
class _Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    vector: Vector
    claimed: Annotated[list[Annotated[int, Meta(ge=0, lt=WRITERS)]], Meta(max_length=WRITERS)]
    """Numbers of writers that present members use."""
    buckets: Annotated[list[Annotated[int, Meta(ge=0, lt=BUCKETS)]], Meta(max_length=BUCKETS)]


async def pull(tunnel: Tunnel, replica: Replica, max_bytes: int) -> tuple[int, list[int]]:
    """Get what a replica lacks of the one at the other end; return the bytes of that, and the numbers in use.

    Cancelling it, or an error, leaves the replica as it was.

    Raises:
        RemoteProtocolError: the other end sends something else, or more than ``max_bytes``.
        IrisError: the tunnel broke.
    """
    await _refresh(replica)
    await tunnel.send(replica.digest())
    if await receive_bytes(tunnel) == _EQUAL:
        return 0, []
    await _refresh(replica)
    await tunnel.send(encode(_Question(replica.vector, replica.digests())))
    header = read_untrusted(await receive_bytes(tunnel), _Header)
    buckets = frozenset(header.buckets)
    entries: dict[int, Entry] = {}
    size = received = 0
    while piece := await receive_bytes(tunnel):
        if len(piece) > _LONGEST:
            raise RemoteProtocolError(f"a piece of a document has {len(piece)} bytes")
        received += len(piece)
        for entry in read_entries_untrusted(piece):
            size += entry.size
            if entry.dot in entries or entry.bucket not in buckets:
                raise RemoteProtocolError("an entry comes twice, or was not asked for")
            entries[entry.dot] = entry
        if size > max_bytes:
            raise RemoteProtocolError(f"a member has more than {max_bytes} bytes, which no document has")
    replica.absorb(header.vector, buckets, entries)
    return received, header.claimed


async def serve(tunnel: Tunnel, replica: Replica, claimed: Collection[int]) -> Vector | None:
    """Give the replica at the other end what it lacks; return its vector if that one may have more, else None.

    Raises:
        RemoteProtocolError: the other end sends something else.
        IrisError: the tunnel broke.
    """
    digest = await receive_bytes(tunnel)
    await _refresh(replica)  # after that wait: meanwhile everything may have changed
    if digest == replica.digest():
        await tunnel.send(_EQUAL)
        return None
    await tunnel.send(_DIFFERENT)
    question = read_untrusted(await receive_bytes(tunnel), _Question)
    await _refresh(replica)
    lacking = replica.difference(question.digests)
    await tunnel.send(encode(_Header(replica.vector, sorted(claimed), list(lacking))))
    piece: list[bytes] = []
    size = 0
    for entries in lacking.values():
        for entry in entries:
            piece.append(encode(entry))
            size += len(piece[-1])
            if size >= _PIECE or len(piece) == AT_A_TIME:
                await tunnel.send(encode([msgspec.Raw(one) for one in piece]))
                piece, size = [], 0
    if piece:
        await tunnel.send(encode([msgspec.Raw(one) for one in piece]))
    await tunnel.send(b"")
    return question.vector


async def _refresh(replica: Replica) -> None:
    """Have the digests that are missing computed, without holding up the loop."""
    while not replica.refresh(_BUCKETS_AT_A_TIME):
        await trio.lowlevel.checkpoint()


async def receive_bytes(tunnel: Tunnel) -> bytes:
    """Receive the next message.

    Raises:
        RemoteProtocolError: there is none, or it is not bytes.
    """
    try:
        message = await tunnel.receive()
    except trio.EndOfChannel:
        raise RemoteProtocolError("a member ended the comparison of a document early") from None
    if not isinstance(message, bytes):
        raise RemoteProtocolError("a member sent something else than bytes")
    return message


def read_untrusted(data: bytes, kind: type[_T]) -> _T:
    """Read a message of another member.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a message about a document is malformed: {error}") from None
