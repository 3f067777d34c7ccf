"""A request as its caller has made it: what all attempts of it have in common."""

from __future__ import annotations

from typing import Final, Literal, final

from msgspec import Struct

from iris.cluster.balancing import AtSite
from iris.kernel import wire
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.picker import Picker

IDEMPOTENT: Final = 1
"""Flag of a request: members remember its reply until its deadline."""

PRIORITY_SHIFT: Final = 1
"""The flags hold a ``Priority`` from this bit on."""

TIMED: Final = 8
"""Flag of a request: before its reply the member says how long it waited there and ran."""

KEYED: Final = 16
"""Flag of a request: its outcome is kept under the key in its header ``IDEMPOTENCY_KEY``."""

IDEMPOTENCY_KEY: Final = "idempotency-key"
"""Header of a request; only with the flag ``KEYED`` it means something here."""

UNDOES: Final = "idempotency-undoes"
"""Header of a request that undoes another one: its key is the other one's key and ``UNDO``.  The value is "ran" if the
other one has had a reply, else "asked", then a space and the operation of the other one."""

UNDO: Final = "/undo"

_MAX_BUDGET_MS: Final = 2**32 - 1


@final
class Call(Struct, eq=False):
    """A request, encoded and on its way to some member.  Made by ``Requests.call``; its times are trio's.

    Attributes:
        cluster: address of the cluster, as the caller wrote it.
        name: name of the cluster at its members, without a site.
        label: cluster as figures name it, without a site.
        size: bytes of the payload and the headers, as links count them.
        only: the only member to ask.  None if any may be asked.
        timeout: seconds that the caller grants.
        picker: chooser of members; None as long as nobody serves the cluster.
        tried: members that were asked since the last pause, by all tasks of a hedged request.
        pattern: ``request``, or ``survey`` for the part of a survey.
        asked: member that was asked last.
        stuck: members that it has blocked, or that fell silent while they had it, and from which it was taken away.
    """

    cluster: str
    name: str
    label: str
    payload: wire.Payload
    headers: wire.Headers
    size: int
    operation: str | None
    key: str | None
    prefer: NodeId | AtSite | None
    only: NodeId | None
    flags: int
    timeout: float
    started: float
    deadline: float
    picker: Picker | None
    tried: set[NodeId]
    pattern: Literal["request", "survey"] = "request"
    asked: NodeId = NodeId("")
    stuck: int = 0

    @property
    def idempotent(self) -> bool:
        """True if it may run twice."""
        return bool(self.flags & IDEMPOTENT)

    def message(self, identifier: int, now: float) -> kinds.Request:
        """Return the message to a member, with the time that is left."""
        left = self.deadline - now
        # The part that the member may use, in milliseconds, is a little less, for the transit.
        budget = _MAX_BUDGET_MS if left > _MAX_BUDGET_MS / 1000 else max(1, int(left * 1000 + 1e-6) - 1)
        return kinds.Request(identifier, self.name, self.operation, budget, self.flags, self.headers, self.payload)
