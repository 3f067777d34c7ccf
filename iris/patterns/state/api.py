"""Names of the room, loaded when the first of them is read."""

from iris.patterns.state.bounds import MAX_BYTES
from iris.patterns.state.lease import ELSEWHERE, Lease, open_lease
from iris.patterns.state.members import StateMembers
from iris.patterns.state.saga import AskMember, Saga, open_saga
from iris.patterns.state.shared_state import DocumentSettings, SharedState, StateStatistics
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.patterns.state.watch import StateChange, StateWatch

__all__ = (
    "ELSEWHERE", "MAX_BYTES", "AskMember", "DocumentSettings", "Lease", "Saga", "SharedCounter", "SharedMap",
    "SharedSet", "SharedState", "StateChange", "StateMembers", "StateStatistics", "StateWatch", "open_lease",
    "open_saga",
)  # fmt: skip
