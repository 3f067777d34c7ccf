"""A realm on a heap: machines, messages in flight, faults.  Time passes only from event to event.

The same seed gives the same run, event by event; ``digest`` proves it.  Loss is the loss of whole messages, which is
harsher than what membership meets over a transport that repeats; latency is that of a site.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import math
from collections.abc import Callable, Collection
from random import Random
from typing import Final, cast, final, get_args

from benchmarks.membership.overlays import HANDSHAKE, Links, LinksOf, Overlay
from iris.cluster.swim.context import Changed, Effect, Rejected, Routable, Send, SwimPorts, Synchronized
from iris.cluster.swim.local_member import signed
from iris.cluster.swim.records import ClusterEntry, MemberState, NodeRecord
from iris.cluster.swim.swim import Swim
from iris.cluster.swim.view import View
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.population import Population

Effects = list[Effect]

_REFUSAL: Final = 0.0005
"""Seconds until a connection to a killed process is refused (0.4 ms measured over loopback)."""

_NOTED: Final = (Changed, Routable, Rejected)

_CERTIFICATE: Final = bytes(480)
"""Stand-in of the size of a certificate with its delegation."""


@final
class _AllLinked:
    """Links of a node that is linked to everybody."""

    def is_linked(self, node: NodeId) -> bool:  # noqa: ARG002 -- whoever it is
        """See ``LinkedNodes.is_linked``."""
        return True

    def is_new(self, node: NodeId) -> bool:  # noqa: ARG002 -- whoever it is
        """See ``LinkedNodes.is_new``."""
        return False

    def contacts(self) -> Collection[NodeId]:
        """See ``LinkedNodes.contacts``."""
        return ()

    def partners(self) -> None:
        """See ``LinkedNodes.partners``."""


@final
class _Idle:
    """Workload of a node where no work waits."""

    @property
    def queue_delay(self) -> float:
        return 0.0


@final
class SimulatedTrust:
    """Signatures that nobody but their node can make, without cryptography: keyed hashes, keys in one table."""

    def __init__(self, node: NodeId, keys: dict[NodeId, bytes]) -> None:
        self._key = keys[node]
        self._keys = keys

    def sign(self, statement: bytes) -> bytes:
        """See ``SignatureVerifier.sign``."""
        return hashlib.blake2b(statement, key=self._key, digest_size=64).digest()

    def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
        """See ``SignatureVerifier.verify``."""
        key = self._keys.get(record.node)
        return key is not None and hashlib.blake2b(statement, key=key, digest_size=64).digest() == signature

    def holds(self, record: NodeRecord) -> bool:
        """See ``SignatureVerifier.holds``."""
        return record.node in self._keys

    def continues(self, held: NodeRecord, record: NodeRecord) -> bool:
        """See ``SignatureVerifier.continues``."""
        return (held.node, held.name) == (record.node, record.name)

    def issuer(self, record: NodeRecord) -> bytes:
        """See ``SignatureVerifier.issuer``.  Each node is of a cluster of its own here."""
        return record.node.encode()


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """An effect that is not a message: who noticed what, when."""

    at: float
    observer: NodeId
    effect: Changed | Routable | Rejected

    @property
    def subject(self) -> NodeId:
        """Node that the effect is about."""
        return self.effect.sender if isinstance(self.effect, Rejected) else self.effect.node

    @property
    def closes(self) -> bool:
        """True if the subject gets no more work from the observer."""
        return isinstance(self.effect, Routable) and not self.effect.open

    def shows(self, state: MemberState) -> bool:
        """Return whether the subject is seen in this state."""
        return isinstance(self.effect, Changed) and self.effect.state is state


@final
class Realm:
    """Nodes, and the network between them.

    Args:
        size: nodes that know each other from the start; with ``settled=False`` they start alone.
        seed: of everything that is random.
        loss: share of all messages that is lost.
        latency: shortest and longest time of a message in seconds.
        encoded: pass every message through the product's wire format, and check its size.
        traced: keep a digest of every effect.
        overlay: whom each node keeps a link to.  None: everybody.
    """

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        config: Config | None = None,
        loss: float = 0.0,
        latency: tuple[float, float] = (0.0002, 0.002),
        settled: bool = True,
        shared: bool = True,
        encoded: bool = False,
        traced: bool = False,
        overlay: Overlay | None = None,
    ) -> None:
        self.config: Final = config or Config()
        self.random: Final = Random(seed)
        self.loss = loss
        self.now = 0.0
        self.machines: dict[NodeId, Swim] = {}
        self.noted: list[Noted] = []
        self.messages = 0
        self.events = 0
        self.largest = 0
        self.cut: Callable[[NodeId, NodeId], bool] | None = None
        """Predicate: messages from the first to the second node vanish. None: none do."""
        self.listener: Callable[[NodeId, Effect], None] | None = None
        """Called with each effect that is no message, by observer."""
        self.interceptor: Callable[[NodeId, kinds.OfMembership, NodeId], bool] | None = None
        """Called with each message that arrives (receiver, message, sender); True takes it off the machine."""
        self.links: Final = None if overlay is None else Links(overlay, Random(seed), self._greet)
        self._latency = latency
        self._keys: dict[NodeId, bytes] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._armed: dict[NodeId, float] = {}
        self._killed: set[NodeId] = set()
        self._stalled: dict[NodeId, float] = {}
        self._settled = not settled
        self._joining: set[NodeId] = set()
        """Nodes that have not been sent everybody's records yet: who chose among the first would choose again."""
        self._encoded = encoded
        self._decoder = wire.BatchDecoder(*get_args(kinds.OfMembership))
        self._digest = hashlib.blake2b(digest_size=16) if traced else None
        records = [self._new_record() for _ in range(size)]
        population = Population([signed(record, self.trust(record.node)) for record in records])
        view = View if not settled else population.view if shared else population.whole_view
        for record in records:
            self._start(record, view)
        if settled:
            for node in self.nodes:
                self._choose(node)
            self._settled = True

    def __repr__(self) -> str:
        return f"<Realm of {len(self.machines)} at {self.now:.3f} s>"

    # -- nodes ----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[NodeId]:
        """The nodes that run."""
        return list(self.machines)

    @property
    def digest(self) -> str:
        """A hash over every effect so far."""
        assert self._digest is not None, "the realm was not made with traced=True"
        return self._digest.hexdigest()

    def trust(self, node: NodeId) -> SimulatedTrust:
        """Return the keys of a node."""
        return SimulatedTrust(node, self._keys)

    def _new_record(self) -> NodeRecord:
        node = NodeId(f"{self.random.getrandbits(128):032x}")
        self._keys[node] = self.random.randbytes(16)
        octets = self.random.randbytes(3)
        return NodeRecord(
            node=node,
            name="databases",
            proof=_CERTIFICATE,
            addresses=(f"tcp://10.{octets[0]}.{octets[1]}.{octets[2]}:7400",),
            clusters=(ClusterEntry(name="databases"),),
        )

    def _start(self, record: NodeRecord, view: Callable[[NodeRecord], View]) -> NodeId:
        node = record.node
        self.machines[node] = Swim(
            record=record,
            ports=SwimPorts(
                trust=self.trust(node),
                links=_AllLinked() if self.links is None else LinksOf(node, self.links),
                workload=_Idle(),
            ),
            config=self.config,
            random=Random(self.random.getrandbits(64)),
            now=self.now,
            view=view,
        )
        self._armed[node] = math.inf
        self._arm(node)
        return node

    def start(self, contact: NodeId | None = None) -> NodeId:
        """Start a node; with ``contact`` it joins there."""
        node = self._start(self._new_record(), View)
        if contact is not None:
            self._joining.add(node)
            self.perform(node, self.machines[node].join([contact], self.now))
        return node

    def vanish(self, node: NodeId) -> None:
        """The host of a node is gone: nothing answers, nothing is refused."""
        del self.machines[node]
        if self.links is not None:
            self.links.forget(node)

    def kill(self, node: NodeId, *, linked: float = 1.0) -> None:
        """A node's process is gone: ``linked`` of those linked to it see their connection break within 5 ms."""
        others = [other for other in self.nodes if other != node]
        if self.links is not None:
            others = sorted(self.links.open(node, self.now).intersection(others))
        self._killed.add(node)
        self.vanish(node)
        for other in others:
            if self.random.random() < linked:
                self.after(0.001 + 0.004 * self.random.random(), self._refuse, other, node)

    def stall(self, node: NodeId, seconds: float) -> None:
        """A node's process does not run for a while; messages wait for it."""
        self._stalled[node] = self.now + seconds

    def _refuse(self, node: NodeId, by: NodeId) -> None:
        machine = self.machines.get(node)
        if machine is not None:
            if self._stalled.get(node, 0.0) > self.now:
                self._at(self._stalled[node], self._refuse, node, by)
            else:
                self.perform(node, machine.refused(by, self.now))

    # -- time -----------------------------------------------------------------------------------------------

    def _at(self, when: float, action: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action, arguments))

    def after(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        """Call ``action`` in so many seconds."""
        self._at(self.now + seconds, action, *arguments)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action, arguments = heapq.heappop(heap)
            self.events += 1
            action(*arguments)
        self.now = until

    def _arm(self, node: NodeId) -> None:
        deadline = self.machines[node].deadline
        if deadline < self._armed[node]:
            self._armed[node] = deadline
            self._at(deadline, self._expire, node)

    def _expire(self, node: NodeId) -> None:
        machine = self.machines.get(node)
        if machine is None or self._armed[node] > self.now:
            return
        stalled = self._stalled.get(node, 0.0)
        if stalled > self.now:
            self._armed[node] = stalled
            self._at(stalled, self._expire, node)
            return
        self._armed[node] = math.inf
        if machine.deadline > self.now:
            self._arm(node)
        else:
            self.perform(node, machine.expire(self.now))

    # -- messages -------------------------------------------------------------------------------------------

    def perform(self, node: NodeId, effects: Effects) -> None:
        """Do what a machine asks."""
        if any(isinstance(effect, Synchronized) for effect in effects):
            self._joining.discard(node)
        if self.links is not None and any(isinstance(effect, (Changed, Synchronized)) for effect in effects):
            self._choose(node)
        for effect in effects:
            if self._digest is not None:
                self._digest.update(f"{self.now:.9f} {node} {effect!r}\n".encode())
            if isinstance(effect, Send):
                self.post(node, effect.node, cast("kinds.OfMembership", effect.message))
                continue
            if isinstance(effect, _NOTED):
                self.noted.append(Noted(at=self.now, observer=node, effect=effect))
            if self.listener is not None:
                self.listener(node, effect)
        if node in self.machines:
            self._arm(node)

    def post(self, sender: NodeId, receiver: NodeId, message: kinds.OfMembership) -> None:
        """Send a message."""
        self.messages += 1
        if receiver in self._killed:
            self.after(_REFUSAL, self._refuse, sender, receiver)
            return
        if self.random.random() < self.loss or (self.cut is not None and self.cut(sender, receiver)):
            return
        if self._encoded:
            frame = wire.encode_batch([message])
            self.largest = max(self.largest, len(frame))
            (message,) = self._decoder.decode_untrusted(frame)
        shortest, longest = self._latency
        delay = shortest + (longest - shortest) * self.random.random()
        if self.links is not None and receiver in self.machines:
            delay += self.links.use(sender, receiver, self.now)
        self.after(delay, self._arrive, sender, receiver, message)

    def _arrive(self, sender: NodeId, receiver: NodeId, message: kinds.OfMembership) -> None:
        machine = self.machines.get(receiver)
        if machine is None:
            return
        stalled = self._stalled.get(receiver, 0.0)
        if stalled > self.now:
            self._at(stalled, self._arrive, sender, receiver, message)
            return
        if self.interceptor is not None and self.interceptor(receiver, message, sender):
            return
        self.perform(receiver, machine.receive(message, sender, self.now))

    # -- links ----------------------------------------------------------------------------------------------

    def _choose(self, node: NodeId) -> None:
        if self.links is not None and node in self.machines and node not in self._joining:
            live = [record.node for record in self.machines[node].members()]
            self.links.choose(node, live, [one for one in live if self._can_link(node, one)])

    def _can_link(self, node: NodeId, other: NodeId) -> bool:
        return other in self.machines and not (self.cut is not None and self.cut(node, other))

    def _greet(self, node: NodeId, other: NodeId) -> None:
        """Two nodes are linked: each sends its own record, as ``Membership.peer_connected`` does."""
        if self._settled:
            for sender, receiver in ((node, other), (other, node)):
                own = self.machines[sender].own
                self.after(HANDSHAKE, self.post, sender, receiver, kinds.State(False, (own.as_update(),)))

    # -- what was seen --------------------------------------------------------------------------------------

    def times(self, subject: NodeId, state: MemberState, since: float) -> list[float]:
        """Return after how many seconds each observer first saw ``subject`` in ``state``, sorted."""
        first: dict[NodeId, float] = {}
        for noted in self.noted:
            if noted.at >= since and noted.subject == subject and noted.shows(state):
                first.setdefault(noted.observer, noted.at - since)
        return sorted(first.values())

    def closed(self, subject: NodeId, since: float) -> list[float]:
        """Return after how many seconds each observer gave ``subject`` no more work, sorted."""
        first: dict[NodeId, float] = {}
        for noted in self.noted:
            if noted.at >= since and noted.subject == subject and noted.closes:
                first.setdefault(noted.observer, noted.at - since)
        return sorted(first.values())

    def deaths(self) -> list[Noted]:
        """Return every time at which a node concluded that another one is dead."""
        return [noted for noted in self.noted if noted.shows(MemberState.DEAD)]

    def complete(self, nodes: list[NodeId] | None = None) -> bool:
        """Return whether each of ``nodes`` sees each other one alive."""
        everybody = self.nodes if nodes is None else nodes
        return all(self.machines[one].state(other) is MemberState.ALIVE for one in everybody for other in everybody)
