"""Counters of every pattern.  sent = answered + handed over + expired + refused + lost(reason) + waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import final

from iris.kernel.statistics import Statistics


@final
class PatternStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of one pattern at this node: the outcome of its messages.

    ``sent == answered + handed_over + expired + refused + sum(lost.values()) + waiting`` holds at any time.
    """

    sent: int
    """Messages that a caller handed over."""
    answered: int
    """Messages that the receiver has acknowledged: requests that have a reply, messages of tunnels that the other end
    has acknowledged.  0 for patterns in which nobody answers."""
    handed_over: int
    """Messages that the link to the receiver has accepted, in patterns in which nobody answers: broadcasts and events.
    It is unknown whether they were received: they may be lost with the connection, or dropped there."""
    expired: int
    """Messages whose time ran out, or whose caller stopped waiting."""
    refused: int
    """Messages that a limit, a rule or a missing member turned away.  The caller gets an error, but for broadcasts."""
    refused_because: Mapping[str, int]
    """Copies of broadcasts that were refused, by reason.  Empty for the other patterns."""
    lost: Mapping[str, int]
    """Messages that vanished, by reason."""
    waiting: int
    """Messages without an outcome yet."""


@final
class Tally:
    """Counts outcomes of messages; ``waiting`` is the remainder."""

    __slots__ = ("answered", "expired", "handed_over", "lost", "refused", "refused_because", "sent")

    def __init__(self) -> None:
        self.sent = self.answered = self.handed_over = self.expired = self.refused = 0
        self.lost: Counter[str] = Counter()
        self.refused_because: Counter[str] = Counter()

    def refuse(self, reason: str, count: int) -> None:
        """Count messages that were refused, and why."""
        self.refused += count
        self.refused_because[reason] += count

    def statistics(self) -> PatternStatistics:
        """Return a snapshot."""
        ended = self.answered + self.handed_over + self.expired + self.refused + sum(self.lost.values())
        return PatternStatistics(
            sent=self.sent,
            answered=self.answered,
            handed_over=self.handed_over,
            expired=self.expired,
            refused=self.refused,
            refused_because=dict(self.refused_because),
            lost=dict(self.lost),
            waiting=self.sent - ended,
        )
