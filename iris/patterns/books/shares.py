"""Shares: what books keep for the nodes of each owner, in bytes, and which of those that are gone go first (sans-IO).

The holder of one key comes as any number of nodes.  So what is kept is counted for the owner of their key, and an owner
may hold as much as all together leave free: one alone half, and another one that comes finds room all the same.
(A. Choudhury, E. Hahne: Dynamic queue length thresholds, 1998.)
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final, final

from iris.kernel.names import NodeId


@final
class MemoryShares:
    """Memory of what is kept, in bytes, by owner.

    Args:
        limit: bytes of all owners together.
        entry: bytes of an entry without its name.
    """

    __slots__ = ("_entry", "_held", "_limit", "total")

    def __init__(self, limit: int, entry: int) -> None:
        self._limit: Final = limit
        self._entry: Final = entry
        self._held: Counter[str] = Counter()
        self.total = 0
        """Kept bytes."""

    def __repr__(self) -> str:
        return f"<MemoryShares: {self.total} of {self._limit} bytes, {len(self._held)} owners>"

    def has_room(self, owner: str, name: str) -> bool:
        """Return whether an owner may have another entry."""
        return self._held[owner] + self._size(name) <= self._limit - self.total

    def add(self, owner: str, name: str) -> None:
        """Count an entry, room or not."""
        self._change(owner, self._size(name))

    def remove(self, owner: str, name: str) -> None:
        """Count an entry no longer."""
        self._change(owner, -self._size(name))

    def _change(self, owner: str, size: int) -> None:
        self.total += size
        self._held[owner] += size
        if not self._held[owner]:
            del self._held[owner]

    def _size(self, name: str) -> int:
        return self._entry + (len(name) if name.isascii() else 4 * len(name))


@final
class FormerNodes:
    """Nodes that are gone and may come back, by owner."""

    __slots__ = ("_nodes", "_owners")

    def __init__(self) -> None:
        self._owners: dict[NodeId, str] = {}
        self._nodes: dict[str, OrderedDict[NodeId, None]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, node: NodeId, owner: str) -> None:
        """Note that a node is gone."""
        self.remove(node)
        self._owners[node] = owner
        self._nodes.setdefault(owner, OrderedDict())[node] = None

    def remove(self, node: NodeId) -> None:
        """Note that a node is back, or forgotten."""
        owner = self._owners.pop(node, None)
        if owner is not None:
            del self._nodes[owner][node]
            if not self._nodes[owner]:
                del self._nodes[owner]

    def oldest(self, owner: str | None = None) -> NodeId | None:
        """Return the node that has been gone for longest, of an owner, or else of the one with the most such nodes."""
        if owner is None and self._nodes:
            owner = max(self._nodes, key=lambda one: len(self._nodes[one]))
        return None if owner is None else next(iter(self._nodes.get(owner, ())), None)
