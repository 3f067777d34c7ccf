"""Sender keys: one sealed copy of an event for all its subscribers at other sites.

Promises: gateways read nothing; a key travels only over end-to-end sessions, and is not used again once one of its
nodes was given up; events keep their order per publisher.  Not here: events for groups, repeats and retained values,
which go over sessions.
"""

from iris.patterns.pubsub.sealed.receiver import SealedReceiver
from iris.patterns.pubsub.sealed.sender import Audience, SealedSender

__all__ = (
    "Audience", "SealedReceiver", "SealedSender",
)  # fmt: skip
