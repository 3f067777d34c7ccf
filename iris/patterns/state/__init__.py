"""Shared state: documents that every member of a cluster has a copy of, and leases that one node has.

Promises of documents: members that have the same writes are equal, whatever the order, and whatever they missed; a read
or write waits for nobody; what others send is checked before it touches the document, and bounded.  Not: one order of
all writes.  Leases are never a matter of members among themselves: a bridge grants them, or nobody.
"""

from iris.patterns.state.lease import ELSEWHERE, Lease, open_lease
from iris.patterns.state.members import StateMembers
from iris.patterns.state.saga import AskMember, Saga, open_saga
from iris.patterns.state.shared_state import MAX_BYTES, DocumentSettings, SharedState, StateStatistics
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.patterns.state.watch import StateChange, StateWatch

__all__ = (
    "ELSEWHERE", "MAX_BYTES", "AskMember", "DocumentSettings", "Lease", "Saga", "SharedCounter", "SharedMap",
    "SharedSet", "SharedState", "StateChange", "StateMembers", "StateStatistics", "StateWatch", "open_lease",
    "open_saga",
)  # fmt: skip
