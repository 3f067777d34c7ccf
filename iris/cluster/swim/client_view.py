"""Client view: what a node that is no member knows of the members of a site, and how it finds out.

A client takes no part in SWIM.  It announces itself to nobody, receives no gossip and probes nobody in rotation.  It
asks one linked member who serves a cluster, and again when it uses that name later.

Rules of this file:

- A record is verified as members verify it.  The member that is asked can leave others out, and make up none.
- Of each cluster one question is in progress; when it is not answered within a second, the next linked node is asked.
- A member is probed when it owes an answer, when its link broke, and when it is listed no more.  Its route is closed
  until it answers; if it is not listed either, it is dead, and its link ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from random import Random
from typing import Final, final

from msgspec import structs

from iris.cluster.swim.context import Effect, SwimContext, SwimPorts, Synchronized
from iris.cluster.swim.local_member import signed
from iris.cluster.swim.records import ClusterEntry, MemberState, NodeRecord, record_untrusted
from iris.cluster.swim.view import NodeState, View, entry_hash
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds

MAX_LOOKED_UP: Final = 1024
"""Clusters that one client can ask for.  A program that asks for ever other names has made them up."""

_ASKED_AGAIN: Final = 1.0
"""Seconds after which a question that was not answered is put to the next node."""

_PROBED_AGAIN: Final = 1.0
"""Seconds between probes of a member whose route is closed."""

_LATER: Final = 2.0
"""The answer to a probe is waited for so many times the lateness of this node longer, as members do: it may be read
late, or given late by another process of the same machine."""


def view_hash(records: Iterable[NodeRecord]) -> bytes:
    """Return the 8 bytes by which two nodes compare what they know of a cluster's members."""
    total = 0
    for record in records:
        total ^= entry_hash(record.node, record.incarnation)
    return total.to_bytes(8, "big")


@final
class _Cluster:
    """A cluster that was asked for.

    Attributes:
        members: the members that were found.
        answered: time of the answer; trio's clock.
        sequence: the number of the question in progress; 0: there is none.
        asked: the node that was asked last.
        found: the part of the answer that has come so far.
    """

    __slots__ = ("answered", "asked", "found", "members", "sequence")

    def __init__(self) -> None:
        self.members: set[NodeId] = set()
        self.answered = -math.inf
        self.sequence = 0
        self.asked: NodeId | None = None
        self.found: dict[NodeId, NodeRecord] = {}


@final
class ClientView:
    """The view of one client, driven like ``Swim``.

    Args:
        record: this node's own record, as others would see it.
        ports: the parts that it asks; nobody asks a client for its workload.
        config: timings and limits.
        random: for the choice of whom to ask.
        now: present time in seconds, of a clock that does not go back.
    """

    def __init__(self, *, record: NodeRecord, ports: SwimPorts, config: Config, random: Random, now: float) -> None:
        self._context = SwimContext(View(signed(record, ports.trust)), ports, config, random, now)
        self._clusters: dict[str, _Cluster] = {}
        self._questions: dict[int, str] = {}
        self._sequence = 0
        self._probes: dict[NodeId, int] = {}
        """The probe of each member that is in progress."""

    def __repr__(self) -> str:
        return f"<ClientView {self._context.view.own.node[:8]} of {len(self._clusters)} clusters>"

    # -- what the shell asks --------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """The time at which ``expire`` is to be called."""
        return self._context.timers.deadline

    @property
    def own(self) -> NodeRecord:
        """This node's own record, as others would see it."""
        return self._context.view.own

    @property
    def lateness(self) -> float:
        """See ``Swim``."""
        return self._context.health.lateness

    @property
    def settled(self) -> bool:
        """See ``Swim``: a client has no updates to send."""
        return True

    @property
    def rejected(self) -> Mapping[str, int]:
        """Number of messages and updates of peers that were refused, by reason."""
        return self._context.rejections

    def record(self, node: NodeId) -> NodeRecord | None:
        """Return the record of a node that was found, dead or alive."""
        member = self._context.view.find(node)
        return None if member is None else member.record

    def state(self, node: NodeId) -> MemberState | None:
        """Return how a node is seen; None if it is unknown."""
        member = self._context.view.find(node)
        return None if member is None else member.state

    def listed(self, cluster: str) -> Collection[NodeId]:
        """Return the members of a cluster that were found."""
        known = self._clusters.get(cluster)
        return () if known is None else known.members

    def is_unanswered(self, cluster: str) -> bool:
        """See ``MembershipView``."""
        return self.answered(cluster) == -math.inf

    def answered(self, cluster: str) -> float:
        """Return when a cluster was last asked for and found, or found to have no members; -inf: it was not."""
        known = self._clusters.get(cluster)
        return -math.inf if known is None else known.answered

    # -- events from the shell ------------------------------------------------------------------------------

    def look(self, cluster: str, now: float, *, again_after: float = 0.0) -> list[Effect]:
        """Ask for the members of a cluster, unless that is in progress or was answered less than ``again_after`` ago.

        Raises:
            ConfigError: more than 1,024 clusters were asked for.
        """
        self._advance(now)
        known = self._clusters.get(cluster)
        if known is None:
            if len(self._clusters) >= MAX_LOOKED_UP:
                raise ConfigError(
                    f"a client asks for at most {MAX_LOOKED_UP} clusters, and {cluster!r} is one more: open a node "
                    "without client=True to ask for any number"
                )
            known = self._clusters[cluster] = _Cluster()
        if not known.sequence and now - known.answered >= again_after:
            self._sequence += 1
            known.sequence, known.asked = self._sequence, None
            self._questions[known.sequence] = cluster
            self._ask(known.sequence)
        return self._flush()

    def join(self, contacts: Iterable[NodeId], now: float) -> list[Effect]:
        """A node is linked that can be asked: what waits for one is asked there."""
        self._advance(now)
        for contact in contacts:
            for sequence, cluster in list(self._questions.items()):
                if self._clusters[cluster].asked is None:
                    self._put(sequence, contact)
            self._context.outbox.append(Synchronized(node=contact))
        return self._flush()

    def update_self(
        self,
        now: float,
        *,
        addresses: Iterable[str] | None = None,
        clusters: Iterable[ClusterEntry] | None = None,
        proof: bytes | None = None,
    ) -> list[Effect]:
        """See ``Swim``: no member is notified of a client."""
        self._advance(now)
        own = self._context.view.own
        self._context.view.set_own(
            structs.replace(
                own,
                addresses=own.addresses if addresses is None else tuple(addresses),
                clusters=own.clusters if clusters is None else tuple(clusters),
                proof=own.proof if proof is None else proof,
            )
        )
        return self._flush()

    def leave(self, now: float) -> list[Effect]:
        """See ``Swim``: its links say goodbye, and nobody else knows of it."""
        self._advance(now)
        return self._flush()

    def broken(self, node: NodeId, now: float) -> list[Effect]:
        """The link to a node broke: its route is closed until it answers a probe."""
        return self._unreachable(node, "silent", now)

    def refused(self, node: NodeId, now: float) -> list[Effect]:
        """Nobody listens where a node was: its route is closed, and its clusters are asked for again."""
        return self._unreachable(node, "refused", now)

    def doubt(self, node: NodeId, now: float) -> list[Effect]:
        """A node owes an answer and says nothing: it is probed."""
        self._advance(now)
        member = self._context.view.find(node)
        if member is not None and member.live:
            self._probe(member)
        return self._flush()

    def recheck(self, now: float, vouched: Callable[[NodeId], bool] = lambda _: False) -> list[Effect]:
        """Somebody was revoked: forget whose certificates do not hold any more, and ask who is there in their place."""
        self._advance(now)
        context = self._context
        for node in [*context.view.live, *context.view.gone]:
            member = context.view.find(node)
            if member is None or context.trust.holds(member.record) or (member.live and vouched(node)):
                continue
            if member.live:
                context.view.bury(member, MemberState.DEAD, context.now)
                context.changed(member, "expelled")
            context.view.forget(node)
            for known in self._clusters.values():
                if node in known.members:
                    known.members.discard(node)
                    known.answered = -math.inf
        return self._flush()

    def expire(self, now: float) -> list[Effect]:
        """Run the timers that are due."""
        self._context.health.late(max(0.0, now - self._context.timers.deadline))
        self._advance(now)
        while (action := self._context.timers.pop(self._context.now)) is not None:
            action()
        return self._flush()

    def receive(self, message: kinds.OfMembership, sender: NodeId, now: float) -> list[Effect]:
        """Receive a message from an authenticated sender.  What is wrong with it is counted; nothing is raised."""
        self._advance(now)
        try:
            match message:
                case kinds.Found():
                    self._found_untrusted(message, sender)
                case kinds.ProbeAnswer():
                    self._probe_answered(message.sequence, sender)
                case _:
                    raise RemoteProtocolError("a client is told of members only what it has asked for")
        except RemoteProtocolError as error:
            self._context.reject(sender, str(error))
        return self._flush()

    # -- inside: questions ----------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        self._context.now = max(now, self._context.now)

    def _flush(self) -> list[Effect]:
        effects, self._context.outbox = self._context.outbox, []
        return effects

    def _ask(self, sequence: int) -> None:
        """Put a question to the next linked node, if there is one, until it is answered."""
        cluster = self._questions.get(sequence)
        if cluster is None:
            return
        known, contacts = self._clusters[cluster], sorted(self._context.links.contacts())
        if contacts:
            self._put(sequence, self._context.random.choice([c for c in contacts if c != known.asked] or contacts))
        else:
            known.asked = None
        self._context.timers.at(self._context.now + _ASKED_AGAIN, partial(self._ask, sequence))

    def _put(self, sequence: int, contact: NodeId) -> None:
        cluster = self._questions[sequence]
        known = self._clusters[cluster]
        known.asked = contact
        known.found = {}
        held = [member.record for member in map(self._context.view.find, known.members) if member is not None]
        question = kinds.Lookup(sequence, cluster, view_hash(held))
        self._context.send(contact, question, 64 + len(cluster))

    def _found_untrusted(self, message: kinds.Found, sender: NodeId) -> None:
        """Receive a part of an answer.

        Raises:
            RemoteProtocolError: it names nodes that do not serve the cluster, or whose records do not hold.
        """
        cluster = self._questions.get(message.sequence)
        known = None if cluster is None else self._clusters[cluster]
        if known is None or known.asked != sender:
            return  # another one was faster
        for update in message.updates:
            if not isinstance(update, kinds.RecordUpdate):
                raise RemoteProtocolError("an answer to a client has whole records")
            record = record_untrusted(update)
            if not any(entry.name == cluster for entry in record.clusters):
                raise RemoteProtocolError("a record of a node that does not serve what a client has asked for")
            if len(known.found) < self._context.config.member_limit and self._believed(record, sender):
                known.found[record.node] = record
        if message.last:
            del self._questions[message.sequence]
            known.sequence, known.answered = 0, self._context.now
            found, known.found = known.found, {}
            if message.changed:
                self._replace(known, found)
            self._context.outbox.append(Synchronized(node=sender))

    def _believed(self, record: NodeRecord, sender: NodeId) -> bool:
        """Return whether a record is its subject's, or older than the one that is held, which then stays."""
        context = self._context
        member = context.view.find(record.node)
        if member is not None and record.incarnation <= member.record.incarnation:
            return True
        genuine = context.trust.verify(record, record.statement(), record.signature)
        if genuine and (member is None or context.trust.continues(member.record, record)):
            return True
        context.reject(sender, "a record that its subject did not sign")
        return False

    def _replace(self, known: _Cluster, found: Mapping[NodeId, NodeRecord]) -> None:
        gone = known.members - found.keys()
        known.members = set(found)
        for record in found.values():
            self._list_member(record)
        listed = Counter(node for cluster in self._clusters.values() for node in cluster.members)
        for node in gone:
            member = self._context.view.find(node)
            if member is not None and member.live and not listed[node]:
                self._unlist(member)

    def _list_member(self, record: NodeRecord) -> None:
        """A member is listed."""
        context = self._context
        member = context.view.find(record.node)
        if member is None:
            context.changed(context.view.add(record, context.now))
            return
        newer = record.incarnation > member.record.incarnation
        if newer or not member.live:
            was_gone = not member.live
            context.view.renew(member, record if newer else member.record)
            member.state = MemberState.ALIVE
            if was_gone:
                member.unreachable = ""
            context.changed(member)

    # -- inside: probes -------------------------------------------------------------------------------------

    def _unlist(self, member: NodeState) -> None:
        """Note a member that nobody lists any more: it has left, or is dead if its link shows that."""
        context = self._context
        silent = member.unreachable
        context.view.bury(member, MemberState.DEAD if silent else MemberState.LEFT, context.now)
        context.changed(member, silent)
        if silent:
            context.view.forget(member.record.node)
        else:
            self._probe(member)

    def _unreachable(self, node: NodeId, evidence: str, now: float) -> list[Effect]:
        self._advance(now)
        member = self._context.view.find(node)
        if member is not None and member.live:
            member.unreachable = evidence
            self._context.route(member)
            for known in self._clusters.values():
                if node in known.members:
                    known.answered = -math.inf
            self._probe(member)
        return self._flush()

    def _probe(self, member: NodeState) -> None:
        node = member.record.node
        if node in self._probes:
            return
        self._sequence += 1
        self._probes[node] = self._sequence
        self._context.send(node, kinds.Probe(self._sequence, 0, member.record.incarnation, ()))
        patience = 2 * self._context.config.probe_timeout + _LATER * self._context.health.lateness
        self._context.timers.at(self._context.now + patience, partial(self._probe_due, node, self._sequence))

    def _probe_due(self, node: NodeId, sequence: int) -> None:
        """A probe was not answered."""
        context = self._context
        member = context.view.find(node)
        if self._probes.get(node) != sequence:
            return
        del self._probes[node]
        if member is None:
            return
        if not member.live:  # it is not listed, and there is no sign of it
            context.view.bury(member, MemberState.DEAD, context.now)
            context.changed(member, "silent")
            context.view.forget(node)
            return
        if not member.unreachable:
            member.unreachable = "silent"
            context.route(member)
        context.timers.at(context.now + _PROBED_AGAIN, partial(self._probe_again, node))

    def _probe_again(self, node: NodeId) -> None:
        member = self._context.view.find(node)
        if member is not None and member.live and member.unreachable:
            self._probe(member)

    def _probe_answered(self, sequence: int, sender: NodeId) -> None:
        if self._probes.get(sender) != sequence:
            return
        del self._probes[sender]
        member = self._context.view.find(sender)
        if member is None:
            return
        if not member.live:
            self._context.view.forget(sender)  # it has left, and is well: its link ends when it says so
        elif member.unreachable:
            member.unreachable = ""
            self._context.route(member)
