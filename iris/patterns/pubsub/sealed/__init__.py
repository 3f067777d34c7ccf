"""Sender keys: one sealed copy of an event for all its subscribers behind a gateway.

Promises: gateways read nothing; a key travels only over end-to-end sessions and is replaced when rights change.
"""

from iris.patterns.pubsub.sealed.receiver import SealedReceiver
from iris.patterns.pubsub.sealed.sender import Audience, SealedSender

__all__ = (
    "Audience", "SealedReceiver", "SealedSender",
)  # fmt: skip
