"""Books as a program sees them: rows by pattern, name and receiver, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import final

from msgspec import Struct

from iris.kernel.names import NodeId
from iris.patterns.observer import Pattern


@final
class BookRow(Struct, frozen=True, kw_only=True):
    """Messages that one receiver was sent of one pattern under one name, counted by their outcome.

    ``difference`` is 0 unless the receiver claims more than it was sent.
    """

    pattern: Pattern
    name: str
    """The cluster or topic; ``(other)`` for all names beyond the 1,024 of one receiver and pattern."""
    receiver: NodeId | None
    """Node that they were sent to.  None for nobody in particular, and for receivers that are long gone."""
    sent: int
    """Messages: one for each member asked of broadcasts, surveys and requests, one for each subscription of events."""
    received: int
    """Answered requests and surveys; events that the program has taken, broadcasts that the handlers were called with;
    messages of tunnels that the other end has acknowledged."""
    expired: int
    refused: int
    lost: Mapping[str, int]
    """Messages that vanished, by reason: ``on the way``, ``dropped`` by the overflow of a subscription, ``receiver
    left`` first, and the reasons of ``iris.PatternStatistics``."""
    in_doubt: int
    """Messages whose receiver is gone: it may have died before they came, or before it accounted for them."""
    waiting: int
    """Messages in flight to a receiver that is linked, or there without an outcome yet."""

    def __add__(self, other: BookRow) -> BookRow:
        """Return the sums of both, which are of the same pattern, name and receiver."""
        return BookRow(
            pattern=self.pattern,
            name=self.name,
            receiver=self.receiver,
            sent=self.sent + other.sent,
            received=self.received + other.received,
            expired=self.expired + other.expired,
            refused=self.refused + other.refused,
            lost=dict(Counter(self.lost) + Counter(other.lost)),
            in_doubt=self.in_doubt + other.in_doubt,
            waiting=self.waiting + other.waiting,
        )

    @property
    def difference(self) -> int:
        """``sent`` less all other columns: 0 unless the receiver claims more than it was sent."""
        columns = self.received + self.expired + self.refused + sum(self.lost.values()) + self.in_doubt + self.waiting
        return self.sent - columns


@final
class Books(Struct, frozen=True):
    """The books of one node as a sender, at one moment.  Made by ``Node.books``.

    ``sent == received + expired + refused + sum(lost.values()) + in_doubt + waiting + difference``.
    """

    rows: tuple[BookRow, ...]
    """Rows, sorted by pattern, name and receiver."""

    @property
    def sent(self) -> int:
        """Messages sent, counted once for each member or subscription that was to get them."""
        return sum(row.sent for row in self.rows)

    @property
    def received(self) -> int:
        """Messages that the receivers' programs have received."""
        return sum(row.received for row in self.rows)

    @property
    def expired(self) -> int:
        """Messages whose time ran out first, or whose caller stopped waiting."""
        return sum(row.expired for row in self.rows)

    @property
    def refused(self) -> int:
        """Messages that a limit or a rule turned away."""
        return sum(row.refused for row in self.rows)

    @property
    def lost(self) -> Mapping[str, int]:
        """Messages that vanished, by reason; by receiver in ``rows``."""
        lost: Counter[str] = Counter()
        for row in self.rows:
            lost.update(row.lost)
        return dict(lost)

    @property
    def in_doubt(self) -> int:
        """Messages to receivers that are gone and have not reported what became of them."""
        return sum(row.in_doubt for row in self.rows)

    @property
    def waiting(self) -> int:
        """Messages without an outcome yet, to receivers that are linked."""
        return sum(row.waiting for row in self.rows)

    @property
    def difference(self) -> int:
        """Sum of the rows' differences: 0 unless a receiver claims more than it was sent."""
        return sum(row.difference for row in self.rows)

    @property
    def balanced(self) -> bool:
        """True if every message is in exactly one column, and none waits."""
        return not self.waiting and not any(row.difference for row in self.rows)
