"""Context of the SWIM machine: the state its mechanisms share, its timers, its effects, and the trust it asks for.

- ``SwimContext`` holds the view, the clock, the random numbers, the gossip queue and the effects to be performed.
- Timers are a heap of callbacks that can be moved as a whole.
- Effects are a closed union: match them with ``assert_never``.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Final, Protocol, final

from msgspec import Struct

from iris.cluster.swim.awareness import Awareness
from iris.cluster.swim.gossip import (
    MAX_SIGNATURES,
    Accusation,
    Claim,
    GossipQueue,
    Renewal,
    Update,
    sends,
)
from iris.cluster.swim.records import ClusterEntry, MemberState, NodeRecord
from iris.cluster.swim.suspicion import witnesses_needed
from iris.cluster.swim.view import NodeState, View, pick
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.wire import Message, kinds

Action = Callable[[], None]


@final
class Timer:
    """A callback that waits for its time; ``cancel`` lets it wait for ever."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Do not call the callback."""
        self.action = None


@final
class Timers:
    """A heap of callbacks by time."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def deadline(self) -> float:
        """Time at which the next callback is due; infinity if there is none."""
        heap = self._heap
        while heap:
            first = heap[0]
            if first[2].action is not None:
                return first[0]
            heapq.heappop(heap)
        return math.inf

    def at(self, when: float, action: Action) -> Timer:
        """Call ``action`` at ``when``; of equal times the earlier request first."""
        self._count += 1
        timer = Timer(action)
        heapq.heappush(self._heap, (when, self._count, timer))
        return timer

    def postpone(self, seconds: float) -> None:
        """Move everything by ``seconds``: time in which this process could not act does not count."""
        self._heap = [(when + seconds, count, timer) for when, count, timer in self._heap]

    def pop(self, now: float) -> Action | None:
        """Return a callback that is due, or None."""
        if self.deadline > now:
            return None
        return heapq.heappop(self._heap)[2].action if self._heap else None


@final
class Send(Struct, frozen=True, kw_only=True):
    """Send this message to this node, connecting if need be.  If that is refused, call ``Swim.refused``."""

    node: NodeId
    message: Message
    size: int = 64
    """Size on the wire in bytes, roughly."""


@final
class Changed(Struct, frozen=True, kw_only=True):
    """A node is seen in this state now, or its record is new.

    ``evidence`` says why it is suspect or dead: ``"silent"``, ``"refused"``, ``"expelled"`` (its certificates do not
    hold any more), or empty.
    """

    node: NodeId
    state: MemberState
    record: NodeRecord
    evidence: str = ""


@final
class Routable(Struct, frozen=True, kw_only=True):
    """Open or close the route of new work to this node: the balancer's ``resume`` or ``suspend``.

    Closed by own evidence (two direct probes missed, link broken or refused), by two independent witnesses, and by
    death.  A single other member's word closes no route.  Each effect is a change: the route of a member that is new,
    or returns from the dead, is open until an effect closes it; of the gone there are none.
    """

    node: NodeId
    open: bool
    evidence: str = ""


@final
class LoadReport(Struct, frozen=True, kw_only=True):
    """A probe was answered.  Work waits this long for a handler there (seconds); the answer took ``round_trip``."""

    node: NodeId
    queue_delay: float
    round_trip: float


@final
class Synchronized(Struct, frozen=True, kw_only=True):
    """This node has sent all it knew: after the first one of these a joining node sees the realm."""

    node: NodeId


@final
class Rejected(Struct, frozen=True, kw_only=True):
    """A peer sent what cannot be right; it was ignored.  Reported once for each pair, counted each time."""

    sender: NodeId
    reason: str


Effect = Send | Changed | Routable | LoadReport | Synchronized | Rejected


_PIGGYBACK_BYTES: Final = 2048
"""Updates that a probe carries along: it should stay one small packet or two."""

_PIGGYBACK_UPDATES: Final = 16
_GOSSIP_UPDATES: Final = MAX_SIGNATURES
"""Most of so many are renewals and claims; of records there is room for a sixth."""

_SMALL: Final = 64
"""Size of a message without updates in bytes, rounded up."""
_REJECTED_PAIRS: Final = 1024

_WITNESSES_TO_ROUTE: Final = 2
"""Independent witnesses that close a route.  One alone, malicious or cut off itself, must not."""


class SignatureVerifier(Protocol):
    """Signs and verifies, injected: membership knows no cryptography."""

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement in this node's name."""
        ...

    def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
        """Return whether the proofs in ``record`` hold and its subject signed ``statement``."""
        ...

    def holds(self, record: NodeRecord) -> bool:
        """Return whether the subject of a record that was verified before is still to be believed."""
        ...

    def continues(self, held: NodeRecord, record: NodeRecord) -> bool:
        """Return True if two verified records of one node id are of one node: its cluster and keys never change."""
        ...

    def issuer(self, record: NodeRecord) -> bytes:
        """Return what names the cluster's key that a record says its chain is by; nothing of it is verified."""
        ...


class LinkedNodes(Protocol):
    """The links of this node, as the machine asks for them.  Plain calls that read a table."""

    def is_linked(self, node: NodeId) -> bool:
        """Return whether a node is linked; who is not is passed over by gossip."""
        ...

    def is_new(self, node: NodeId) -> bool:
        """Return whether a node is being linked for the first time, so that its silence says nothing."""
        ...

    def contacts(self) -> Collection[NodeId]:
        """Return the nodes to which frames can leave now."""
        ...

    def partners(self) -> Collection[NodeId] | None:
        """Return the members that probes and gossip travel to.

        None: all that live, and likewise at each of these, because they are few.
        """
        ...


class Workload(Protocol):
    """The work of this node."""

    @property
    def queue_delay(self) -> float:
        """Seconds that work waits for a handler here; read with each probe, and sent to the member that probes."""
        ...


@final
class SwimPorts(Struct, frozen=True, kw_only=True):
    """The parts that the machine asks."""

    trust: SignatureVerifier
    links: LinkedNodes
    workload: Workload


@final
class SwimContext:
    """State shared by the SWIM mechanisms of one node.  ``now`` is set by each entry into the machine."""

    def __init__(self, view: View, ports: SwimPorts, config: Config, random: Random, now: float) -> None:
        self.trust: Final = ports.trust
        self.links: Final = ports.links
        self.workload: Final = ports.workload
        self.config: Final = config
        self.random: Final = random
        self.now = now
        self.view: Final = view
        self.timers: Final = Timers()
        self.dissemination: Final = GossipQueue()
        self.health: Final = Awareness()
        self.questions: list[NodeState] = []
        """Members that are to be asked whether they are there."""
        self.outbox: list[Effect] = []
        self.sent: Counter[type[Message]] = Counter()
        """Messages by kind."""
        self.rejections: Counter[str] = Counter()
        self._rejected: dict[tuple[NodeId, str], None] = {}

    @property
    def needed(self) -> int:
        """Witnesses that settle a suspicion now; everybody but the suspect could be one."""
        return witnesses_needed(len(self.view.live), self.config)

    def partners(self) -> list[NodeId]:
        """Return the live members that probes and gossip travel to, in no order that means anything."""
        partners = self.links.partners()
        return self.view.live if partners is None else [node for node in partners if self.view.is_live(node)]

    def is_partner(self, node: NodeId) -> bool:
        """Return whether probes and gossip travel to a node."""
        partners = self.links.partners()
        return partners is None or node in partners

    def pick_partners(self, count: int, excluded: Collection[NodeId] = ()) -> list[NodeId]:
        """Return up to ``count`` different ones of them, at random."""
        return pick(self.partners(), self.random, count, excluded)

    def send(self, node: NodeId, message: Message, size: int = _SMALL) -> None:
        """Send a message as it is; ``size`` is roughly its bytes on the wire."""
        self.sent[type(message)] += 1
        self.outbox.append(Send(node=node, message=message, size=size))

    def send_updates(
        self, node: NodeId, kind: Callable[..., Message], *fields: object, updates: Sequence[Update]
    ) -> None:
        """Send a message of a kind whose last field is these updates."""
        size = _SMALL
        encoded: list[kinds.AnyUpdate] = []
        for update in updates:
            size += update.size
            encoded.append(update.as_update())
        self.send(node, kind(*fields, tuple(encoded)), size)

    def send_with_updates(
        self, node: NodeId, kind: Callable[..., Message], *fields: object, first: Update | None = None
    ) -> None:
        """Send a message of a kind whose last field is gossip from the queue, after ``first``."""
        if first is None and not len(self.dissemination):
            self.send(node, kind(*fields, ()))
            return
        taken = self._pop_updates(_PIGGYBACK_BYTES, _PIGGYBACK_UPDATES)
        if first is not None and first not in taken:
            taken.insert(0, first)
        self.send_updates(node, kind, *fields, updates=taken)

    def pop_gossip(self) -> list[Update]:
        """Return the updates for one gossip message."""
        return self._pop_updates(self.config.update_bytes, _GOSSIP_UPDATES)

    def _pop_updates(self, max_bytes: int, max_updates: int) -> list[Update]:
        if not len(self.dissemination):
            return []
        return self.dissemination.pop(max_bytes, max_updates, sends(self.view.size, self.config))

    def spread(self, update: Update) -> None:
        """Queue ``update`` for everybody."""
        match update:
            case NodeRecord() | Renewal():
                self.dissemination.add(("record", update.node), update)
            case Claim():
                self.dissemination.add(("claim", update.node, update.witness), update)
            case Accusation():
                self.dissemination.add(("accusation", update.node), update)

    def sent_directly(self, node: NodeId, *, new: bool = False) -> None:
        """The queued record of ``node``, if any, is sent to everybody linked by its subject: see ``GossipQueue``."""
        self.dissemination.sent_directly(("record", node), sends(self.view.size, self.config), new=new)

    def spread_record(self, record: NodeRecord, renewal: Renewal | None) -> None:
        """Queue a record for everybody; as a renewal if there is one, and the whole record is not queued still."""
        waiting = self.dissemination.get(("record", record.node))
        self.spread(record if renewal is None or isinstance(waiting, NodeRecord) else renewal)

    def withdraw_claims(self, member: NodeState) -> None:
        """Stop spreading claims that are refuted or settled."""
        if member.suspicion is not None:
            for witness in member.suspicion.claims:
                self.dissemination.discard(("claim", member.record.node, witness))

    def changed(self, member: NodeState, evidence: str = "") -> None:
        """Report a member's state or record, and what follows for its route.

        A route closes before its member is reported gone, and nothing is said of it afterwards; a member that
        returns is reported first, with its route open unless the next effect closes it.
        """
        change = Changed(node=member.record.node, state=member.state, record=member.record, evidence=evidence)
        if member.live:
            self.outbox.append(change)
            self.route(member)
        else:
            self.route(member)
            member.routed = True
            self.outbox.append(change)

    def route(self, member: NodeState) -> None:
        """Report the route to a member if it has opened or closed."""
        suspicion = member.suspicion
        convincing = suspicion is not None and len(suspicion.claims) >= _WITNESSES_TO_ROUTE
        is_open = member.live and not member.unreachable and not convincing
        if is_open == member.routed:
            return
        member.routed = is_open
        evidence = member.unreachable
        if not evidence and suspicion is not None:
            evidence = suspicion.evidence().name.lower()
        if not evidence and not is_open:
            evidence = "left" if member.state is MemberState.LEFT else "silent"
        self.outbox.append(Routable(node=member.record.node, open=is_open, evidence="" if is_open else evidence))

    def reject(self, sender: NodeId, reason: str) -> None:
        """Count the misbehaviour of a peer; report it the first time."""
        self.rejections[reason] += 1
        if (sender, reason) not in self._rejected and len(self._rejected) < _REJECTED_PAIRS:
            self._rejected[sender, reason] = None
            self.outbox.append(Rejected(sender=sender, reason=reason))


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
        """Receive a message from an authenticated sender; count what is wrong with it, and raise nothing."""
        ...
