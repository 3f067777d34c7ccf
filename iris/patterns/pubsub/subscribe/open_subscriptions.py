"""Open subscriptions: the subscriptions of a node, which its publish/subscribe and its books both look at."""

from __future__ import annotations

from typing import Final, final

from iris.patterns.observer import Observer
from iris.patterns.pubsub.interest import Terms
from iris.patterns.pubsub.subscribe.subscription import Subscription


@final
class OpenSubscriptions(dict[Subscription, Terms]):
    """The subscriptions of a node, each with its terms.

    Args:
        observer: observer of the events that they receive.  None if there is none.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        super().__init__()
        self.observer: Final = observer

    def count_received(self) -> None:
        """Count the events that consumers have received of the runs that they are at; see ``PendingCounts``."""
        for subscription in self:
            if subscription._is_reading:
                subscription._note_taken()
