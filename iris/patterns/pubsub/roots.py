"""Roots: which publishers have announced which first tokens of topics.

What is known of a publisher only grows, until it is forgotten: a node that makes something up about another one can
have subscribers link to it, and cannot have them miss it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import Final, final

from iris.kernel.names import NodeId
from iris.patterns.pubsub.interest import is_topic

EVERY: Final = ">"
"""Root of a publisher that has more than there is room for: it may publish on any topic."""

MAX_ROOTS: Final = 64
_MAX_BYTES: Final = 1024
"""Roots of one publisher, and their bytes; with more it has ``EVERY`` instead."""


def root_of(topic: str) -> str:
    """Return the first token of a topic."""
    return topic.partition(".")[0]


def is_root(root: str) -> bool:
    """Return whether a publisher may announce this."""
    return root == EVERY or (is_topic(root) and "." not in root)


@final
class RootTable:
    """The publishers that are known, and their roots."""

    def __init__(self) -> None:
        self._roots: dict[NodeId, frozenset[str]] = {}
        self._hashes: dict[NodeId, int] = {}

    def __repr__(self) -> str:
        return f"<RootTable: {len(self._roots)} publishers>"

    def __len__(self) -> int:
        return len(self._roots)

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._roots)

    def __contains__(self, publisher: object) -> bool:
        return publisher in self._roots

    def of(self, publisher: NodeId) -> frozenset[str]:
        """Return the roots of a publisher; none if it is not known."""
        return self._roots.get(publisher, frozenset())

    def add(self, publisher: NodeId, roots: Collection[str]) -> bool:
        """Add roots of a publisher; return whether one of them was new."""
        known = self.of(publisher)
        if EVERY in known or known.issuperset(roots):
            return False
        union = known.union(roots)
        if EVERY in union or len(union) > MAX_ROOTS or sum(map(len, union)) > _MAX_BYTES:
            union = frozenset((EVERY,))
        self._roots[publisher] = union
        text = ".".join((publisher, *sorted(union)))
        self._hashes[publisher] = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        return True

    def forget(self, publisher: NodeId) -> None:
        """Drop a publisher."""
        del self._roots[publisher], self._hashes[publisher]

    def digest(self, publishers: Iterable[NodeId]) -> bytes:
        """Return a hash of what is known of some publishers, whatever their order."""
        total = 0
        for publisher in publishers:
            total ^= self._hashes[publisher]
        return total.to_bytes(8)
