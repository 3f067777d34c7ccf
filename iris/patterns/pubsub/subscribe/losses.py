"""Losses of one subscription, reported one after the other to a program that adds them up.

``Event.missed`` shows where events are missing, but of a topic only with its publisher's next event on it: of 8,000
topics with one event each nothing would be reported.  The subscription knows how many were lost in all.  So each
loss is reported in its place if an event of its topic follows, and else once all that waited then was received.
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
class AnnouncedLosses:
    """Reports of a subscription's losses: the numbers that it returns add up to all of them.

    Args:
        subscription: subscription whose events are all passed to ``before``, in the order in which they are received.
    """

    def __init__(self, subscription: Counted) -> None:
        self._subscription: Final = subscription
        self._counted = 0
        """Losses when ``count`` was last called."""
        self._announced = 0
        self._found = 0
        """Losses when ``_ahead`` events waited, which came after them; some of those may be lost as well."""
        self._ahead = 0

    def begin_anew(self) -> None:
        """Skip what was lost until now: nobody wants to know it."""
        self._counted = self._announced = self._subscription.statistics().lost

    def count(self) -> int:
        """Return how many events were lost since this was last called."""
        counted, self._counted = self._counted, self._subscription.statistics().lost
        return self._counted - counted

    def before(self, event: Event) -> int:
        """Return how many losses are to be reported with an event."""
        counted = self._subscription.statistics()
        lost, waiting, found = counted.lost, counted.waiting, 0
        self._ahead -= 1
        if not waiting:
            found = lost
        elif self._ahead <= 0:
            found, self._found, self._ahead = self._found, lost, waiting
        reported = min(max(event.missed, found - self._announced), lost - self._announced)
        self._announced += reported
        return reported

    def unreported(self) -> int:
        """Return how many losses are to be reported without an event, as none waits."""
        counted = self._subscription.statistics()
        if counted.waiting:
            return 0
        reported = counted.lost - self._announced
        self._announced = counted.lost
        return reported
