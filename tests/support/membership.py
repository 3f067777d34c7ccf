"""Membership machines for tests: records that can be distinguished, signatures without cryptography."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from random import Random
from typing import cast

from msgspec import structs

from iris.cluster.swim.context import Changed, Effect, Send, SignatureVerifier, SwimPorts
from iris.cluster.swim.gossip import Claim, Evidence, Update, updates_untrusted
from iris.cluster.swim.records import MemberState, NodeRecord
from iris.cluster.swim.swim import Swim
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.wire import Message, kinds
from tests.support.messages import fields_of


def node(number: int) -> NodeId:
    """Return a node id; consecutive numbers fall into different buckets."""
    return NodeId(f"{number % 256:02x}{number:030x}")


class HashTrust:
    """Anybody's signature can be checked; ``as_node`` alone says whose this one makes.

    Attributes:
        expelled: whom nobody believes any more.
    """

    def __init__(self, as_node: NodeId) -> None:
        self.as_node = as_node
        self.expelled: set[NodeId] = set()

    def sign(self, statement: bytes) -> bytes:
        return hashlib.blake2b(self.as_node.encode() + statement, digest_size=16).digest()

    def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
        return record.node not in self.expelled and HashTrust(record.node).sign(statement) == signature

    def holds(self, record: NodeRecord) -> bool:
        return record.node not in self.expelled

    def continues(self, held: NodeRecord, record: NodeRecord) -> bool:
        return (held.node, held.name) == (record.node, record.name)

    def issuer(self, record: NodeRecord) -> bytes:
        return record.name.encode()


def record(number: int, *, incarnation: int = 1, leaving: bool = False, site: str = "") -> NodeRecord:
    """Return a signed record."""
    bare = NodeRecord(node=node(number), name="databases", incarnation=incarnation, leaving=leaving, site=site)
    return structs.replace(bare, signature=HashTrust(bare.node).sign(bare.statement()))


class Links:
    """The links of a machine: all nodes are linked and none is new, until the test says otherwise."""

    def __init__(self) -> None:
        self.linked: set[NodeId] | None = None
        """Nodes that are linked.  None: all."""
        self.unlinked: set[NodeId] = set()
        self.new: set[NodeId] = set()
        self.kept: set[NodeId] | None = None
        """Nodes that a link is kept to.  None: all."""

    def is_linked(self, node: NodeId) -> bool:
        return node not in self.unlinked and (self.linked is None or node in self.linked)

    def is_new(self, node: NodeId) -> bool:
        return node in self.new

    def contacts(self) -> Collection[NodeId]:
        return self.linked or ()

    def partners(self) -> Collection[NodeId] | None:
        return self.kept


class Work:
    """The work of a machine's node."""

    def __init__(self) -> None:
        self.queue_delay = 0.0


def machine(
    number: int,
    *,
    config: Config | None = None,
    now: float = 0.0,
    links: Links | None = None,
    work: Work | None = None,
    trust: SignatureVerifier | None = None,
) -> Swim:
    """Return a machine that knows nobody."""
    return Swim(
        record=NodeRecord(node=node(number), name="databases"),
        ports=SwimPorts(trust=trust or HashTrust(node(number)), links=links or Links(), workload=work or Work()),
        config=config or Config(),
        random=Random(number),
        now=now,
    )


def sends(effects: list[Effect], kind: type[Message] | None = None) -> list[Send]:
    """Return the messages among the effects, all or those of one kind."""
    return [e for e in effects if isinstance(e, Send) and (kind is None or isinstance(e.message, kind))]


def said(send: Send) -> kinds.OfMembership:
    """Return a message as another machine takes it."""
    return cast("kinds.OfMembership", send.message)


def near(one: float, other: float, within: float = 1e-6) -> bool:
    """Return whether two times are the same but for rounding."""
    return abs(one - other) <= within


def gossip(swim: Swim, *updates: Update, sender: int = 1, now: float = 0.0) -> list[Effect]:
    """Let ``swim`` receive these updates."""
    return swim.receive(kinds.Gossip(tuple(update.as_update() for update in updates)), node(sender), now)


def knowing(
    *numbers: int,
    config: Config | None = None,
    links: Links | None = None,
    work: Work | None = None,
    trust: SignatureVerifier | None = None,
) -> Swim:
    """Return machine 0 that has just learned of these, which have been there for long."""
    swim = machine(0, config=config, links=links, work=work, trust=trust)
    gossip(swim, *(record(number) for number in numbers), sender=numbers[0])
    for member in map(swim._context.view.find, map(node, numbers)):
        assert member is not None
        member.met = -60.0
    return swim


def claim(about: int, witness: int, evidence: Evidence = Evidence.SILENT, *, incarnation: int = 1) -> Claim:
    """Return a claim that its witness has signed."""
    bare = Claim(node=node(about), incarnation=incarnation, witness=node(witness), evidence=evidence)
    return structs.replace(bare, signature=HashTrust(node(witness)).sign(bare.statement()))


def run(swim: Swim, until: float, *, deaf: bool = True) -> list[tuple[float, Effect]]:
    """Let time pass; unless ``deaf`` every probe is answered at once."""
    seen: list[tuple[float, Effect]] = []
    while swim.deadline <= until:
        now = swim.deadline
        effects = swim.expire(now)
        seen.extend((now, effect) for effect in effects)
        if not deaf:
            for send in sends(effects, kinds.Probe):
                answer = kinds.ProbeAnswer(fields_of(send.message)[0], 0, ())
                seen.extend((now, effect) for effect in swim.receive(answer, send.node, now))
    return seen


def changes(effects: list[Effect]) -> list[tuple[NodeId, MemberState, str]]:
    """Return who was seen in which state and why."""
    return [(e.node, e.state, e.evidence) for e in effects if isinstance(e, Changed)]


def updates_in(send: Send) -> list[Update]:
    """Return the updates that a message carries."""
    return updates_untrusted(getattr(send.message, "updates", ()))


def told(effects: list[Effect], then: Swim | None = None) -> list[Update]:
    """Return every update that is sent to anybody, once each; also in the gossip that ``then`` sends next."""
    if then is not None:
        effects = [*effects, *(effect for _, effect in run(then, then._context.now + 0.11))]
    seen: list[Update] = []
    for send in sends(effects):
        seen.extend(update for update in updates_in(send) if update not in seen)
    return seen
