"""SWIM membership with Lifeguard as a state machine: failure detector, gossip, anti-entropy, signed records.

It promises that records merge in any order and any number of times to the same view, that one member's word never kills
another, and that a message or an expired deadline yields its effects in bounded time and memory.  It has no sockets,
clocks or tasks: those are in iris.cluster.membership.
"""

from iris.cluster.swim.anti_entropy import portions
from iris.cluster.swim.client_view import ClientView, view_hash
from iris.cluster.swim.context import (
    Changed, Effect, LinkedNodes, LoadReport, Rejected, Routable, Send, SwimPorts, Synchronized, Workload,
)  # fmt: skip
from iris.cluster.swim.gossip import signatures_in
from iris.cluster.swim.context import MembershipView
from iris.cluster.swim.records import (
    ANNOUNCES,
    MAX_CLUSTERS,
    ClusterEntry,
    MemberState,
    NodeRecord,
    is_plain,
    statement_bytes,
)
from iris.cluster.swim.swim import Swim

__all__ = (
    "ANNOUNCES", "Changed", "ClientView", "ClusterEntry", "Effect", "LinkedNodes", "LoadReport", "MAX_CLUSTERS",
    "MemberState", "MembershipView", "NodeRecord", "Rejected", "Routable", "Send", "Swim", "SwimPorts", "Synchronized",
    "Workload", "is_plain", "portions", "signatures_in", "statement_bytes", "view_hash",
)  # fmt: skip
