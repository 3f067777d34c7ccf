"""The publisher's side: runs of events, acknowledgements, retained values, groups.

Promises: events of one publisher keep their order and their numbers; an event that no link accepted is counted with a
reason; a confirmed event is sent again under its number until it is acknowledged or its time is over.  Not here: the
subscriber's queue (iris.patterns.pubsub.subscribe).
"""

from iris.patterns.pubsub.publish.accounts import EventAccounts, PublishStatistics
from iris.patterns.pubsub.publish.ack_batch import ConfirmedEvents, open_confirmed_events
from iris.patterns.pubsub.publish.acks import REPEATED, Acknowledgements
from iris.patterns.pubsub.publish.posted import PostedEvents
from iris.patterns.pubsub.publish.publisher import Publisher
from iris.patterns.pubsub.publish.retained import RetainedSender, check_retained_untrusted
from iris.patterns.pubsub.publish.retaining import RetainedPublishing
from iris.patterns.pubsub.publish.rotation import MAX_ROTATIONS, Rotation

__all__ = (
    "MAX_ROTATIONS", "REPEATED", "Acknowledgements", "ConfirmedEvents", "EventAccounts", "PostedEvents",
    "PublishStatistics", "Publisher", "RetainedPublishing", "RetainedSender", "Rotation", "check_retained_untrusted",
    "open_confirmed_events",
)  # fmt: skip
