"""Losses of one subscription, told one after the other to somebody who adds them up.

``Event.missed`` says where events are missing, but of a topic only with its publisher's next event on it: of 8,000
topics with one event each nobody would be told anything.  The subscription knows how many were lost in all.  So each
loss is told in its place if an event of its topic follows, and else once all that waited when it was found was taken.
"""

from __future__ import annotations

from typing import Final, Protocol, final

from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.subscribe.subscription import SubscriptionStatistics


class Counted(Protocol):
    """A subscription of any of the APIs."""

    def statistics(self) -> SubscriptionStatistics:
        """Return a snapshot of the counters."""
        ...


@final
class ToldLosses:
    """How much of what a subscription has lost was told: the numbers that it returns add up to all of it.

    Args:
        subscription: of which every event is asked about, in the order in which they are taken.
    """

    def __init__(self, subscription: Counted) -> None:
        self._subscription: Final = subscription
        self._counted = 0
        """What was lost when ``count`` was last called."""
        self._told = 0
        self._found = 0
        """What was lost when ``_ahead`` events waited, which came after it; some of them may be lost as well."""
        self._ahead = 0

    def begin_anew(self) -> None:
        """Pass over what was lost until now: nobody wants to know it."""
        self._counted = self._told = self._subscription.statistics().lost

    def count(self) -> int:
        """Return how many events were lost since this was last called."""
        counted, self._counted = self._counted, self._subscription.statistics().lost
        return self._counted - counted

    def before(self, event: Event) -> int:
        """Return how many losses are to be told with an event."""
        counted = self._subscription.statistics()
        lost, waiting, found = counted.lost, counted.waiting, 0
        self._ahead -= 1
        if not waiting:
            found = lost
        elif self._ahead <= 0:
            found, self._found, self._ahead = self._found, lost, waiting
        told = min(max(event.missed, found - self._told), lost - self._told)
        self._told += told
        return told

    def untold(self) -> int:
        """Return how many losses nothing is to be told with, as no event waits."""
        counted = self._subscription.statistics()
        if counted.waiting:
            return 0
        told = counted.lost - self._told
        self._told = counted.lost
        return told
