"""Which announcements of a local network are followed: as many as a realm has nodes there, and no flood (a machine).

Anybody on the network can announce any number of nodes, and nothing in an announcement shows whether there is one.
So many are followed, and others take the places of some of them, at random and slowly: who makes up thousands cannot
keep all others out, and makes this node dial no more often.
"""

from __future__ import annotations

from random import Random
from typing import Final, final

MAX_FOLLOWED: Final = 64
"""Announcements that are followed at one time.  One node that is found is enough: gossip tells of all others."""

_REPLACED: Final = 1.0
"""Seconds after which one more may take the place of another."""


@final
class Followed:
    """The announcements that are followed, by name.

    Args:
        random: says which one makes room.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: list[str] = []
        self._next = 0.0
        self.ignored = 0
        """Announcements that were not followed, or are not any more, since others were."""

    def __repr__(self) -> str:
        return f"<Followed: {len(self._names)}, {self.ignored} ignored>"

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def hear(self, name: str, now: float) -> str | None:
        """Follow an announcement that is new if there is room; return which one is not followed any more for it.

        Args:
            name: not one of those that are followed.
            now: this moment in seconds, of any clock.
        """
        replaced: str | None = None
        if len(self._names) >= MAX_FOLLOWED:
            self.ignored += 1
            if now < self._next:
                return None
            self._next = now + _REPLACED
            replaced = self._names.pop(self._random.randrange(len(self._names)))
        self._names.append(name)
        return replaced

    def lose(self, name: str) -> bool:
        """An announcement was taken back, or has run out; tell whether it was followed."""
        if name not in self._names:
            return False
        self._names.remove(name)
        return True
