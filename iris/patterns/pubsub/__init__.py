"""Publish/subscribe of one node.

Promises: at most once per subscriber, first in first out per publisher, losses counted and shown; ``confirm=True``
returns
when every durable subscriber has the event on disk.
"""

from iris.patterns.pubsub.pubsub import PubSub
from iris.patterns.pubsub.remote import RemoteSubscribers

__all__ = (
    "PubSub", "RemoteSubscribers",
)  # fmt: skip
