"""SWIM: membership of one site with Lifeguard's suspicion, as a machine without clock, network or threads.

Sources: Das, Gupta, Motivala, "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership Protocol"
(2002); Dadgar, Phillips, Currey, "Lifeguard: Local Health Awareness for More Accurate Failure Detection" (2017).
What is our own: broken links as evidence of their own kind, signed witnesses instead of believed verdicts, routes
that close before suspicion, and stalls of this very process noticed and absorbed.

The shell feeds it with ``receive``, ``expire`` at ``deadline``, ``refused`` and ``doubt``, and performs the effects
in their order.  The mechanisms are in files of their own; this one holds the entries and the dispatch.

A steady realm costs four messages per second and member (a probe and an answer sent, at two probes per second),
whatever its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Final, final

from msgspec import Struct

from iris.cluster.swim.anti_entropy import nodes_untrusted
from iris.cluster.swim.confirmations import Confirmations
from iris.cluster.swim.context import Effect, SwimContext, SwimPorts
from iris.cluster.swim.failure_detector import FailureDetector, ProbeVerdict
from iris.cluster.swim.gossip import Accusation, Claim, Renewal, updates_untrusted
from iris.cluster.swim.local_member import LocalMember, signed
from iris.cluster.swim.records import ClusterEntry, MemberState, NodeRecord, record_untrusted
from iris.cluster.swim.state import StateExchange
from iris.cluster.swim.view import View
from iris.kernel.config import Config
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds, node_of

_LATER: Final = 25.0
"""Gossip waits for so many times the lateness of this node.  A message costs a process that has to be woken up for it
0.6 ms at either end, whatever is in it: 65 processes that were at work on nothing else but the news of each other's
coming, 9 messages a second from each, took more than one core."""

_PUNCTUAL: Final = 0.005
"""Seconds of lateness that do not count: that much is usual also where processors idle."""


@final
class SwimStatistics(Struct, frozen=True, kw_only=True):
    """Counters of the membership machine at one moment."""

    alive: int
    suspect: int
    dead: int
    left: int
    incarnation: int
    health: int
    """0 well, 8 worst: how much this node distrusts its own timing."""
    updates_waiting: int
    updates_dropped: int
    probes: int
    deaths: int
    refuted: int
    """Suspicions of others that ended well."""
    refutations: int
    """Number of times that this node contradicted a suspicion of itself."""
    stalls: int
    sent: dict[str, int]
    """Messages by kind."""
    rejected: dict[str, int]
    """Messages and updates of peers that were refused, by reason."""


@final
class Swim:
    """The SWIM machine of one node.

    Args:
        record: this node's own record; it is signed here.
        trust: signs this node's statements, verifies those of others.
        config: timings and limits.
        random: for the choice of members; the same seed and input give the same effects.
        now: present time in seconds, of a clock that does not go back.
        view: makes the view from this node's record.
    """

    def __init__(
        self,
        *,
        record: NodeRecord,
        ports: SwimPorts,
        config: Config,
        random: Random,
        now: float,
        view: Callable[[NodeRecord], View] = View,
    ) -> None:
        self._context = SwimContext(view(signed(record, ports.trust)), ports, config, random, now)
        self._own = LocalMember(self._context)
        self._suspects = Confirmations(self._context, self._own)
        self._prober = FailureDetector(self._context, self._own, self._suspects)
        self._census = StateExchange(self._context, self._prober, self._suspects)
        self._gossip_from = now
        self._gossip_armed = False
        self._stalls = 0

    def __repr__(self) -> str:
        return f"<Swim {self._context.view.own.node[:8]} {self._context.view!r}>"

    # -- what the shell asks --------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """The time at which ``expire`` is to be called."""
        return self._context.timers.deadline

    @property
    def own(self) -> NodeRecord:
        """This node's own record, as others will know it."""
        return self._context.view.own

    @property
    def lateness(self) -> float:
        """Seconds by which this node was late lately with what was due: it, or its machine, has too much to do."""
        return self._context.health.lateness

    @property
    def settled(self) -> bool:
        """True once updates that need messages of their own were sent often enough; worth a short wait when closing."""
        return not self._context.dissemination.pressing

    def record(self, node: NodeId) -> NodeRecord | None:
        """Return the record of a node, dead or alive; None if it is unknown."""
        if node == self._context.view.own.node:
            return self._context.view.own
        member = self._context.view.find(node)
        return None if member is None else member.record

    def state(self, node: NodeId) -> MemberState | None:
        """Return how a node is seen; None if it is unknown."""
        if node == self._context.view.own.node:
            return MemberState.LEFT if self._context.view.own.leaving else MemberState.ALIVE
        member = self._context.view.find(node)
        return None if member is None else member.state

    def is_unanswered(self, cluster: str) -> bool:  # noqa: ARG002 -- whatever it is
        """See ``MembershipView``: a member is told of all clusters."""
        return False

    def members(self) -> list[NodeRecord]:
        """Return the records of the live members, without this node."""
        return list(self._context.view.records())

    @property
    def rejected(self) -> Mapping[str, int]:
        """Number of messages and updates of peers that were refused, by reason."""
        return self._context.rejections

    def statistics(self) -> SwimStatistics:
        """Return the counters."""
        context = self._context
        gone = Counter(member.state for member in context.view.gone_members())
        return SwimStatistics(
            alive=len(context.view.live) - len(self._suspects),
            suspect=len(self._suspects),
            dead=gone[MemberState.DEAD],
            left=gone[MemberState.LEFT],
            incarnation=context.view.own.incarnation,
            health=context.health.score,
            updates_waiting=len(context.dissemination),
            updates_dropped=context.dissemination.dropped,
            probes=context.sent[kinds.Probe],
            deaths=self._suspects.deaths,
            refuted=self._suspects.refuted,
            refutations=self._own.refutations,
            stalls=self._stalls,
            sent={kind.__name__: count for kind, count in context.sent.items()},
            rejected=dict(context.rejections),
        )

    # -- events from the shell ------------------------------------------------------------------------------

    def join(self, contacts: Iterable[NodeId], now: float) -> list[Effect]:
        """Ask these nodes for everybody's records; the effect ``Synchronized`` says when they are here.

        Node ids are enough, as a handshake yields them.  Of several contacts the first to answer ends the asking;
        until then they are asked again in turn, one each second.
        """
        self._advance(now)
        for contact in contacts:
            if contact != self._context.view.own.node:
                self._census.join(contact)
        return self._flush()

    def update_self(
        self,
        now: float,
        *,
        addresses: Iterable[str] | None = None,
        site: str | None = None,
        clusters: Iterable[ClusterEntry] | None = None,
        interest_version: int | None = None,
        proof: bytes | None = None,
    ) -> list[Effect]:
        """Publish what has changed about this node; None leaves a field as it is.

        Raises:
            ConfigError: the record would exceed its limits; nothing has changed.
        """
        self._advance(now)
        self._own.change(
            addresses=addresses, site=site, clusters=clusters, interest_version=interest_version, proof=proof
        )
        return self._flush()

    def leave(self, now: float) -> list[Effect]:
        """Publish that this node leaves.  A dozen members get it at once; wait for ``settled`` for the others."""
        self._advance(now)
        if not self._context.view.own.leaving:
            self._own.leave()
        return self._flush()

    def broken(self, node: NodeId, now: float) -> list[Effect]:
        """The link to ``node`` broke, and neither side meant it to.

        Its route closes at once, until an answer to a probe shows that the route is there again.
        """
        self._advance(now)
        self._prober.broken(node)
        return self._flush()

    def refused(self, node: NodeId, now: float) -> list[Effect]:
        """Connecting to ``node`` was refused: nobody listens there.

        Its route closes at once.  If a probe sent now is not answered within 50 ms this node becomes a witness.
        """
        self._advance(now)
        self._prober.refused(node)
        return self._flush()

    def doubt(self, node: NodeId, now: float) -> list[Effect]:
        """Something sent to ``node`` is overdue and nothing has been heard from it for ``probe_timeout``.

        It is probed at once; if it does not answer, its route closes two ``probe_timeout`` later, that is 750 ms
        after the first silence with the defaults.  Asking again while a probe is in progress does nothing.
        """
        self._advance(now)
        member = self._context.view.find(node)
        if member is not None and member.live:
            self._prober.doubt(member)
        return self._flush()

    def recheck(self, now: float, vouched: Callable[[NodeId], bool] = lambda _: False) -> list[Effect]:
        """Verify the certificates of everybody held again: somebody was revoked.

        ``vouched`` tells whether a node is linked by certificates that hold, whatever its record shows.
        """
        self._advance(now)
        self._census.recheck(vouched)
        return self._flush()

    def expire(self, now: float) -> list[Effect]:
        """Run the timers that are due."""
        self._context.health.late(max(0.0, now - self._context.timers.deadline))
        self._advance(now)
        while (action := self._context.timers.pop(self._context.now)) is not None:
            # A node that leaves still spreads that it leaves, and probes nobody any more: who does not answer it now
            # may have ended the link.
            if not self._context.view.own.leaving or action == self._gossip_due:
                action()
                self._prober.ask_suspects()
        return self._flush()

    def receive(self, message: kinds.OfMembership, sender: NodeId, now: float) -> list[Effect]:
        """Receive a message from an authenticated sender.

        Whatever is wrong with it is counted and reported as ``Rejected``; nothing is raised.
        """
        self._advance(now)
        try:
            self._dispatch_untrusted(message, sender)
        except RemoteProtocolError as error:
            self._context.reject(sender, str(error))
        self._notice(sender)
        return self._flush()

    # -- inside ---------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        context = self._context
        now = max(now, context.now)
        late = now - context.timers.deadline
        if late > context.config.probe_timeout:
            # This process was not run when it should have been.  What seems overdue may lie unread in its queues:
            # leave the time to read it, and give nobody the blame.
            late += context.config.probe_timeout
            self._stalls += 1
            context.timers.postpone(late)
            self._prober.postpone(late)
            self._suspects.postpone(late)
            context.health.stalled()
        context.now = now

    def _flush(self) -> list[Effect]:
        context = self._context
        if context.dissemination.pressing and context.view.live:
            if context.now >= self._gossip_from:
                self._gossip()
            if not self._gossip_armed and context.dissemination.pressing:
                self._gossip_armed = True
                context.timers.at(self._gossip_from, self._gossip_due)
        effects = context.outbox
        context.outbox = []
        return effects

    def _gossip_due(self) -> None:
        self._gossip_armed = False

    def _gossip(self) -> None:
        context = self._context
        # A node that is starved gossips less often, with more in each message.  Else claims that the slow are dead, and
        # what these answer, keep the processors busy that all of them wait for.
        health = context.health
        late = _LATER * max(0.0, health.lateness - _PUNCTUAL)
        self._gossip_from = context.now + context.config.gossip_interval * health.factor + late
        for node in context.pick_partners(context.config.gossip_fanout):
            if not context.links.is_linked(node):
                continue
            updates = context.pop_gossip()
            if not updates:
                return
            context.send_updates(node, kinds.Gossip, updates=updates)

    def _notice(self, sender: NodeId) -> None:
        context = self._context
        member = context.view.find(sender)
        if member is None:
            if sender != context.view.own.node:
                self._census.want(sender, sender)
            return
        self._prober.note_received(sender)
        if member.state in (MemberState.SUSPECT, MemberState.DEAD):
            self._prober.nudge(member)

    def _apply_untrusted(self, updates: tuple[kinds.AnyUpdate, ...], sender: NodeId, *, state: bool = False) -> None:
        for update in updates_untrusted(updates, self._census.is_old):
            match update:
                case NodeRecord():
                    self._census.receive(update, sender, state=state)
                case Renewal():
                    self._census.receive_renewal(update, sender, state=state)
                case Claim():
                    self._suspects.receive(update, sender)
                case Accusation():
                    self._suspects.receive_accusation(update)
                    self._prober.accused(update.node)

    def _dispatch_untrusted(self, message: kinds.OfMembership, sender: NodeId) -> None:
        match message:
            case kinds.Probe(updates=updates):
                self._apply_untrusted(updates, sender)
                if self._prober.asked(message.sequence, MemberState(message.state), message.incarnation, sender):
                    # Held dead by somebody who is plainly there: a partition has ended, and views have drifted apart.
                    self._census.synchronize(sender)
            case kinds.ProbeAnswer(sequence, delay, updates):
                self._apply_untrusted(updates, sender)
                self._prober.answered(sequence, delay / 1e6, sender)
            case kinds.ProbeRequest(sequence, target, updates):
                self._apply_untrusted(updates, sender)
                self._prober.requested(sequence, node_of(target), sender)
            case kinds.ProbeReport(sequence, verdict, updates):
                self._apply_untrusted(updates, sender)
                self._prober.reported(sequence, ProbeVerdict(verdict), sender)
            case kinds.Gossip(updates):
                self._apply_untrusted(updates, sender)
            case kinds.Sync(hashes):
                self._census.compare_hashes(hashes, sender)
            case kinds.Digest(buckets, entries):
                self._census.compare_digest(buckets, entries, sender)
            case kinds.Wanted(nodes):
                self._census.wanted(nodes_untrusted(nodes), sender)
            case kinds.State(last, updates):
                before = self.state(sender)
                self._apply_untrusted(updates, sender, state=True)
                if before in (None, MemberState.ALIVE):  # else what it says of itself may be a refutation
                    self._census.note_own_updates(sender, updates, new=before is None)
                if last:
                    self._census.complete(sender)
            case kinds.Join(record):
                self._census.joining(record_untrusted(record), sender)
            case kinds.Lookup() | kinds.Found():
                raise RemoteProtocolError("between a member and its clients, and this one is a member")
