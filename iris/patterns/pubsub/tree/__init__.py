"""The tree over which events reach more subscribers than one node should send to.

Promises: order per publisher holds, a relay that dies costs counted events at most.
"""

from iris.patterns.pubsub.tree.feed import Outlet
from iris.patterns.pubsub.tree.relay import EventRelays
from iris.patterns.pubsub.tree.trees import EventTrees

__all__ = (
    "EventRelays", "EventTrees", "Outlet",
)  # fmt: skip
