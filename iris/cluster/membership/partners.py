"""Partners: the members that a node keeps a link to, whether it talks to them or not.

Records and probes travel over these links.  In a small realm all are partners.  In a larger one each node draws a few,
and is drawn by as many: a random graph of so many links stays in one piece when half of its nodes go.  A
subscriber keeps links to publishers besides; a gateway has everybody for a partner.

Who has the key of a cluster can make up thousands of members.  So that a node does not hear of others by these alone,
a cluster counts for 64 members in the draw, however many it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from random import Random
from typing import Final, final

from iris.kernel.names import NodeId

PARTNERS: Final = 8
"""Members that each node draws: realms of up to nine nodes link everybody to everybody."""

_COUNTED: Final = 64
"""Members of one cluster that count in the draw."""


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
        self._clusters: dict[NodeId, str] = {}
        """The cluster that each member speaks for."""
        self._sizes: Counter[str] = Counter()
        self._drawn: dict[NodeId, None] = {}
        self.needed: Final[set[NodeId]] = set()
        """Nodes that are kept linked besides, alive or not."""
        self.everybody = everybody
        """True from when on every member is one."""

    def __repr__(self) -> str:
        return f"<Partners: {'everybody' if self.everybody else len(self._drawn)}>"

    def __contains__(self, node: object) -> bool:
        return self.everybody or node in self._drawn or node in self.needed

    def __len__(self) -> int:
        return len(self._drawn)

    def __iter__(self) -> Iterator[NodeId]:
        """Iterate over those that were drawn."""
        return iter(self._drawn)

    @property
    def missing(self) -> int:
        """Number of members that are still to be drawn, as soon as there are so many."""
        return self._count - len(self._drawn)

    def meet(self, node: NodeId, cluster: str, *, settled: bool) -> None:
        """Note a newcomer, and the cluster that it speaks for; ``fill`` may draw it.

        Later, ``settled``, it takes the place of another one, with the chance with which it would have been drawn: so
        the draw stays one of all members, whoever came first, and halves of a realm that were parted are joined again.
        Where many start together that would only make links that the next newcomer ends.
        """
        self._clusters[node] = cluster
        self._sizes[cluster] += 1
        if self.missing > 0 or not settled:
            return
        size = self._sizes[cluster]
        chance = self._count * min(size, _COUNTED) / size / sum(min(other, _COUNTED) for other in self._sizes.values())
        if self._random.random() < chance:
            # The share of a cluster that is counted in full does not grow with it.
            like = [other for other in self._drawn if self._clusters[other] == cluster] if size > _COUNTED else ()
            del self._drawn[self._random.choice(list(like or self._drawn))]
            self._drawn[node] = None

    def forget(self, node: NodeId) -> None:
        """A member is gone; draw another one with ``fill``."""
        self._drawn.pop(node, None)
        cluster = self._clusters.pop(node, None)
        if cluster is not None:
            self._sizes[cluster] -= 1
            if not self._sizes[cluster]:
                del self._sizes[cluster]

    def fill(self, linked: Collection[NodeId]) -> bool:
        """Draw as many members as are missing; return whether one of them is not linked.

        Args:
            linked: those that have dialled this node.  Half are drawn of these first: most have drawn it by chance, and
                each saves a handshake.  Not more, for they chose this node, and not it them.
        """
        if self.missing <= 0:
            return False
        others = [node for node in self._clusters if node not in self._drawn]
        callers = [node for node in others if node in linked]
        self._draw(callers, self._count // 2)
        self._draw([node for node in others if node not in self._drawn], self._count)
        return not all(node in linked for node in self._drawn)

    def _draw(self, nodes: list[NodeId], count: int) -> None:
        """Draw of these until so many are drawn in all."""
        self._random.shuffle(nodes)
        by_cluster: dict[str, list[NodeId]] = {}
        for node in nodes:
            by_cluster.setdefault(self._clusters[node], []).append(node)
        while by_cluster and len(self._drawn) < count:
            names = list(by_cluster)
            weights = [min(len(by_cluster[name]), _COUNTED) for name in names]
            (name,) = self._random.choices(names, weights)
            self._drawn[by_cluster[name].pop()] = None
            if not by_cluster[name]:
                del by_cluster[name]
