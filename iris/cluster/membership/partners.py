"""Partners: the members that a node keeps a link to, whether it talks to them or not.

Records and probes travel over these links.  In a small realm all are partners.  In a larger one each node draws a few,
and is drawn by as many: a random graph of so many links stays in one piece when half of its nodes go.  Who publishes or
subscribes has everybody for a partner, for what it says has to be heard by each node at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from random import Random
from typing import Final, final

from iris.kernel.names import NodeId

PARTNERS: Final = 8
"""Members that each node draws: realms of up to nine nodes link everybody to everybody."""


@final
class Partners:
    """Partners of one node.

    Args:
        random: source of the draws.
        count: members that are drawn.
        everybody: every member is one.
    """

    def __init__(self, random: Random, count: int = PARTNERS, *, everybody: bool = False) -> None:
        self._random = random
        self._count = count
        self._drawn: dict[NodeId, None] = {}
        self.everybody = everybody
        """True from when on every member is one."""

    def __repr__(self) -> str:
        return f"<Partners: {'everybody' if self.everybody else len(self._drawn)}>"

    def __contains__(self, node: object) -> bool:
        return self.everybody or node in self._drawn

    def __len__(self) -> int:
        return len(self._drawn)

    def __iter__(self) -> Iterator[NodeId]:
        """Iterate over those that were drawn."""
        return iter(self._drawn)

    @property
    def missing(self) -> int:
        """Number of members that are still to be drawn, as soon as there are so many."""
        return self._count - len(self._drawn)

    def meet(self, node: NodeId, members: int, *, settled: bool) -> None:
        """Draw a newcomer, one of so many members, if fewer are drawn than are to be.

        Later, ``settled``, with the chance that each of them has, and in the place of another one: so the draw stays
        one of all members, whoever came first, and halves of a realm that were parted are joined again.  Where many
        start together it would only make links that the next newcomer ends.
        """
        if self.missing <= 0:
            if not settled or self._random.random() * members >= self._count:
                return
            del self._drawn[self._random.choice(list(self._drawn))]
        self._drawn[node] = None

    def forget(self, node: NodeId) -> None:
        """A member is gone; draw another one with ``fill``."""
        self._drawn.pop(node, None)

    def fill(self, members: Iterable[NodeId], linked: Collection[NodeId]) -> bool:
        """Draw as many members as are missing; return whether one of them is not linked.

        Args:
            members: all others.
            linked: those that have dialled this node.  They come first: they have drawn it by chance, most of them, and
                each saves a handshake.
        """
        if self.missing <= 0:
            return False
        others = [node for node in members if node not in self._drawn]
        for some in ([node for node in others if node in linked], [node for node in others if node not in linked]):
            self._drawn.update(dict.fromkeys(self._random.sample(some, min(self.missing, len(some)))))
        return not all(node in linked for node in self._drawn)
