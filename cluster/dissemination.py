"""Updates on their way to everybody: each is sent a number of times, the least sent first.

Rules of this file:

- One update per key; a newer one takes the place of the older and starts again.
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

    __slots__ = ("_level_of", "_levels", "dropped")

    def __init__(self) -> None:
        # Ordered by linked lists: a plain dict that is emptied from its front is searched through its holes.
        self._levels: list[OrderedDict[Key, tuple[Update, int]]] = [OrderedDict()]
        self._level_of: dict[Key, int] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._level_of)

    def __repr__(self) -> str:
        return f"<Dissemination of {len(self)}>"

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
                    oldest = next(iter(level))
                    del level[oldest], self._level_of[oldest]
                    self.dropped += 1
                    break
        self._levels[0][key] = (update, update_size(update))
        self._level_of[key] = 0

    def discard(self, key: Key) -> None:
        """Stop sending what waits under ``key``."""
        level = self._level_of.pop(key, None)
        if level is not None:
            del self._levels[level][key]

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
            entry = self._levels[depth].pop(key)
            if depth + 1 >= limit:
                del self._level_of[key]
                continue
            if depth + 1 == len(self._levels):
                self._levels.append(OrderedDict())
            self._levels[depth + 1][key] = entry
            self._level_of[key] = depth + 1
        return taken
