"""Anti-entropy between two replicas over a tunnel: the asker gets what it lacks.

The asker sends the digest of its document, 16 bytes; none if it is empty.  The other replica answers with a byte:
whether its document differs, and whether it is still catching up.  If they are equal, that is all.  Else the asker
sends its version vector, the digests of all buckets and its writer's number, unless it is empty.  It gets the other's
vector, the users of all numbers, and the entries of the buckets that differ, in pieces; an empty message ends them.
That is the document at one moment, so the asker merges it as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Annotated, Final, final

import msgspec
import trio
from msgspec import Meta, Struct

from iris.kernel.config import KIB
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.patterns.state.entries import (
    AT_A_TIME,
    BUCKETS,
    MAX_VALUE,
    OVERHEAD,
    WRITERS,
    Entry,
    Vector,
    check_entries_untrusted,
    encode,
    read_untrusted,
)
from iris.patterns.state.replica import Replica
from iris.patterns.tunnel import Tunnel

_PIECE: Final = 64 * KIB
"""Size of the entries after which a piece ends, in bytes; it ends after ``AT_A_TIME`` of them as well."""
_LONGEST: Final = _PIECE + MAX_VALUE + 8 * KIB

_DIFFERENT: Final = 1
_CATCHING_UP: Final = 2

_Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]


USERS: Final = 2
"""Known members that use one number, at most: with more, each of them still sees that it is not alone."""
Claim = tuple[Annotated[int, Meta(ge=0, lt=WRITERS)], NodeId]


@final
class _Question(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    vector: Vector
    digests: Annotated[list[_Digest], Meta(min_length=BUCKETS, max_length=BUCKETS)]
    writer: Annotated[int, Meta(ge=-1, lt=WRITERS)]
    """Number of the asker's writer. -1: it has none."""


@final
class Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Header of the entries that follow: what is known, who uses which numbers, and the buckets that differ."""

    vector: Vector
    claimed: Annotated[list[Claim], Meta(max_length=USERS * WRITERS + 1)]
    """Numbers of writers, each with a member that uses it."""
    buckets: Annotated[list[Annotated[int, Meta(ge=0, lt=BUCKETS)]], Meta(max_length=BUCKETS)]


@final
class Snapshot:
    """Entries that another replica, or a copy on disk, has in some buckets."""

    def __init__(self, header: Header, max_bytes: float) -> None:
        self.header: Final = header
        self.entries: Final[dict[int, Entry]] = {}
        self._size = 0
        self._max_bytes = max_bytes

    def add_untrusted(self, piece: bytes) -> None:
        """Read a piece; raise RemoteProtocolError if it is malformed, or more than a document has."""
        entries = read_untrusted(piece, list[Entry], "a piece")
        self._size += len(piece) + OVERHEAD * len(entries)
        if len(piece) > _LONGEST or len(entries) > AT_A_TIME or self._size > self._max_bytes:
            raise RemoteProtocolError(f"a piece is too long, or more than {self._max_bytes} bytes are no document")
        check_entries_untrusted(entries)
        vector = self.header.vector
        for entry in entries:
            if entry.dot // WRITERS > vector.get(entry.dot % WRITERS, 0):
                raise RemoteProtocolError("a replica has entries that its vector does not count")
            self.entries[entry.dot] = entry

    def merge(self, replica: Replica, users: Collection[int]) -> Iterator[None]:
        """Merge it into a replica; see ``Replica.absorb``."""
        return replica.absorb(self.header.vector, self.header.buckets, self.entries, users)


def pieces(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Encode entries in pieces."""
    piece: list[msgspec.Raw] = []
    size = 0
    for entry in map(encode, entries):
        piece.append(msgspec.Raw(entry))
        size += len(entry)
        if size >= _PIECE or len(piece) == AT_A_TIME:
            yield encode(piece)
            piece, size = [], 0
    if piece:
        yield encode(piece)


async def pull(
    tunnel: Tunnel, replica: Replica, max_bytes: int, progress: Callable[[], None]
) -> tuple[bool, Snapshot | None]:
    """Return whether the other end has caught up, and what the replica lacks of it; None if they are equal.

    Args:
        progress: called when a whole piece came: who gives little by little is waited for as one that stands still.

    Raises:
        RemoteProtocolError: the other end sends something else, or more than ``max_bytes``.
        IrisError: the tunnel broke.
    """
    await in_steps(replica.refresh())
    digest = replica.digest()
    await tunnel.send(digest)
    answer = await _receive(tunnel)
    if len(answer) != 1 or answer[0] > _DIFFERENT + _CATCHING_UP:
        raise RemoteProtocolError("a member answers a comparison with something else than one byte below 4")
    caught_up = not answer[0] & _CATCHING_UP
    if not answer[0] & _DIFFERENT:
        return caught_up, None
    if digest:
        await in_steps(replica.refresh())
        await tunnel.send(encode(_Question(replica.vector, replica.digests(), replica.writer)))
    snapshot = Snapshot(read_untrusted(await _receive(tunnel), Header, "what comes before entries"), max_bytes)
    while piece := await _receive(tunnel):
        before = len(snapshot.entries)
        snapshot.add_untrusted(piece)
        if len(piece) >= _PIECE or len(snapshot.entries) - before == AT_A_TIME:
            progress()
    return caught_up, snapshot


async def serve(
    tunnel: Tunnel, replica: Replica, claimed: Callable[[], list[Claim]], *, caught_up: bool
) -> tuple[Vector, int]:
    """Send the other end what it lacks; return its version vector, and its writer's number, or -1.

    Args:
        claimed: returns who uses which numbers.
        caught_up: True if this replica has caught up with another one, or there was none.

    Raises:
        RemoteProtocolError: the other end sends something else.
        IrisError: the tunnel broke.
    """
    digest = await _receive(tunnel)
    await in_steps(replica.refresh())  # after that wait: meanwhile everything may have changed
    answer = 0 if caught_up else _CATCHING_UP
    if digest == replica.digest():
        await tunnel.send(bytes([answer]))
        return {}, -1
    await tunnel.send(bytes([answer | _DIFFERENT]))
    question = read_untrusted(await _receive(tunnel), _Question, "a question") if digest else None
    await in_steps(replica.refresh())
    lacking = replica.difference(question.digests if question else ())
    await tunnel.send(encode(Header(replica.vector, claimed(), list(lacking))))
    for piece in pieces(entry for entries in lacking.values() for entry in entries):
        await tunnel.send(piece)
    await tunnel.send(b"")
    return (question.vector, question.writer) if question else ({}, -1)


async def in_steps(steps: Iterator[None]) -> None:
    """Run steps, with a checkpoint after each."""
    for _ in steps:
        await trio.lowlevel.checkpoint()


async def _receive(tunnel: Tunnel) -> bytes:
    """Receive the next message; raise RemoteProtocolError if there is none, or it is not bytes."""
    try:
        message = await tunnel.receive()
    except trio.EndOfChannel:
        raise RemoteProtocolError("a member ended the comparison of a document early") from None
    if not isinstance(message, bytes):
        raise RemoteProtocolError("a member sent something else than bytes")
    return message
