"""Event tree: an overlay multicast tree over which events reach more subscribers than one node should send to.

Promises: the order per publisher holds, also when a publisher changes between tree and direct links; a relay forwards
only what it may subscribe to itself; a relay that dies costs events that the gap shows.  Not here: subscribers that
publishers wait for, groups, other sites; those get events directly.
"""

from iris.patterns.pubsub.tree.feed import Route, TreeSender
from iris.patterns.pubsub.tree.relay import EventRelays
from iris.patterns.pubsub.tree.trees import EventTrees

__all__ = (
    "EventRelays", "EventTrees", "Route", "TreeSender",
)  # fmt: skip
