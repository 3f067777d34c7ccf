"""Running sums of the rows of events (sans-IO): statistics, strict publishers and the turns of groups read them."""

from __future__ import annotations

from collections import Counter
from typing import Final, final

from iris.patterns.books.columns import OTHER, Columns

LOST_WITH_MEMBER: Final = "member of a group lost"
LOST_IN_FLIGHT: Final = "lost in flight to a group"


@final
class EventSums:
    """Sums over all receivers.

    Attributes:
        lost: copies that did not leave, and those for groups that were lost after that, by reason.
        dropped, refused: copies that receivers have reported as such.
    """

    __slots__ = ("_topics", "dropped", "lost", "refused")

    def __init__(self) -> None:
        self.lost: Final[Counter[str]] = Counter()
        self.dropped = self.refused = 0
        self._topics: dict[str, int] = {OTHER: 0}
        """Copies of the topics that are followed which did not leave, or were dropped or refused."""

    def follow(self, topic: str) -> None:
        """Count the losses of a topic from now on."""
        self._topics[topic] = 0

    def forget(self, topic: str) -> None:
        """Follow a topic no longer."""
        self._topics.pop(topic, None)

    def follows(self, topic: str) -> bool:
        """Return whether the losses of a topic are counted."""
        return topic in self._topics

    def lost_on(self, topic: str) -> int:
        """Return how many copies of a topic have been lost since it is followed; of ``OTHER``, ever."""
        return self._topics.get(topic, 0)

    def add(self, topic: str, copies: int) -> None:
        """Add copies of a topic that were lost, if it is followed."""
        if topic in self._topics:
            self._topics[topic] += copies


@final
class TurnedAway:
    """Events of one pattern that one receiver has reported as dropped or refused: each the most so far.

    A report that repeats an earlier one, or a part of it, so adds nothing; nor does one that goes back to it.
    """

    __slots__ = ("_dropped", "_named", "_others", "_refused")

    def __init__(self) -> None:
        self._dropped = self._refused = self._named = self._others = 0

    def add_named(self, sums: EventSums, name: str, most: int, columns: Columns) -> int:
        """Add what is new in the columns of a name that has a row; return the most that was reported of it, so far."""
        more = columns.turned_away - most
        if more <= 0:
            return most
        self._named += more
        sums.add(name, more)
        return columns.turned_away

    def add_total(self, sums: EventSums, total: Columns) -> None:
        """Add what is new in the columns of all names together; what none of the rows has is of the others."""
        if total.dropped > self._dropped:
            sums.dropped += total.dropped - self._dropped
            self._dropped = total.dropped
        if total.refused > self._refused:
            sums.refused += total.refused - self._refused
            self._refused = total.refused
        others = total.turned_away - self._named
        if others > self._others:
            sums.add(OTHER, others - self._others)
            self._others = others


@final
class GroupSums:
    """The events for groups that one node was sent.

    Attributes:
        sent: copies that its link has accepted.
        turns_away: True if the last report has more that were dropped or refused than the one before.
    """

    __slots__ = ("_arrived", "_asked", "_given_up", "_missing", "_settled", "_turned_away", "sent", "turns_away")

    def __init__(self) -> None:
        self.turns_away = False
        self._turned_away = 0
        self.sent = self._asked = self._arrived = self._settled = self._missing = self._given_up = 0

    @property
    def outstanding(self) -> int:
        """Copies without an outcome."""
        return self.sent - self._settled - self._missing - self._given_up

    @property
    def is_open(self) -> bool:
        """Return whether the node has yet to settle some, be they given up or not."""
        return self.sent > self._settled + self._missing

    def ask(self) -> None:
        """Note that the node is asked now, in the order of what it is sent."""
        self._asked = self.sent

    def receive(self, total: Columns) -> None:
        """Accept what the node reports of all names together."""
        self.turns_away, self._turned_away = total.turned_away > self._turned_away, total.turned_away
        self._arrived = max(self._arrived, total.arrived)
        self._settled = max(self._settled, min(total.settled, self.sent - self._missing))
        self._bound()

    def answered(self) -> int:
        """Note that the node has answered; return how many copies turn out to be lost on their way."""
        more = min(self._asked - self._arrived, self.sent - self._settled) - self._missing
        if more <= 0:
            return 0
        self._missing += more
        known = min(more, self._given_up)
        self._given_up -= known
        self._bound()
        return more - known

    def give_up(self) -> int:
        """Note that the node is gone; return how many copies count as lost with it."""
        more = self.outstanding
        self._given_up += more
        return more

    def _bound(self) -> None:
        """Give up no more than is without an outcome: a node that has come back has settled some of it."""
        self._given_up = min(self._given_up, self.sent - self._settled - self._missing)
