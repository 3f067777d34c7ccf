"""Failure detector: direct and indirect probes (SWIM, sections 3.1 and 4.3), broken links, and retries of the dead.

A probe:

- A member is asked directly; unanswered after ``timeout`` it is asked once more, and helpers are asked to ask.
- After twice the timeout the probe is over: answered directly, answered to a helper, or failed.
- Members are probed in a shuffled round, so that each is probed within one round; a new member enters the
  running round at a random place.

The detector:

- Each interval one member is probed.  One whose direct route is broken is also pinged each interval, so that its route
  opens again, and one that reported a long queue; a dead one is tried now and then, so that a partition ends by
  itself.
- A failed probe makes this node a witness.  So does a refused connection, if there is no answer for a moment either.
  A broken link closes the route and accuses nobody: it is dialled again, and a node that has too much to do drops some.
- Answers prove the path there and back; only they open a route that own evidence has closed.
"""

from __future__ import annotations

import enum
import itertools
from random import Random
from typing import Final, final

from iris.cluster.swim.confirmations import Confirmations
from iris.cluster.swim.context import LoadReport, SwimContext, Timer
from iris.cluster.swim.gossip import Evidence
from iris.cluster.swim.local_member import LocalMember
from iris.cluster.swim.records import MemberState
from iris.cluster.swim.view import NodeState
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds


@final
class ProbeVerdict(enum.IntEnum):
    """A helper's report about the member that it was asked to probe."""

    ANSWERED = 0
    SILENT = 1
    REFUSED = 2


@final
class OpenProbe:
    """A probe of one member."""

    __slots__ = ("alone", "helpers", "reached", "reports", "sent", "target", "timeout", "timer", "widened")

    def __init__(self, target: NodeId, now: float, timeout: float, *, alone: bool = False) -> None:
        self.target = target
        self.sent = now
        self.timeout = timeout
        self.alone = alone
        """True to learn only whether the direct route works: nobody is asked to help, and failing means nothing new."""
        self.timer: Timer | None = None
        self.widened = False
        self.helpers: list[NodeId] = []
        self.reports: list[NodeId] = []
        self.reached = False

    def __repr__(self) -> str:
        return f"<probe of {self.target[:8]}>"

    @property
    def deadline(self) -> float:
        """Time at which the next step is due: helpers, then the end."""
        return self.sent + (2 if self.widened else 1) * self.timeout

    def widen(self, helpers: list[NodeId]) -> None:
        """Unanswered so far: these helpers are asked."""
        self.widened = True
        self.helpers = helpers

    def report(self, helper: NodeId, verdict: ProbeVerdict) -> bool:
        """Receive a helper's report; False if this helper was not asked or has reported."""
        if helper not in self.helpers or helper in self.reports:
            return False
        self.reports.append(helper)
        if verdict is ProbeVerdict.ANSWERED:
            self.reached = True
        return True


@final
class ProbeOrder:
    """The shuffled round in which members are probed."""

    __slots__ = ("_random", "_round")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._round: list[NodeId] = []

    def insert(self, node: NodeId) -> None:
        """A member joined: it may come up in the running round."""
        at = self._random.randrange(len(self._round) + 1)
        self._round.append(node)
        self._round[at], self._round[-1] = self._round[-1], self._round[at]

    def pop(self) -> NodeId | None:
        """Return the next of the round, which may have died meanwhile; None when the round is over."""
        return self._round.pop() if self._round else None

    def refill(self, members: list[NodeId]) -> None:
        """Start a new round."""
        self._round = members.copy()
        self._random.shuffle(self._round)


_REFUSED_AGAIN: Final = 0.03
"""Seconds after which a member behind a broken link is asked once more: what was in progress at the break is lost."""

_REFUSED_CONFIRMED: Final = 0.05
"""Seconds that a link must stay broken before this node testifies."""

_CORROBORATION: Final = 0.1
"""Seconds after which helpers are asked, if not enough witnesses saw the same by themselves."""

_HELPER_DRAWS: Final = 4
"""Members looked at for each helper wanted, when none has answered lately."""

_LOOKERS: Final = 2.0
"""Members that look at a suspect which is no partner of theirs, each time that it is asked, for each witness needed."""

_RECEIVED_LATELY: Final = 1.5
"""Seconds within which a member must have sent something to be asked for help before others."""

_RECEIVED: Final = 32
"""The last senders that are remembered."""

_MENDED_TOO: Final = 4
"""Other broken routes that are probed when one has mended: so a partition's end spreads like gossip."""

_LATER: Final = 2.0
"""An answer is waited for so many times the lateness of this node longer: it may be read late, or given late by another
process of the same machine."""

_SETTLING: Final = 5.0
"""Seconds for which a member that has just come, or come back from the dead, is not found silent.  It has links to make
to everybody and answers late where processors are short; a suspicion would cost it, and all others, more of them."""

_BUSY: Final = 0.1
"""Seconds of queue delay from which a member is asked again each interval: one that avoids it learns when to stop."""

_RELAYS: Final = 256
"""Probes made for others at one time; further requests are not answered."""

_LOST_TRIES: Final = 16
"""Dead ones that all members together try in one ``lost_interval``."""


@final
class FailureDetector:
    """The failure detector of one node."""

    def __init__(self, context: SwimContext, own: LocalMember, suspects: Confirmations) -> None:
        self._context = context
        self._own = own
        self._suspects = suspects
        self._order = ProbeOrder(context.random)
        self._sequence = 0
        self._probes: dict[int, OpenProbe] = {}
        self._probing: dict[NodeId, int] = {}
        self._relays: dict[int, tuple[NodeId, int, NodeId]] = {}
        self._broken: dict[NodeId, None] = {}
        self._busy: dict[NodeId, None] = {}
        self._received: dict[NodeId, float] = {}
        self._refusing: dict[NodeId, None] = {}
        context.timers.at(context.now + context.random.random() * context.config.probe_interval, self._tick)
        self._trying_lost = False

    # -- events from the shell ------------------------------------------------------------------------------

    def joined(self, node: NodeId) -> None:
        """A member is new or back."""
        if self._context.is_partner(node):
            self._order.insert(node)

    def renewed(self, member: NodeState) -> None:
        """A member raised its incarnation; if the route there was broken, probe whether it still is."""
        if member.unreachable:
            self._broken.setdefault(member.record.node)
            self._start(member, alone=True)

    def note_received(self, node: NodeId) -> None:
        """A member has sent something."""
        received = self._received
        received.pop(node, None)
        received[node] = self._context.now
        if len(received) > _RECEIVED:
            del received[next(iter(received))]

    def gone(self, node: NodeId) -> None:
        """A member has died or left."""
        self._broken.pop(node, None)

    def doubt(self, member: NodeState) -> None:
        """An answer from this member is overdue: probe it now, no matter whose turn it is."""
        if member.record.node not in self._probing and len(self._probes) <= self._context.config.doubts:
            self._start(member)

    def accused(self, node: NodeId) -> None:
        """A member is held dead by somebody.  If it is, and no round comes to it, nobody else would tell this node."""
        member = self._context.view.find(node)
        if member is not None and member.live and not self._context.is_partner(node):
            self.doubt(member)

    def broken(self, node: NodeId) -> None:
        """The link to this node broke."""
        member = self._context.view.find(node)
        if member is not None and member.live and member.unreachable != "refused":
            # From here on no new work goes there.  Nobody is accused: a node that has too much to do drops connections.
            self._mark(member, "broken")
            self._start(member, alone=True)
            sequence = self._sequence
            self._context.timers.at(self._context.now + _REFUSED_AGAIN, lambda: self._ask_again(sequence))

    def refused(self, node: NodeId) -> None:
        """A connection to this node was refused."""
        context = self._context
        for sequence, (asker, asked, target) in list(self._relays.items()):
            if target == node:
                del self._relays[sequence]
                context.send_with_updates(asker, kinds.ProbeReport, asked, int(ProbeVerdict.REFUSED))
        member = context.view.find(node)
        if member is None or not member.live:
            return
        self._end(node)
        self._mark(member, "refused")
        if node in self._refusing:
            return
        self._refusing[node] = None
        self._start(member, alone=True)
        sequence = self._sequence
        context.timers.at(context.now + _REFUSED_AGAIN, lambda: self._ask_again(sequence))
        context.timers.at(context.now + _REFUSED_CONFIRMED, lambda: self._confirm_refused(node))

    def _ask_again(self, sequence: int) -> None:
        probe = self._probes.get(sequence)
        member = None if probe is None else self._context.view.find(probe.target)
        if member is not None:
            self._ping(member, sequence)

    def _confirm_refused(self, node: NodeId) -> None:
        self._refusing.pop(node, None)
        context = self._context
        member = context.view.find(node)
        if member is None or not member.live or member.unreachable != "refused":
            return
        # From here on this node is a witness, and signs it.  One refused connection was not enough: a listener that
        # restarts refuses for a moment, while its process answers over the links that it has.
        self._suspects.testify(member, Evidence.REFUSED)
        context.timers.at(context.now + _CORROBORATION, lambda: self._corroborate(node))

    def _corroborate(self, node: NodeId) -> None:
        context = self._context
        member = context.view.find(node)
        if member is None or member.suspicion is None or member.suspicion.refused() >= context.needed:
            return
        self._end(node)
        self._start(member)
        self._widen(self._probing[node])

    # -- probes of this node --------------------------------------------------------------------------------

    def _tick(self) -> None:
        context = self._context
        context.timers.at(context.now + context.config.probe_interval * context.health.factor, self._tick)
        member = self._next()
        if (
            member is not None
            and member.record.node not in self._probing
            and not context.links.is_new(member.record.node)
        ):
            self._start(member)
        self._try_again(self._broken, 1)
        self._try_again(self._busy, 1)
        if context.view.gone and not self._trying_lost:  # while all are there, nothing is woken up for the dead
            self._trying_lost = True
            self._try_lost_later()

    def _try_again(self, nodes: dict[NodeId, None], count: int) -> None:
        """Ping some of ``nodes``, the one tried longest ago first."""
        if not nodes:
            return
        for node in list(itertools.islice(nodes, count)):
            del nodes[node]
            member = self._context.view.find(node)
            if member is not None and member.live:
                nodes[node] = None
                if node not in self._probing:
                    self._start(member, alone=True)

    def _next(self) -> NodeState | None:
        view = self._context.view
        for _ in range(2):
            while (node := self._order.pop()) is not None:
                member = view.find(node)
                if member is not None and member.live and self._context.is_partner(node):
                    return member
            self._order.refill(self._context.partners())
        return None

    def _start(self, member: NodeState, *, alone: bool = False) -> None:
        context = self._context
        node = member.record.node
        self._end(node)
        self._sequence += 1
        sequence = self._sequence
        timeout = context.config.probe_timeout * context.health.factor + _LATER * context.health.lateness
        probe = OpenProbe(node, context.now, timeout, alone=alone)
        self._probes[sequence] = probe
        self._probing[node] = sequence
        self._ping(member, sequence)
        probe.timer = context.timers.at(probe.deadline, lambda: self._due(sequence))

    def _ping(self, member: NodeState, sequence: int) -> None:
        # One who has left may be asked for somebody else: as a prober sees it, it is gone.
        state = min(member.state, MemberState.DEAD)
        self._context.send_with_updates(
            member.record.node, kinds.Probe, sequence, int(state), member.record.incarnation
        )

    def _end(self, node: NodeId) -> None:
        sequence = self._probing.pop(node, None)
        if sequence is not None:
            probe = self._probes.pop(sequence)
            if probe.timer is not None:
                probe.timer.cancel()

    def _due(self, sequence: int) -> None:
        probe = self._probes.get(sequence)
        if probe is None:
            return
        if probe.deadline > self._context.now:
            probe.timer = self._context.timers.at(probe.deadline, lambda: self._due(sequence))
        elif probe.widened or probe.alone:
            self._over(probe)
        else:
            self._widen(sequence)

    def _widen(self, sequence: int) -> None:
        context = self._context
        probe = self._probes[sequence]
        member = context.view.find(probe.target)
        if member is None:
            self._end(probe.target)
            return
        probe.widen(self._helpers(probe.target))
        target = bytes.fromhex(probe.target)
        for helper in probe.helpers:
            context.send_with_updates(helper, kinds.ProbeRequest, sequence, target)
        self._ping(member, sequence)
        if probe.timer is not None:
            probe.timer.cancel()
        probe.timer = context.timers.at(probe.deadline, lambda: self._due(sequence))

    def _helpers(self, target: NodeId) -> list[NodeId]:
        """Draw members that can be expected to answer: those heard lately, then any.

        Else the smaller side of a partition would take it for its own fault, and hardly probe any more.
        """
        context = self._context
        wanted = context.config.probe_helpers
        since = context.now - _RECEIVED_LATELY
        fit = self._fit([node for node, at in self._received.items() if at >= since], target)
        if fit:
            context.random.shuffle(fit)
        else:
            fit = self._fit(context.pick_partners(wanted * _HELPER_DRAWS, [target]), target)
        return fit[:wanted]

    def _fit(self, nodes: list[NodeId], target: NodeId) -> list[NodeId]:
        members = ((node, self._context.view.find(node)) for node in nodes if node != target)
        return [
            node
            for node, member in members
            if member is not None and member.state is MemberState.ALIVE and not member.unreachable
        ]

    def _over(self, probe: OpenProbe) -> None:
        context = self._context
        self._end(probe.target)
        member = context.view.find(probe.target)
        if probe.alone or member is None or not member.live:
            return
        self._mark(member, member.unreachable or "silent")
        if not probe.reached and context.now >= member.met + _SETTLING * (1 + 4 * context.health.lateness):
            # From here on this node is a witness.  A member that a helper has reached lives, and only the route to it
            # is closed; helpers that did not report either are held against this node, not against the member.
            context.health.missed(len(probe.helpers), len(probe.reports))
            self._suspects.testify(member, Evidence.SILENT)

    def _mark(self, member: NodeState, evidence: str) -> None:
        member.unreachable = evidence
        self._broken.setdefault(member.record.node)
        self._context.route(member)

    def answered(self, sequence: int, queue_delay: float, sender: NodeId) -> None:
        """A probe is answered by its target."""
        context = self._context
        relay = self._relays.get(sequence)
        if relay is not None and relay[2] == sender:
            del self._relays[sequence]
            context.send_with_updates(relay[0], kinds.ProbeReport, relay[1], int(ProbeVerdict.ANSWERED))
        probe = self._probes.get(sequence)
        if probe is not None and probe.target == sender:
            self._end(sender)
            context.health.answered()
            context.outbox.append(
                LoadReport(node=sender, queue_delay=queue_delay, round_trip=max(0.0, context.now - probe.sent))
            )
        elif relay is None:
            return
        if queue_delay >= _BUSY:
            self._busy.setdefault(sender)
        else:
            self._busy.pop(sender, None)
        member = context.view.find(sender)
        if member is not None and member.live and member.unreachable:
            # From here on it gets work again.  Only an answer to this node opens the route: what others say of the
            # member shows that it lives, and not that frames of this node arrive there.
            member.unreachable = ""
            self._broken.pop(sender, None)
            context.route(member)
            # What mended this route may have mended others.
            self._try_again(self._broken, _MENDED_TOO)

    def reported(self, sequence: int, verdict: ProbeVerdict, sender: NodeId) -> None:
        """A helper says what it found."""
        probe = self._probes.get(sequence)
        if probe is not None:
            probe.report(sender, verdict)

    def postpone(self, seconds: float) -> None:
        """This process was not run for so long: answers could not be read."""
        for probe in self._probes.values():
            probe.sent += seconds

    # -- probes for others ----------------------------------------------------------------------------------

    def asked(self, sequence: int, state: MemberState, incarnation: int, sender: NodeId) -> bool:
        """Answer a probe; True if the prober held this node dead and it refutes that now."""
        context = self._context
        accused = state is not MemberState.ALIVE and self._own.accused(incarnation)
        delay = min(int(max(0.0, context.workload.queue_delay) * 1e6), 10**12)
        behind = context.view.own if incarnation != context.view.own.incarnation else None
        context.send_with_updates(sender, kinds.ProbeAnswer, sequence, delay, first=behind)
        return accused and state is MemberState.DEAD

    def requested(self, sequence: int, target: NodeId, sender: NodeId) -> None:
        """Probe ``target`` for ``sender``, and report either way."""
        context = self._context
        if target == context.view.own.node:
            context.send_with_updates(sender, kinds.ProbeReport, sequence, int(ProbeVerdict.ANSWERED))
            return
        member = context.view.find(target)
        if member is None or len(self._relays) >= _RELAYS:
            return
        self._sequence += 1
        own_sequence = self._sequence
        self._relays[own_sequence] = (sender, sequence, target)
        self._ping(member, own_sequence)
        # Early enough for the report to arrive before the asker gives up, if the path takes a tenth of the timeout.
        context.timers.at(context.now + 0.8 * context.config.probe_timeout, lambda: self._relay_due(own_sequence))

    def _relay_due(self, sequence: int) -> None:
        relay = self._relays.pop(sequence, None)
        if relay is not None:
            self._context.send_with_updates(relay[0], kinds.ProbeReport, relay[1], int(ProbeVerdict.SILENT))

    def ask_suspects(self) -> None:
        """Ask the suspects whose turn it is whether they are there, with the incarnation that each is suspected at."""
        questions, self._context.questions = self._context.questions, []
        context = self._context
        for member in questions:
            if context.is_partner(member.record.node):
                self.nudge(member)
            elif member.state is MemberState.ALIVE or context.random.random() * context.view.size < (
                _LOOKERS * context.needed
            ):
                # Not everybody: each suspicion would make a link to each node.  Some: perhaps the suspect has fewer
                # partners that live than it takes witnesses.
                self.doubt(member)

    # -- the dead that may be back --------------------------------------------------------------------------

    def nudge(self, member: NodeState) -> None:
        """A member held suspect or dead has answered: notify it, so that it refutes."""
        context = self._context
        if context.now >= member.nudged + context.config.probe_interval and member.record.node not in self._probing:
            member.nudged = context.now
            self._start(member, alone=True)

    def _try_lost_later(self) -> None:
        context = self._context
        pause = context.config.lost_interval * max(1.0, context.view.size / _LOST_TRIES)
        context.timers.at(context.now + (0.5 + context.random.random()) * pause, self._try_lost)

    def _try_lost(self) -> None:
        context = self._context
        node = context.view.random_gone(context.random)
        self._trying_lost = node is not None
        if node is not None:
            self._try_lost_later()
            member = context.view.find(node)
            if member is not None and member.state is MemberState.DEAD and node not in self._probing:
                self._start(member, alone=True)
