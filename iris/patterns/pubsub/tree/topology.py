"""Event tree: the overlay multicast tree of one publisher, its shape, and the messages that travel over it (sans-IO).

A broadcast divides its receivers anew with each message.  Events have to stay in order, so their tree is built once and
stays: each node learns to whom it forwards, and every event for a node takes the same path.  Rules of this file:

- The nodes of a tree have places 0, 1, 2, ...; a set of nodes is one integer, used as a bit mask.  A message names its
  receivers by such a mask, 13 bytes for 100 nodes, so that topics with different subscribers share one tree.
- A node and those behind it have consecutive places.
- A node forwards only what it may subscribe to itself: above each node stand only nodes with the same rights.
- The publisher signs its messages, the mask of receivers included, and every receiver verifies the signature.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, final

from iris.cluster.swim import statement_bytes
from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.multicast import arranged, divided

MAX_PLACES: Final = 4096
"""Nodes of one tree; a set of them has 512 bytes."""

MAX_CHILDREN: Final = 64
"""Nodes that one node forwards events to: forwarding for others costs it at most so many copies."""

_NODE: Final = 16
_SIGNATURE: Final = 64
_PURPOSE: Final = b"iris events 1"

END: Final = b""
"""The body of the last message of a tree."""


class Child(NamedTuple):
    """A node to forward events to."""

    node: NodeId
    mask: int
    """Places of the node and of those behind it."""


class TreePosition(NamedTuple):
    """Position of a node in a tree."""

    bit: int
    mask: int
    """Places of the node and of those behind it."""
    children: tuple[Child, ...]


@final
class TreeShape(NamedTuple):
    """A tree as its publisher has it."""

    top: tuple[Child, ...]
    places: Mapping[NodeId, TreePosition]


def shaped(publisher: NodeId, classes: Iterable[Sequence[NodeId]], fan_out: int) -> TreeShape:
    """Return the tree of a publisher.

    Args:
        publisher: node that decides which ones stand at the top, so that the work falls to others for each publisher.
        classes: nodes by their rights; each class has branches of its own.
        fan_out: nodes to which each one sends an event, 64 at most.  At the top there may be more: one for each class
            at least.
    """
    rings = [arranged(publisher, nodes) for nodes in classes]
    count = sum(map(len, rings))
    places: dict[NodeId, TreePosition] = {}

    def grow(part: Sequence[NodeId]) -> Child:
        bit = 1 << len(places)
        mask = bit * ((1 << len(part)) - 1)
        places[part[0]] = TreePosition(bit, mask, ())  # its number comes before those of the nodes behind it
        children = tuple(grow(behind) for behind in divided(part[1:], min(fan_out, MAX_CHILDREN)))
        places[part[0]] = TreePosition(bit, mask, children)
        return Child(part[0], mask)

    top = tuple(
        itertools.chain.from_iterable(
            map(grow, divided(ring, max(1, fan_out * len(ring) // count))) for ring in rings if ring
        )
    )
    return TreeShape(top, places)


# -- the tree, as it is announced to its nodes ---------------------------------------------------------------


def packed_mask(mask: int) -> bytes:
    """Return a set of places as it travels."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "big")


class TreeRole(NamedTuple):
    """The role of a node in a tree: its own place, and the nodes to which it forwards events."""

    tree: int
    bit: int
    children: tuple[Child, ...]

    def message(self) -> tuple[kinds.EventTree, int]:
        """Return the wire form, and its size."""
        fields = tuple((bytes.fromhex(child.node), packed_mask(child.mask)) for child in self.children)
        size = 16 + sum(3 * wire.ELEMENT + _NODE + len(mask) for _, mask in fields)
        return kinds.EventTree(self.tree, packed_mask(self.bit), fields), size


def role_untrusted(message: kinds.EventTree) -> TreeRole:
    """Return this node's role from its publisher; raise RemoteProtocolError for places or children that no tree has."""
    place = int.from_bytes(message.place)
    if place.bit_count() != 1:
        raise RemoteProtocolError("a node of a tree has one place")
    children: list[Child] = []
    taken = place
    for node, mask in message.children:
        behind = int.from_bytes(mask)
        if not behind or behind & taken:
            raise RemoteProtocolError("each place of a tree is behind one child")
        taken |= behind
        children.append(Child(wire.node_of(node), behind))
    if len({child.node for child in children}) < len(children):
        raise RemoteProtocolError("a node of a tree is one child and not several")
    return TreeRole(message.tree, place, tuple(children))


# -- what travels over it --------------------------------------------------------------------------------------


@final
class RelayedEvents(NamedTuple):
    """Events of one publisher in transit through its tree.

    Attributes:
        tree: number of the publisher's tree.
        number: number that grows with each message of the tree.
        mask: places it is for; nodes on the way forward it and have nothing else to do with it.
        body: messages, packed; empty in the last one.
    """

    publisher: NodeId
    tree: int
    number: int
    mask: int
    body: bytes
    signature: bytes

    @property
    def claim(self) -> bytes:
        """Statement that the signature is over."""
        return claim(self.publisher, self.tree, self.number, self.mask, self.body)

    @property
    def work(self) -> int:
        """Work for its receiver, in messages, with its signature: the body is an array of them, or nothing."""
        return wire.RELAYED_CHECK + wire.array_length(self.body)

    def message(self) -> tuple[kinds.EventsRelayed, int]:
        """Return the wire form, and its size."""
        mask = packed_mask(self.mask)
        fields = (bytes.fromhex(self.publisher), self.tree, self.number, mask, self.body, self.signature)
        return kinds.EventsRelayed(*fields), _NODE + len(mask) + len(self.body) + _SIGNATURE

    @staticmethod
    def of(message: kinds.EventsRelayed) -> RelayedEvents:
        """Return the events of a message.  Their signature is not checked here."""
        publisher, mask = wire.node_of(message.publisher), int.from_bytes(message.places)
        return RelayedEvents(publisher, message.tree, message.number, mask, message.body, message.signature)


def claim(publisher: NodeId, tree: int, number: int, mask: int, body: bytes) -> bytes:
    """Return the statement that the publisher signs."""
    numbers = tree.to_bytes(8, "big") + number.to_bytes(8, "big")
    digest = hashlib.sha256(body).digest()
    return statement_bytes(_PURPOSE, [bytes.fromhex(publisher), numbers, packed_mask(mask), digest])


CARRIED: Final = wire.BatchDecoder(kinds.Events, kinds.Retained, kinds.InterestKnown)
"""Decoder of bodies: the messages that trees carry."""
