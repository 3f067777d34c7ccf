"""A request as its caller has made it: what all attempts of it have in common."""

from __future__ import annotations

from collections.abc import Callable
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

EACH: Final = 32
"""Flag of a request that is a survey's: each of those for whom the member stands answers it; see ``kinds.Part``."""

IDEMPOTENCY_KEY: Final = "idempotency-key"
"""Header of a request; only with the flag ``KEYED`` it means something here."""

UNDOES: Final = "idempotency-undoes"
"""Header of a request that undoes another one: its key is the other one's key and ``UNDO``.  The value is "ran" if the
other one has had a reply, else "asked", then a space and the operation of the other one."""

UNDO: Final = "/undo"

_MOST: Final = 2.0**32
"""Milliseconds that a budget on the wire is below."""


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
        part: called with what others than the last answer for whom the member stands.  None: the flag ``EACH`` is not
            set, and the member answers once.
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
    part: Callable[[NodeId, kinds.Part], None] | None = None
    asked: NodeId = NodeId("")
    stuck: int = 0

    @property
    def idempotent(self) -> bool:
        """True if it may run twice."""
        return bool(self.flags & IDEMPOTENT)

    def message(self, identifier: int, now: float) -> kinds.Request:
        """Return the message to a member, with the time that is left."""
        # The part that the member may use is a little less than what is left, for the transit.
        budget = int(min((self.deadline - now) * 1000 + 1e-6, _MOST)) - 1
        if budget < 1:
            budget = 1
        return kinds.Request(identifier, self.name, self.operation, budget, self.flags, self.headers, self.payload)
