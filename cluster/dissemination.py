"""Updates on their way to everybody: each is sent a number of times, the least sent first.

Rules of this file:

- One update per key; a newer one takes the place of the older and starts again.
- What its subject tells everybody itself needs few messages of others: after a round or none it only rides along with
  messages that are sent anyway.  While a hundred nodes start, the news of each other's coming was most of their work.
- Taking is proportional to what is taken, not to what waits: updates stand in levels by how often they were sent.
- The number of waiting updates is bounded; what has been sent most gives way, and is counted.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, final

from iris.cluster.gossip import Update, update_size
from iris.kernel.config import Config

Key = tuple[str, ...]

MAX_WAITING: Final = 32_768
"""Updates waiting at one time; at 700 bytes each 22 MiB.  More only if over 10,000 members change in one second."""

_RIDES: Final = 4
"""The last so many sends of an update that its subject tells everybody itself: they start no message.  Probes and their
answers, four a second, carry them."""

_PRESSING: Final = 3
"""Sends that do start one, where the subject is new: one round, for those that start at the same time."""

_PASSED_OVER: Final = 16
"""Updates too large for what is left of a message that are looked at before the message is closed."""


def sends(members: int, config: Config) -> int:
    """Return how often each update is sent by each member: ``update_sends``, or 4 log10(n) in very large realms.

    A member is missed by all of n members sending s times each with probability e**-s: 6e-6 for 12.
    """
    return max(config.update_sends, 4 * math.ceil(math.log10(members + 1)))


@final
class Dissemination:
    """The updates that wait."""

    __slots__ = ("_level_of", "_levels", "_riding", "_told", "dropped")

    def __init__(self) -> None:
        # Ordered by linked lists: a plain dict that is emptied from its front is searched through its holes.
        self._levels: list[OrderedDict[Key, tuple[Update, int]]] = [OrderedDict()]
        self._level_of: dict[Key, int] = {}
        self._told: dict[Key, int] = {}
        """Those that their subjects tell everybody, and the level from which on each only rides along."""
        self._riding = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._level_of)

    def __repr__(self) -> str:
        return f"<Dissemination of {len(self)}>"

    @property
    def pressing(self) -> bool:
        """Whether something waits that is worth messages of its own."""
        return len(self._level_of) > self._riding

    def get(self, key: Key) -> Update | None:
        """Return the waiting update under ``key``."""
        level = self._level_of.get(key)
        return None if level is None else self._levels[level][key][0]

    def add(self, key: Key, update: Update) -> None:
        """Let ``update`` be sent, in place of what waits under ``key``."""
        self.discard(key)
        if len(self._level_of) >= MAX_WAITING:
            for level in reversed(self._levels):
                if level:
                    self.discard(next(iter(level)))
                    self.dropped += 1
                    break
        self._levels[0][key] = (update, update_size(update))
        self._level_of[key] = 0

    def discard(self, key: Key) -> None:
        """Stop sending what waits under ``key``."""
        level = self._level_of.pop(key, None)
        if level is not None:
            del self._levels[level][key]
            self._riding -= level >= self._told.pop(key, level + 1)

    def told(self, key: Key, limit: int, *, new: bool = False) -> None:
        """What waits under ``key``, if anything, its subject itself tells everybody: of ``limit`` sends few stay.

        Args:
            key: of the update.
            limit: as of ``take``.
            new: others may have come with the subject, whom it does not know of: one round of messages is for them.
        """
        level = self._level_of.get(key)
        if level is None or key in self._told:
            return
        riding = max(0, limit - _RIDES)
        target = max(level, riding - _PRESSING if new else riding)
        self._put(key, self._levels[level].pop(key), target)
        self._told[key] = riding
        self._riding += target >= riding

    def _put(self, key: Key, entry: tuple[Update, int], level: int) -> None:
        while level >= len(self._levels):
            self._levels.append(OrderedDict())
        self._levels[level][key] = entry
        self._level_of[key] = level

    def take(self, max_bytes: int, max_updates: int, limit: int) -> list[Update]:
        """Return what goes into one message; an update taken ``limit`` times is forgotten.

        An update that does not fit is passed over for smaller ones and waits for a message with more room; one
        that is larger than ``max_bytes`` goes alone.
        """
        taken: list[Update] = []
        moves: list[tuple[int, Key]] = []
        room = max_bytes
        passed_over = 0
        for depth, level in enumerate(self._levels):
            for key, (update, size) in level.items():
                if size > room and taken:
                    passed_over += 1
                    if passed_over > _PASSED_OVER:
                        break
                    continue
                taken.append(update)
                moves.append((depth, key))
                room -= size
                if len(taken) >= max_updates or room < 32:
                    break
            if len(taken) >= max_updates or room < 32 or passed_over > _PASSED_OVER:
                break
        for depth, key in moves:
            if depth + 1 >= limit:
                self.discard(key)
                continue
            self._put(key, self._levels[depth].pop(key), depth + 1)
            self._riding += self._told.get(key) == depth + 1
        return taken
