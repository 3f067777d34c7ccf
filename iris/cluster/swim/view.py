"""Membership view: the live nodes, the gone ones, and a hash of each part of the live set.

Rules of this file:

- ``find`` knows everybody but this node.  ``live`` lists the alive and the suspect, in no order that means
  anything, so that a random one costs O(1).
- The live set, this node included, is divided into 256 buckets by the first byte of the node id.  Each bucket has
  a hash that is kept up to date; two views agree if and only if (but for one chance in 2**64) their hashes do.
- The gone are remembered, so that late gossip cannot bring them back and so that a healed partition is noticed.
  They are bounded in number; the one gone longest is forgotten first.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Final, final

from iris.cluster.swim.records import MemberState, NodeRecord
from iris.cluster.swim.suspicion import Suspicion
from iris.kernel.names import NodeId

BUCKETS: Final = 256
_HASHES: Final = struct.Struct(f">{BUCKETS}Q")


@final
class NodeState:
    """The state of one other node, as seen from here."""

    __slots__ = ("accused", "met", "nudged", "record", "routed", "since", "state", "suspicion", "unreachable", "wanted")

    def __init__(self, record: NodeRecord, now: float) -> None:
        self.record = record
        self.state = MemberState.ALIVE
        self.since = now
        self.met = now
        """Time at which it came, or came back from the dead."""
        self.suspicion: Suspicion | None = None
        self.unreachable = ""
        """This node's own evidence against the route to the member: ``silent``, ``refused`` or nothing."""
        self.routed = True
        """State of the route in the last ``Routable`` effect."""
        self.nudged = -math.inf
        """Time at which a probe last told the member that others see it suspect or dead."""
        self.accused = 0
        """The incarnation about which an accusation was passed on."""
        self.wanted = -math.inf
        """Time at which its record was last asked for."""

    def __repr__(self) -> str:
        return f"<NodeState {self.record.node[:8]} {self.state.name} {self.record.incarnation}>"

    @property
    def live(self) -> bool:
        """True if the member is alive or only suspect."""
        return self.state <= MemberState.SUSPECT


def entry_hash(node: NodeId, incarnation: int) -> int:
    """Return the 64 bits that a live member contributes to its bucket."""
    return int.from_bytes(hashlib.blake2b(b"%s%d" % (node.encode(), incarnation), digest_size=8).digest(), "big")


def bucket_of(node: NodeId) -> int:
    """Return the bucket that a node belongs to."""
    return int(node[:2], 16)


def pick(live: Sequence[NodeId], random: Random, count: int, excluded: Iterable[NodeId] = ()) -> list[NodeId]:
    """Return up to ``count`` different ones of ``live``, at random."""
    without = set(excluded)
    if len(live) <= count + len(without):
        chosen = [node for node in live if node not in without]
        random.shuffle(chosen)
        return chosen[:count]
    result: list[NodeId] = []
    for at in random.sample(range(len(live)), count + len(without)):
        if live[at] not in without and len(result) < count:
            result.append(live[at])
    return result


class View:
    """The membership view with its bucket hashes.

    Not final: a simulation of thousands keeps what they all agree on only once.
    """

    __slots__ = ("_hashes", "_members", "_position", "buckets", "gone", "live", "own")

    def __init__(self, own: NodeRecord) -> None:
        self._members: dict[NodeId, NodeState] = {}
        self.live: list[NodeId] = []
        self.gone: dict[NodeId, None] = {}
        self.buckets: list[dict[NodeId, int]] = [{} for _ in range(BUCKETS)]
        self._hashes = [0] * BUCKETS
        self._position: dict[NodeId, int] = {}
        self.own = own
        self._enter(own)

    def __repr__(self) -> str:
        return f"<View of {len(self.live)} live, {len(self.gone)} gone>"

    @property
    def size(self) -> int:
        """Live members, this node included."""
        return len(self.live) + 1

    def set_own(self, record: NodeRecord) -> None:
        """This node's record changed."""
        self._leave(self.own.node)
        self.own = record
        self._enter(record)

    def add(self, record: NodeRecord, now: float) -> NodeState:
        """Add a new live member."""
        member = NodeState(record, now)
        self._members[record.node] = member
        self._list(record)
        return member

    def renew(self, member: NodeState, record: NodeRecord) -> None:
        """A member's record is new; if it was gone, it is live again."""
        node = record.node
        if member.live:
            self._leave(node)
            self._enter(record)
        else:
            self.gone.pop(node, None)
            self._list(record)
        member.record = record

    def bury(self, member: NodeState, state: MemberState, now: float) -> None:
        """A member is dead or has left."""
        node = member.record.node
        if member.live:
            self._leave(node)
            self._unlist(node)
        member.state = state
        member.since = now
        member.suspicion = None
        self.gone.pop(node, None)
        self.gone[node] = None

    def forget(self, node: NodeId) -> None:
        """Delete a gone member altogether."""
        del self.gone[node], self._members[node]

    def find(self, node: NodeId) -> NodeState | None:
        """Return a member, live or gone; None if it is unknown or this node."""
        return self._members.get(node)

    def records(self) -> Iterator[NodeRecord]:
        """Yield the records of the live members."""
        for node in self.live:
            yield self._members[node].record

    def gone_members(self) -> Iterator[NodeState]:
        """Yield the gone, the one gone longest first."""
        for node in self.gone:
            yield self._members[node]

    def random_gone(self, random: Random) -> NodeId | None:
        """Return one of the gone, or None."""
        if not self.gone:
            return None
        return next(itertools.islice(self.gone, random.randrange(len(self.gone)), None))

    def pick(self, random: Random, count: int, excluded: Iterable[NodeId] = ()) -> list[NodeId]:
        """Return up to ``count`` different live members, at random."""
        return pick(self.live, random, count, excluded)

    def is_live(self, node: NodeId) -> bool:
        """Return whether a node is a live member."""
        member = self.find(node)
        return member is not None and member.live

    def hashes(self) -> bytes:
        """Return the hash of every bucket, 8 bytes each."""
        return _HASHES.pack(*self._hashes)

    def _list(self, record: NodeRecord) -> None:
        self._position[record.node] = len(self.live)
        self.live.append(record.node)
        self._enter(record)

    def _unlist(self, node: NodeId) -> None:
        at = self._position.pop(node)
        last = self.live.pop()
        if last != node:
            self.live[at] = last
            self._position[last] = at

    def _enter(self, record: NodeRecord) -> None:
        bucket = bucket_of(record.node)
        self.buckets[bucket][record.node] = record.incarnation
        self._hashes[bucket] ^= entry_hash(record.node, record.incarnation)

    def _leave(self, node: NodeId) -> None:
        bucket = bucket_of(node)
        self._hashes[bucket] ^= entry_hash(node, self.buckets[bucket].pop(node))
