"""Sender keys: one sealed copy of an event for all its subscribers behind a gateway.

Promises: gateways read nothing; a key travels only over end-to-end sessions and is replaced when rights change.
"""

from iris.patterns.pubsub.sealed.receiver import HeardCopies
from iris.patterns.pubsub.sealed.sender import Audience, Copies

__all__ = (
    "Audience", "Copies", "HeardCopies",
)  # fmt: skip
