"""Roots: which first tokens of topics a publisher has announced.

What is known of a publisher only grows, until it is forgotten: a node that makes something up about another one can
have subscribers link to it, and cannot have them miss it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
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
class Roots:
    """The roots of one publisher.

    Attributes:
        names: the roots.
        size: bytes of all of them.
        digest: hash of the publisher and its roots; 0 without any.
    """

    __slots__ = ("_publisher", "digest", "names", "size")

    def __init__(self, publisher: NodeId) -> None:
        self._publisher = publisher
        self.names: frozenset[str] = frozenset()
        self.size = 0
        self.digest = 0

    def __repr__(self) -> str:
        return f"<Roots: {len(self.names)}, {self.size} bytes>"

    def add(self, roots: Collection[str]) -> bool:
        """Add some; return whether one of them was new."""
        if EVERY in self.names or self.names.issuperset(roots):
            return False
        self.names = self.names.union(roots)
        self.size = sum(len(root.encode()) for root in self.names)
        if EVERY in self.names or len(self.names) > MAX_ROOTS or self.size > _MAX_BYTES:
            self.names, self.size = frozenset((EVERY,)), len(EVERY)
        text = ".".join((self._publisher, *sorted(self.names)))
        self.digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        return True


def digest_of(publishers: Iterable[Roots]) -> bytes:
    """Return a hash of the roots of some publishers, whatever their order."""
    total = 0
    for roots in publishers:
        total ^= roots.digest
    return total.to_bytes(8)
