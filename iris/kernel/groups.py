"""Values by key, so that what concerns one key costs what it has, and not all that there is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")


@final
class Groups(Generic[K, V]):
    """Values by key, each once, in the order in which they were added.  A key without values takes no memory."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[K, dict[V, None]] = {}

    def __repr__(self) -> str:
        return f"<Groups: {len(self._groups)} keys>"

    def of(self, key: K) -> Collection[V]:
        """Return the values of a key as they are now."""
        return tuple(self._groups.get(key, ()))

    def add(self, key: K, value: V) -> None:
        """Put a value under a key, if it is not there."""
        self._groups.setdefault(key, {})[value] = None

    def remove(self, key: K, value: V) -> None:
        """Take a value from under a key, if it is there."""
        group = self._groups.get(key)
        if group is not None:
            group.pop(value, None)
            if not group:
                del self._groups[key]

    def pop(self, key: K) -> Collection[V]:
        """Take out all the values of a key, and return them."""
        return tuple(self._groups.pop(key, ()))
