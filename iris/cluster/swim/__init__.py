"""Membership as a state machine: SWIM with Lifeguard, anti-entropy, signed records.

Promises: records merge in any order and any number of times to the same view; one member's word never kills another;
a message and an expired deadline yield effects, in bounded time and memory.  Not here: sockets, clocks and tasks
(iris.cluster.membership).
"""

from iris.cluster.swim.context import Changed, Effect, LoadReport, Rejected, Routable, Send, Synchronized
from iris.cluster.swim.gossip import encode_update, signatures_in
from iris.cluster.swim.records import MAX_PROOF, ClusterEntry, MemberState, NodeRecord, is_plain, statement_bytes
from iris.cluster.swim.swim import KINDS, Swim

__all__ = (
    "KINDS", "MAX_PROOF", "Changed", "ClusterEntry", "Effect", "LoadReport", "MemberState", "NodeRecord",
    "Rejected", "Routable", "Send", "Swim", "Synchronized", "encode_update", "is_plain", "signatures_in",
    "statement_bytes",
)  # fmt: skip
