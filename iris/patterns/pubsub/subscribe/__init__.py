"""The subscriber's side: events, the subscription's queue, its overflow policy.

Promises: a queue is bounded in messages and bytes; what it drops is shown as ``missed`` with the next event and
reported to the publisher.  Not here: which subscriptions match (iris.patterns.pubsub.interest).
"""

from iris.patterns.pubsub.subscribe.events import (
    Event, EventRun, check_run_untrusted, labels_size, most_sharing, single_run,
)  # fmt: skip
from iris.patterns.pubsub.subscribe.expiry import EXPIRES, MAX_EXPIRES, expires_after, with_expiry
from iris.patterns.pubsub.subscribe.losses import AnnouncedLosses
from iris.patterns.pubsub.subscribe.open_subscriptions import OpenSubscriptions
from iris.patterns.pubsub.subscribe.subscription import (
    Overflow, QueueLimits, Subscription, SubscriptionLimits, SubscriptionOptions, SubscriptionStatistics, Upstream,
    batch_size,
)  # fmt: skip

__all__ = (
    "EXPIRES", "MAX_EXPIRES", "Event", "EventRun", "OpenSubscriptions", "Overflow", "QueueLimits", "Subscription",
    "SubscriptionLimits", "SubscriptionOptions", "SubscriptionStatistics", "AnnouncedLosses", "Upstream",
    "batch_size", "check_run_untrusted", "expires_after", "labels_size", "most_sharing", "single_run", "with_expiry",
)  # fmt: skip
