"""Columns: what a receiver has counted of the messages of one sender under one name, since it first had one.

All numbers are cumulative.  A report that is lost or comes twice therefore does no harm: the next one says it all.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

BROADCAST: Final = 0
EVENT: Final = 1
GROUP_EVENT: Final = 2
"""An event that one subscriber of a group was chosen for."""
RELAYED_EVENT: Final = 3
"""An event that this node was to hand on to others, and could not: it has arrived and was dropped."""
REPORTED: Final = (BROADCAST, EVENT, GROUP_EVENT, RELAYED_EVENT)
"""Patterns that nobody answers, so that receivers report; as they stand on the wire."""

OTHER: Final = "(other)"
"""Name of the row of all names that have none of their own; neither a cluster nor a topic can be called so."""


class Columns(NamedTuple):
    """Outcomes of the messages of one sender, as their receiver counts them.

    ``arrived + copied == received + expired + refused + dropped + ended + (those that wait)``.
    """

    arrived: int = 0
    """Messages that have come."""
    copied: int = 0
    """Further copies that were made of events here: one for each subscription after the first."""
    received: int = 0
    """Messages that the program has received, or its handlers have been called with."""
    expired: int = 0
    refused: int = 0
    dropped: int = 0
    """Thrown out because too many waited."""
    ended: int = 0
    """Still here, or on the way, when the subscription or membership ended."""

    @property
    def settled(self) -> int:
        """Messages that have an outcome."""
        return self.received + self.expired + self.refused + self.dropped + self.ended

    @property
    def turned_away(self) -> int:
        """Messages that a subscription dropped or refused."""
        return self.dropped + self.refused

    def moved(self, before: Columns, after: Columns) -> Columns:
        """Return the sums of several names after the columns of one changed.  Written out: half the time of a loop."""
        return Columns(
            self[0] + after[0] - before[0], self[1] + after[1] - before[1], self[2] + after[2] - before[2],
            self[3] + after[3] - before[3], self[4] + after[4] - before[4], self[5] + after[5] - before[5],
            self[6] + after[6] - before[6],
        )  # fmt: skip


NOTHING: Final = Columns()


@final
class Account:
    """The columns of one sender and name while they are counted.

    Attributes:
        name: cluster or topic; ``OTHER`` for all that have no account of their own.
        reported: columns of the last report to the sender.
        relayed: True if messages came through other nodes: their sender may have very many receivers.
        quiet_until: earliest time of the next report, for relayed messages.
    """

    __slots__ = (
        "arrived", "copied", "dropped", "ended", "expired", "name", "quiet_until", "received", "refused",
        "relayed", "reported",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.arrived = self.copied = self.received = self.expired = self.refused = self.dropped = self.ended = 0
        self.reported = NOTHING
        self.relayed = False
        self.quiet_until = 0.0

    def __repr__(self) -> str:
        return f"<Account of {self.name!r}: {self.columns()}>"

    def columns(self) -> Columns:
        """Return a snapshot."""
        return Columns(
            self.arrived, self.copied, self.received, self.expired, self.refused, self.dropped, self.ended
        )  # fmt: skip


UNCOUNTED: Final = Account(OTHER)
"""Account of messages that nobody accounts for: events that were read from a disk."""
