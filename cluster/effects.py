"""What the membership machine asks of the shell around it.  A closed union; match it with ``assert_never``."""

from __future__ import annotations

from typing import final

from iris.cluster.records import MemberState, NodeRecord
from iris.kernel.ids import NodeId
from iris.kernel.values import dataclass


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send this message to this node, connecting if need be.  If that is refused, call ``Swim.refused``."""

    node: NodeId
    message: tuple[object, ...]
    size: int = 64
    """Bytes on the wire, roughly."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A node is seen in this state now, or its record is new.

    ``evidence`` says why it is suspect or dead: ``"silent"``, ``"refused"``, ``"expelled"`` (its papers do not hold any
    more), or empty.
    """

    node: NodeId
    state: MemberState
    record: NodeRecord
    evidence: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Whether to give work to this node from now on: the balancer's ``resume`` or ``suspend``.

    Closed by own evidence (two direct probes missed, link broken or refused), by two independent witnesses, and by
    death.  A single other member's word closes no route.  Each effect is a change: the route of a member that is new,
    or returns from the dead, is open until an effect closes it; of the gone there are none.
    """

    node: NodeId
    open: bool
    evidence: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A probe was answered.  Work waits this long for a handler there (seconds); the answer took ``round_trip``."""

    node: NodeId
    queue_delay: float
    round_trip: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronized:
    """This node has sent all it knew: after the first one of these a joining node sees the realm."""

    node: NodeId


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A peer sent what cannot be right; it was ignored.  Reported once for each pair, counted each time."""

    sender: NodeId
    reason: str


Effect = Send | Changed | Route | Load | Synchronized | Rejected
