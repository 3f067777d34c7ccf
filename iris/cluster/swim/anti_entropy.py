"""Anti-entropy: two nodes compare their whole views with few bytes, and repair what differs.

Rules of this file:

- First 256 bucket hashes (2 KiB) are compared; equal views cost nothing more.
- Then the (node, incarnation) pairs of the buckets that differ, 24 bytes each, in messages of bounded size; a
  message holds whole buckets, or one bucket alone that is too large is cut (and then looks short, which only
  costs a needless push).
- Only the live are compared.  What one side holds gone and the other live is a contradiction: nobody is believed,
  the subject is asked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar, final

from msgspec import Struct

from iris.cluster.swim.gossip import MAX_SIGNATURES, Update, signatures_of
from iris.cluster.swim.records import MemberState
from iris.cluster.swim.view import BUCKETS, View, bucket_of
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import MAX_NUMBER

_ENTRY: Final = struct.Struct(">16sQ")
_NODE: Final = 16

U = TypeVar("U", bound=Update)

MAX_DIGEST: Final = 48 * 1024
"""Limit in bytes on one digest, and one list of wanted nodes: 2,048 entries, or 3,072 nodes."""


def differing_buckets(view: View, theirs: bytes) -> bytes:
    """Return the buckets that differ from a peer's hashes."""
    ours = view.hashes()
    if ours == theirs:
        return b""
    return bytes(b for b in range(BUCKETS) if ours[b * 8 : b * 8 + 8] != theirs[b * 8 : b * 8 + 8])


def digests(view: View, buckets: Iterable[int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield ``(buckets, entries)`` for each message that describes these buckets."""
    covered = bytearray()
    entries = bytearray()
    for bucket in buckets:
        listed = view.buckets[bucket]
        if covered and len(entries) + len(listed) * _ENTRY.size > MAX_DIGEST:
            yield bytes(covered), bytes(entries)
            covered.clear()
            entries.clear()
        covered.append(bucket)
        for node, incarnation in listed.items():
            if len(entries) + _ENTRY.size <= MAX_DIGEST:
                entries += _ENTRY.pack(bytes.fromhex(node), incarnation)
    if covered:
        yield bytes(covered), bytes(entries)


@final
class Comparison(Struct, frozen=True, kw_only=True):
    """The result of comparing a peer's digest with the own view."""

    wanted: list[NodeId]
    """The peer knows them better."""

    offered: list[NodeId]
    """The peer lacks them or knows them worse; also those that it holds live although they left."""

    contradicted: list[tuple[NodeId, int]]
    """The peer holds them live at this incarnation, this node holds them dead."""


def compared_untrusted(view: View, covered: bytes, packed: bytes) -> Comparison:
    """Compare a peer's digest with the view; raise RemoteProtocolError if it is malformed."""
    if len(packed) % _ENTRY.size:
        raise RemoteProtocolError(f"digest entries are {_ENTRY.size} bytes")
    in_digest = set(covered)
    theirs: dict[NodeId, int] = {}
    for raw, incarnation in _ENTRY.iter_unpack(packed):
        node = NodeId(raw.hex())
        if bucket_of(node) not in in_digest or incarnation > MAX_NUMBER:
            raise RemoteProtocolError("a digest entry is outside its buckets or limits")
        theirs[node] = incarnation
    wanted: list[NodeId] = []
    offered: list[NodeId] = []
    contradicted: list[tuple[NodeId, int]] = []
    for node, incarnation in theirs.items():
        if node == view.own.node:
            if incarnation < view.own.incarnation:
                offered.append(node)
            continue
        member = view.find(node)
        if member is None or incarnation > member.record.incarnation:
            wanted.append(node)
        elif member.state is MemberState.DEAD:
            contradicted.append((node, incarnation))
        elif incarnation < member.record.incarnation or member.state is MemberState.LEFT:
            offered.append(node)
    for bucket in covered:
        offered.extend(node for node in view.buckets[bucket] if node not in theirs)
    return Comparison(wanted=wanted, offered=offered, contradicted=contradicted)


def pack_nodes(nodes: list[NodeId]) -> Iterator[bytes]:
    """Yield the ids, 16 bytes each, in pieces that fit a message."""
    per_message = MAX_DIGEST // _NODE
    for start in range(0, len(nodes), per_message):
        yield b"".join(bytes.fromhex(node) for node in nodes[start : start + per_message])


def nodes_untrusted(packed: bytes) -> list[NodeId]:
    """Read packed node ids; raise RemoteProtocolError if the last one is cut off."""
    if len(packed) % _NODE:
        raise RemoteProtocolError(f"node ids are {_NODE} bytes")
    return [NodeId(packed[at : at + _NODE].hex()) for at in range(0, len(packed), _NODE)]


def portions(updates: Iterable[U], max_bytes: int) -> Iterator[list[U]]:
    """Yield the updates in lists that fit a message of ``max_bytes``."""
    portion: list[U] = []
    room, signatures = max_bytes, MAX_SIGNATURES
    for update in updates:
        size, more = update.size, signatures_of(update)
        if portion and (size > room or more > signatures):
            yield portion
            portion = []
            room, signatures = max_bytes, MAX_SIGNATURES
        portion.append(update)
        room -= size
        signatures -= more
    if portion:
        yield portion
