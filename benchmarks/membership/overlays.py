"""Sparse links: whom each node of a realm keeps a link to, and what it costs to keep these.

The machines are those of a node; probes and gossip travel over the links that are kept (``LinkedNodes.partners``).  A
message to anybody else makes a link first, which is counted, and which is dropped once it has been idle.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final, Protocol, final

from iris.kernel.names import NodeId

_IDLE: Final = 30.0
"""Seconds without a message after which a link that nobody keeps is dropped."""

HANDSHAKE: Final = 0.003
"""Seconds that a link takes to be made: three flights, and 1.3 ms of work at each end."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a node sees when it chooses."""

    own: NodeId
    live: Sequence[NodeId]
    """Everybody else who is alive."""
    new: Collection[NodeId]
    """Those of them who were not when it chose before."""
    chosen: Collection[NodeId]
    """Its choice so far."""


class Overlay(Protocol):
    """A rule by which each node chooses whom it keeps a link to.  A link serves both ends, whoever has chosen it."""

    def choose(self, seen: Seen, random: Random, /) -> set[NodeId]:
        """Return the choice of one node; ``random`` is for what is left to chance."""
        ...


@final
class Drawn:
    """Each node draws some, another one for each that is gone, and a newcomer in the place of one now and then."""

    def __init__(self, count: int) -> None:
        self._count = count

    def choose(self, seen: Seen, random: Random) -> set[NodeId]:
        """See ``Overlay.choose``."""
        kept = sorted(set(seen.chosen).intersection(seen.live))
        for node in seen.new if len(kept) == self._count else ():
            # A sample stays one of all, and halves that were parted are joined again: nobody is gone then.
            if random.random() < self._count / len(seen.live):
                kept[random.randrange(self._count)] = node
        chosen = set(kept)
        while len(chosen) < min(self._count, len(seen.live)):
            chosen.add(random.choice(seen.live))
        return chosen


@final
class Rings:
    """Each node has a successor in each of some rings, in which all stand in the order of a hash."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._places: dict[NodeId, list[int]] = {}

    def choose(self, seen: Seen, _random: Random) -> set[NodeId]:
        """See ``Overlay.choose``."""
        here = self._place(seen.own)
        places = [(node, self._place(node)) for node in seen.live]
        return {
            min(places, key=lambda place: (place[1][ring] - here[ring]) % 2**64)[0]
            for ring in range(self._count if seen.live else 0)
        }

    def _place(self, node: NodeId) -> list[int]:
        places = self._places.get(node)
        if places is None:
            places = self._places[node] = [_hash(f"{ring} {node}") for ring in range(self._count)]
        return places


@final
class Fingers:
    """Each node has the successors of the places half way round one ring, a quarter, an eighth, ... (Chord)."""

    def choose(self, seen: Seen, _random: Random) -> set[NodeId]:
        """See ``Overlay.choose``."""
        here = int(seen.own, 16)
        away = sorted((int(node, 16) - here) % 2**128 for node in seen.live)
        found: set[int] = set()
        step = 2**127
        while away and step >= away[0]:
            found.add(next((distance for distance in away if distance >= step), away[0]))
            step //= 2
        found.update(away[:1])
        return {NodeId(f"{(here + distance) % 2**128:032x}") for distance in found}


@final
class Nearest:
    """Each node has those with the least hash of the two ids: both ends can tell."""

    def __init__(self, count: int) -> None:
        self._count = count

    def choose(self, seen: Seen, _random: Random) -> set[NodeId]:
        """See ``Overlay.choose``."""
        return set(sorted(seen.live, key=lambda node: _hash(min(seen.own, node) + max(seen.own, node)))[: self._count])


@final
class Hubs:
    """All have the same few: those with the least hash."""

    def __init__(self, count: int) -> None:
        self._count = count

    def choose(self, seen: Seen, _random: Random) -> set[NodeId]:
        """See ``Overlay.choose``."""
        return set(sorted([*seen.live, seen.own], key=_hash)[: self._count]) - {seen.own}


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@final
class Links:
    """The links of a realm.

    Args:
        linked: called with the two ends of each link that is made to be kept.
    """

    def __init__(self, overlay: Overlay, random: Random, linked: Callable[[NodeId, NodeId], None]) -> None:
        self._overlay = overlay
        self._random = random
        self._linked = linked
        self._chosen: dict[NodeId, set[NodeId]] = {}
        self._seen: dict[NodeId, set[NodeId]] = {}
        self._kept: dict[NodeId, dict[NodeId, None]] = {}
        self._used: dict[tuple[NodeId, NodeId], float] = {}
        self.made: Counter[NodeId] = Counter()
        """Links made by each of their ends, to be kept or for a message."""

    def __repr__(self) -> str:
        return f"<Links: {self.made.total() // 2} made>"

    def of(self, node: NodeId) -> Collection[NodeId]:
        """Return whom a node keeps a link to, or is kept one by."""
        return self._kept.setdefault(node, {}).keys()

    def counts(self) -> list[int]:
        """Return how many links each node keeps, or is kept by others, sorted."""
        return sorted(map(len, self._kept.values()))

    def open(self, node: NodeId, now: float) -> set[NodeId]:
        """Return to whom a node has a link, kept or not."""
        used = {end for pair, at in self._used.items() if node in pair and now < at + _IDLE for end in pair}
        return used.union(self.of(node)) - {node}

    def choose(self, node: NodeId, live: Sequence[NodeId], present: Collection[NodeId]) -> None:
        """A node sees others alive than before.

        Args:
            node: it.
            live: whom it sees alive.
            present: who can be linked.
        """
        before = self._chosen.get(node, set())
        known, self._seen[node] = self._seen.get(node, set()), set(live)
        new = [other for other in live if other not in known]
        after = self._overlay.choose(Seen(own=node, live=live, new=new, chosen=before), self._random)
        self._chosen[node] = after
        for other in before - after:
            if node not in self._chosen.get(other, ()):
                self._kept[node].pop(other, None)
                self._kept.setdefault(other, {}).pop(node, None)
        for other in sorted(after - before):
            makes = other not in self.of(node)
            self._kept[node][other] = None
            if other in present:
                self._kept.setdefault(other, {})[node] = None
                if makes:
                    self._note_made(node, other)
                    self._linked(node, other)

    def forget(self, node: NodeId) -> None:
        """A node is gone: nobody has a link to it any more, though those that chose it find that out themselves."""
        self._chosen.pop(node, None)
        for other in self._kept.pop(node, {}):
            if node not in self._chosen.get(other, ()):
                self._kept.get(other, {}).pop(node, None)

    def use(self, sender: NodeId, receiver: NodeId, now: float) -> float:
        """Send a message; return after how many seconds it can leave."""
        if receiver in self.of(sender):
            return 0.0
        pair = min(sender, receiver), max(sender, receiver)
        idle = now >= self._used.get(pair, -_IDLE) + _IDLE
        self._used[pair] = now
        if not idle:
            return 0.0
        self._note_made(sender, receiver)
        return HANDSHAKE

    def _note_made(self, node: NodeId, other: NodeId) -> None:
        self.made[node] += 1
        self.made[other] += 1


@final
class LinksOf:
    """The links of one node, as its machine asks for them."""

    def __init__(self, node: NodeId, links: Links) -> None:
        self._node = node
        self._links = links

    def is_linked(self, node: NodeId) -> bool:
        """See ``LinkedNodes.is_linked``."""
        return node in self._links.of(self._node)

    def is_new(self, node: NodeId) -> bool:  # noqa: ARG002 -- whoever it is
        """See ``LinkedNodes.is_new``."""
        return False

    def contacts(self) -> Collection[NodeId]:
        """See ``LinkedNodes.contacts``."""
        return ()

    def partners(self) -> Collection[NodeId]:
        """See ``LinkedNodes.partners``."""
        return self._links.of(self._node)
