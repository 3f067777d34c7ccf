"""Relay tree: an overlay multicast tree for one message, with origin authentication (sans-IO).

Rules of this file:

- The origin names every receiver.  Each node on the way gets the names of those to which it forwards.  So each receiver
  is named once, whatever the views of the others.  Every forwarding node is a receiver itself: nobody sees a message
  that was not meant for it.
- The origin's work is the same for any number of receivers: one signature and ``fan_out`` messages.
- The origin signs the message with its node signing key and every receiver verifies the signature: a forwarding node
  can neither change a message nor forge one.
- The origin numbers its messages and a receiver accepts each number once: no message arrives twice or circulates.
- The origin signs the date as well, and a receiver accepts nothing that is a minute old.  A node that has received a
  message cannot replay it later to a node that has started since and has seen no number.

At most once: a node that dies with a message in hand loses it for those behind it.  The node that had sent it the
message counts them.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

from iris.cluster.swim import statement_bytes
from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds

MAX_BEHIND: Final = 512
"""Receivers behind one node: their 8 KiB fit into a frame beside the largest payload.  More make the tree wider."""

_WINDOW: Final = 4096
"""Messages of one origin that may overtake each other.  Older numbers count as repeats."""

_NODE: Final = 16
_SIGNATURE: Final = 64
_PURPOSE: Final = b"iris relay 2"

MAX_AGE: Final = 60
"""Seconds that the clock of an origin may be behind or ahead of a receiver's, the transit time included."""


class Branch(NamedTuple):
    """One node to send a message to, and those to which it forwards the message."""

    head: NodeId
    behind: tuple[NodeId, ...]


def arranged(origin: NodeId, receivers: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Return the receivers in the order in which an origin divides them.

    It begins at the origin's own place among them: the work of forwarding falls to others for each origin, and one
    origin's messages take the same route as long as the receivers are the same, so that they stay in order.
    """
    ring = sorted(receivers)
    start = bisect_left(ring, origin)
    return (*ring[start:], *ring[:start])


def divided(receivers: Sequence[NodeId], fan_out: int) -> list[tuple[NodeId, ...]]:
    """Divide receivers into ``fan_out`` parts of the same size, give or take one; into more if that is not enough."""
    count = len(receivers)
    parts = min(count, max(fan_out, -(-count // (MAX_BEHIND + 1))))
    bounds = [count * part // parts for part in range(parts + 1)] if parts else []
    return [tuple(receivers[first:last]) for first, last in itertools.pairwise(bounds)]


def divided_by_site(
    origin: NodeId, receivers: Sequence[NodeId], fan_out: int, site_of: Callable[[NodeId], str]
) -> list[tuple[NodeId, ...]]:
    """Divide receivers for their origin: those at its own site as ever, those at each other site into one part.

    Nodes of one site are linked to each other and forward messages; a message goes to another site once.
    """
    by_site: dict[str, list[NodeId]] = {}
    for node in receivers:
        by_site.setdefault(site_of(node), []).append(node)
    own = site_of(origin)
    return [
        part
        for site, nodes in sorted(by_site.items())
        for part in divided(arranged(origin, nodes), fan_out if site == own else 1)
    ]


def branch(part: Sequence[NodeId], reachable: Callable[[NodeId], bool]) -> Branch | None:
    """Choose the relay for the others of a part: the first that is reachable; None if none is."""
    for head in part:
        if reachable(head):
            return Branch(head, tuple(node for node in part if node != head))
    return None


def claim(relay: kinds.Relay) -> bytes:
    """Return the bytes that the origin signs."""
    digest = hashlib.sha256(relay.body).digest()
    numbers = relay.number.to_bytes(8, "big") + relay.at.to_bytes(8, "big")
    return statement_bytes(_PURPOSE, [relay.origin, numbers, digest])


def is_current(relay: kinds.Relay, wall_now: float) -> bool:
    """Return whether a message was sent within a minute of ``wall_now``."""
    return abs(wall_now - relay.at) <= MAX_AGE


def relay_size(relay: kinds.Relay) -> int:
    """Return the size of a message on a link, in bytes."""
    return len(relay.behind) + len(relay.body) + _NODE + _SIGNATURE + wire.CHECK


def behind_untrusted(relay: kinds.Relay) -> list[NodeId]:
    """Return the nodes that the receiver forwards to; raise RemoteProtocolError if one is named twice, or in part."""
    names = relay.behind.hex()
    nodes = [NodeId(names[start : start + 2 * _NODE]) for start in range(0, len(names), 2 * _NODE)]
    if len(relay.behind) % _NODE or len(set(nodes)) != len(nodes):
        raise RemoteProtocolError("a relayed message names nodes of 16 bytes, and none twice")
    return nodes


@final
class Seen:
    """Replay window: which of the last 4,096 numbers of one origin have arrived, one bit each."""

    __slots__ = ("_bits", "_highest")

    def __init__(self) -> None:
        self._highest = 0
        self._bits = 0

    def add(self, number: int) -> bool:
        """Note a number; return whether it is new."""
        ahead = number - self._highest
        if ahead > 0:
            self._bits = 1 if ahead >= _WINDOW else (self._bits << ahead | 1) & _MASK
            self._highest = number
            return True
        if -ahead >= _WINDOW:  # looked at before anything has as many bits as an origin says
            return False
        bit = 1 << -ahead
        if self._bits & bit:
            return False
        self._bits |= bit
        return True


_MASK: Final = (1 << _WINDOW) - 1
