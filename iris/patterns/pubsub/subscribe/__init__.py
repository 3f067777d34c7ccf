"""The subscriber's side: events, subscription queue, overflow.

Promises: a queue is bounded in messages and bytes; what it drops is told as ``missed`` with the next event.
"""

from iris.patterns.pubsub.subscribe.events import Event, EventRun, check_run_untrusted, labels_size, most_sharing
from iris.patterns.pubsub.subscribe.subscription import (
    Overflow, Subscription, SubscriptionLimits, SubscriptionStatistics,
)  # fmt: skip

__all__ = (
    "Event", "EventRun", "Overflow", "Subscription", "SubscriptionLimits", "SubscriptionStatistics",
    "check_run_untrusted", "labels_size", "most_sharing",
)  # fmt: skip
