"""Token bucket: limits what others may have this node do, at once and each second.  Sans-IO."""

from __future__ import annotations

from typing import final


@final
class TokenBucket:
    """A token bucket: of one neighbour, one address.

    Args:
        most: tokens at the beginning, and the most that are kept.
        rate: tokens that come each second.
        now: this moment.
    """

    __slots__ = ("_at", "_left", "_most", "_rate")

    def __init__(self, most: float, rate: float, now: float) -> None:
        self._most = most
        self._rate = rate
        self._left = most
        self._at = now

    def __repr__(self) -> str:
        return f"<TokenBucket: {self._left:.1f} of {self._most:g}>"

    def level(self, now: float) -> float:
        """Return how many tokens there are; below 0, so many are owed."""
        if now > self._at:  # the arrival of a message may be before the last look: no time counts twice
            self._left = min(self._most, self._left + (now - self._at) * self._rate)
            self._at = now
        return self._left

    def spend(self, now: float, count: float = 1.0) -> bool:
        """Spend ``count`` tokens if they are there, else none; return whether they were."""
        if self.level(now) < count:
            return False
        self._left -= count
        return True

    def owe(self, count: float) -> None:
        """Spend ``count`` tokens, be they there or not: for a cost that is known only afterwards."""
        self._left -= count

    def give_back(self, count: float = 1.0) -> None:
        """Put tokens back that were taken for nothing."""
        self._left = min(self._most, self._left + count)
