"""Membership view: what the shell of membership asks of its machine, which is ``Swim`` or a client's ``ClientView``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from iris.cluster.swim.context import Effect
from iris.cluster.swim.records import ClusterEntry, MemberState, NodeRecord
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds


class MembershipView(Protocol):
    """A machine that sees who is there.

    Its questions read a table.  Its events return what is to be done because of them, in that order; ``now`` is the
    time in seconds, of a clock that does not go back.
    """

    @property
    def deadline(self) -> float:
        """Time at which ``expire`` is to be called; infinity if never."""
        ...

    @property
    def own(self) -> NodeRecord:
        """Record of this node, as others will know it."""
        ...

    @property
    def lateness(self) -> float:
        """Seconds by which this node was late lately with what was due: it, or its machine, has too much to do."""
        ...

    @property
    def settled(self) -> bool:
        """True once what this node had to announce was sent often enough; worth a short wait when closing."""
        ...

    @property
    def rejected(self) -> Mapping[str, int]:
        """Number of messages and updates of peers that were refused, by reason."""
        ...

    def record(self, node: NodeId) -> NodeRecord | None:
        """Return the record of a node, dead or alive; None if it is unknown."""
        ...

    def state(self, node: NodeId) -> MemberState | None:
        """Return how a node is seen; None if it is unknown."""
        ...

    def is_unanswered(self, cluster: str) -> bool:
        """Return whether nobody has said yet which members a cluster has."""
        ...

    def join(self, contacts: Iterable[NodeId], now: float) -> list[Effect]:
        """Nodes are linked that can be asked who is there; the effect ``Synchronized`` says when one has answered."""
        ...

    def update_self(
        self,
        now: float,
        *,
        addresses: Iterable[str] | None = None,
        clusters: Iterable[ClusterEntry] | None = None,
        proof: bytes | None = None,
    ) -> list[Effect]:
        """Publish what has changed about this node; None leaves a field as it is.  A client publishes nothing.

        Raises:
            ConfigError: the record would exceed its limits; nothing has changed.
        """
        ...

    def leave(self, now: float) -> list[Effect]:
        """Publish that this node leaves."""
        ...

    def broken(self, node: NodeId, now: float) -> list[Effect]:
        """The link to a node broke, and neither side meant it to."""
        ...

    def refused(self, node: NodeId, now: float) -> list[Effect]:
        """Nobody listens where a node was."""
        ...

    def doubt(self, node: NodeId, now: float) -> list[Effect]:
        """A node owes an answer and says nothing."""
        ...

    def recheck(self, now: float, vouched: Callable[[NodeId], bool]) -> list[Effect]:
        """Somebody was revoked: verify everybody's certificates again.

        ``vouched`` tells whether a node is linked by certificates that hold, whatever its record shows.
        """
        ...

    def expire(self, now: float) -> list[Effect]:
        """Do what is due."""
        ...

    def receive(self, message: kinds.OfMembership, sender: NodeId, now: float) -> list[Effect]:
        """Take a message from an authenticated sender; whatever is wrong with it is counted, and nothing is raised."""
        ...
