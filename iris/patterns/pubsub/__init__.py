"""Publish/subscribe of one node: topics, subscriptions, acknowledgements, retained values.

There is no broker.  Subscribers send their interest to their peers, and publishers post events on the links of those
that match.  ``interest`` is what each node wants, ``publish`` and ``subscribe`` are the two ends, ``tree`` serves many
subscribers, ``sealed`` other sites; ``PubSub`` joins them.

Promises: at most once per subscriber; first in, first out per publisher; a lost event is counted at the publisher and
shown to the subscriber as ``missed`` before the next one.  ``publish_confirmed`` returns when all durable subscribers
have the event on disk: at least once on the wire, once in the log.  A subscription with ``overflow="wait"`` slows its
publishers down, for as long as they have patience with it; any other one drops by its policy when its queue is full.

Not here: history.  Beyond retained values nothing is stored; a log that is read from the past is iris.spark_bridge.
"""

from iris.patterns.pubsub.publish import PostedEvents
from iris.patterns.pubsub.pubsub import Elsewhere, PubSub
from iris.patterns.pubsub.sealed import SealedReceiver
from iris.patterns.pubsub.subscribe import OpenSubscriptions

__all__ = (
    "Elsewhere", "OpenSubscriptions", "PostedEvents", "PubSub", "SealedReceiver",
)  # fmt: skip
