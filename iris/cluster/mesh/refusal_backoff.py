"""Refusal backoff: who does not let this node in is dialled ever more seldom.  Sans-IO.

A node that is revoked, or whose certificates are out of date by the clocks of the others, finishes its own side of each
handshake, and is hung up on before the other end has said anything.  From here that is a link which broke, and a link
that broke is made again at once: a revoked node dialled its realm forty times a second, for as long as it lived.

So refusals in a row are counted: of each node, of each address, and of all together while nobody lets this node in.
The first ones cost nothing, for a network that breaks connections also cuts off a peer before its first frame.
"""

from __future__ import annotations

from typing import Final, final

from iris.kernel.names import Entropy

ALL: Final = ""
"""Key under which refusals are counted while nobody lets this node in."""

FREE: Final = 5
FREE_OF_ALL: Final = 20
"""Refusals in a row, of a node or an address and of all together, after which it is dialled again as soon as ever."""

_FIRST: Final = 1.0
LONGEST: Final = 120.0
"""Seconds of the first pause and of the longest; each is twice as long as the one before, less up to a half at random:
nodes that were refused together do not come back together."""

_REMEMBERED: Final = 2048
"""Nodes and addresses; the one refused longest ago is forgotten first."""


@final
class _Streak:
    """Refusals in a row, and the time from which on it is dialled again."""

    __slots__ = ("count", "due")

    def __init__(self, now: float) -> None:
        self.count = 0
        self.due = now


@final
class RefusalBackoff:
    """Pauses after refusals, by the id of a node, by address, and of ``ALL``.

    Args:
        entropy: source of what is left out of each pause.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._streaks: dict[str, _Streak] = {}

    def __repr__(self) -> str:
        return f"<RefusalBackoff: {len(self._streaks)} nodes and addresses>"

    def refused(self, key: str, now: float) -> bool:
        """Count a refusal; return whether it is the first one of the row that has a pause behind it."""
        streak = self._streaks.pop(key, None)
        if streak is None or now > streak.due + 2 * LONGEST:  # it was let in meanwhile, or was not dialled
            streak = _Streak(now)
        self._streaks[key] = streak
        if len(self._streaks) > _REMEMBERED:
            del self._streaks[next(iter(self._streaks))]
        if now < streak.due:
            return False  # its dial began before the pause
        streak.count += 1
        paid = streak.count - (FREE_OF_ALL if key == ALL else FREE)
        if paid > 0:
            share = 1 - self._entropy(1)[0] / 512
            streak.due = now + share * min(LONGEST, _FIRST * 2 ** min(paid - 1, 16))
        else:
            streak.due = now
        return paid == 1

    def accepted(self, key: str) -> None:
        """Note that this node was let in."""
        self._streaks.pop(key, None)

    def pause(self, key: str, now: float) -> float:
        """Return for how many seconds it is not dialled."""
        streak = self._streaks.get(key)
        return 0.0 if streak is None else max(0.0, streak.due - now)

    def clear(self) -> None:
        """Forget all refusals: this node has another credential."""
        self._streaks.clear()
