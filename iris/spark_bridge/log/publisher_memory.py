"""Publisher memory: what is kept in memory of publishers, counted in bytes by the cluster that they are of.

All of it is in the index, too.  What a cluster has no room for is read again when its publisher comes back, and costs
other clusters nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class PublisherMemory(Generic[T]):
    """One kind of what is known of publishers, those that were used last.

    Args:
        most: bytes for all clusters together.
        most_of_owner: bytes for one of them.
    """

    def __init__(self, *, most: int, most_of_owner: int) -> None:
        self._most = most
        self._most_of_owner = most_of_owner
        self._owners: dict[str, str] = {}
        self._known: dict[str, OrderedDict[str, tuple[T, int]]] = {}
        """By owner and publisher, with its bytes; the one that was used last is the last one."""
        self._used: Counter[str] = Counter()
        self.size = 0
        """Bytes that it takes."""

    def __repr__(self) -> str:
        return f"<PublisherMemory: {self.size} bytes of {len(self._owners)} publishers>"

    def used(self, owner: str) -> int:
        """Return how many of them are a cluster's."""
        return self._used[owner]

    def get(self, publisher: str) -> T | None:
        """Return what is kept of a publisher."""
        owner = self._owners.get(publisher)
        return None if owner is None else self._known[owner][publisher][0]

    def keep(self, publisher: str, owner: str, value: T, size: int) -> None:
        """Keep something of a publisher of a cluster; ``owner`` is "" if that is not known now.

        For it the cluster's publishers that were used longest ago are forgotten, and where all clusters together have
        too much those of the one that has most.
        """
        owner = owner or self._owners.get(publisher, "")
        self.forget(publisher)
        self._owners[publisher] = owner
        self._known.setdefault(owner, OrderedDict())[publisher] = (value, size)
        self._used[owner] += size
        self.size += size
        while self._used[owner] > self._most_of_owner and len(self._known[owner]) > 1:
            self.forget(next(iter(self._known[owner])))
        while self.size > self._most and len(self._owners) > 1:
            ((largest, _),) = self._used.most_common(1)
            self.forget(next(iter(self._known[largest])))

    def forget(self, publisher: str) -> None:
        """Keep nothing of a publisher."""
        owner = self._owners.pop(publisher, None)
        if owner is None:
            return
        known = self._known[owner]
        size = known.pop(publisher)[1]
        self._used[owner] -= size
        self.size -= size
        if not known:
            del self._known[owner], self._used[owner]

    def clear(self) -> None:
        """Keep nothing."""
        self._owners.clear()
        self._known.clear()
        self._used.clear()
        self.size = 0
