"""Confirmations of a suspicion: from a first witness to a death or to a refutation (Lifeguard).

Rules of this file:

- A claim counts if its witness is a live member, signed it, and speaks of the incarnation known here.
- Each node passes on the first claims it receives, as many as are needed, and no more.
- Death is each node's own conclusion, from claims and its own clock; nobody is told "dead" and believes it.
- Nobody concludes it without having asked.  Gossip misses a given member once in 10^5 times; over months that happens.
  So a node that has not heard a contradiction when it is due asks the suspect itself, and again until the end:
  of one that lives, 5 % loss leaves one in a thousand of these series without an answer.
"""

from __future__ import annotations

import math
from typing import Final, final

from msgspec import structs

from iris.cluster.swim.context import SwimContext
from iris.cluster.swim.gossip import Accusation, Claim, Evidence
from iris.cluster.swim.local_member import LocalMember
from iris.cluster.swim.records import MemberState
from iris.cluster.swim.suspicion import Suspicion, shortest
from iris.cluster.swim.view import NodeState
from iris.kernel.names import NodeId

_ASKED_AT: Final = (0.4, 0.6, 0.8, 0.95, 1.6, 2.4, 3.2, 3.8)
"""Times at which a suspect is asked, in shortest suspicions: before the end with enough witnesses and with few.  By the
first time the news is old, so that it is mostly the dead who are asked in vain."""

_LATER: Final = 10.0
"""A suspicion of silence lasts so many times the lateness of this node longer: the suspect may be as late."""

_SPREAD: Final = 0.1
"""Share of the shortest suspicion by which the questions of different members are spread."""


@final
class Confirmations:
    """The running suspicions, and the witnesses that confirm each."""

    def __init__(self, context: SwimContext, own: LocalMember) -> None:
        self._context = context
        self._own = own
        self._running: dict[NodeId, None] = {}
        self.deaths = 0
        self.refuted = 0

    def __len__(self) -> int:
        return len(self._running)

    def testify(self, member: NodeState, evidence: Evidence) -> None:
        """Say that this node finds ``member`` silent or refused."""
        context = self._context
        if not member.live or not self._would_help(member, context.view.own.node, evidence):
            return
        claim = Claim(
            node=member.record.node,
            incarnation=member.record.incarnation,
            witness=context.view.own.node,
            evidence=evidence,
        )
        self._apply(member, structs.replace(claim, signature=context.trust.sign(claim.statement())))

    def receive(self, claim: Claim, sender: NodeId) -> None:
        """Somebody passes on a witness's word."""
        context = self._context
        if claim.node == context.view.own.node:
            # No signature is looked at: the answer to a false claim is the same as to a true one, a higher incarnation,
            # and refutations are spaced.
            self._own.accused(claim.incarnation)
            return
        member = context.view.find(claim.node)
        witness = context.view.find(claim.witness)
        if member is None or not member.live or claim.incarnation != member.record.incarnation:
            return
        if witness is None or not witness.live or claim.witness == claim.node:
            return
        if not self._would_help(member, claim.witness, claim.evidence):
            return
        # The signature last, which costs 130 us: a claim that adds nothing costs none, however often it is repeated.
        if not context.trust.verify(witness.record, claim.statement(), claim.signature):
            context.reject(sender, "a claim that its witness did not sign")
            return
        self._apply(member, claim)

    def receive_accusation(self, accusation: Accusation) -> None:
        """Somebody is held dead somewhere; its subject alone can do something about it."""
        context = self._context
        if accusation.node == context.view.own.node:
            self._own.accused(accusation.incarnation)
            return
        member = context.view.find(accusation.node)
        if member is None or not member.live or member.record.incarnation != accusation.incarnation:
            return
        if member.accused < accusation.incarnation:
            member.accused = accusation.incarnation
            context.spread(accusation)

    def clear(self, member: NodeState) -> None:
        """A higher incarnation refutes everything said against the lower one."""
        self.refuted += member.suspicion is not None
        self.drop(member)

    def drop(self, member: NodeState) -> None:
        """End a suspicion without a verdict."""
        self._context.withdraw_claims(member)
        member.suspicion = None
        self._running.pop(member.record.node, None)

    def postpone(self, seconds: float) -> None:
        """This process was not run for so long: the suspects could not be heard."""
        for node in self._running:
            member = self._context.view.find(node)
            if member is not None and (suspicion := member.suspicion) is not None:
                suspicion.since += seconds
                suspicion.refused_since += seconds

    def _would_help(self, member: NodeState, witness: NodeId, evidence: Evidence) -> bool:
        suspicion = member.suspicion
        return suspicion is None or suspicion.would_help(witness, evidence, self._context.needed)

    def _apply(self, member: NodeState, claim: Claim) -> None:
        context = self._context
        node = member.record.node
        suspicion = member.suspicion
        before = (MemberState.ALIVE, 0) if suspicion is None else (member.state, int(suspicion.evidence()))
        if suspicion is None:
            # From here on the member is suspect, which is not dead: it stays listed, and has until the deadline to
            # refute.  A first witness is therefore believed without asking who else saw it.
            suspicion = member.suspicion = Suspicion(member.record.incarnation, context.now)
            member.state = MemberState.SUSPECT
            self._running[node] = None
            self._ask_later(node, suspicion, 0)
        suspicion.add(claim, context.now)
        context.spread(claim)
        if before != (member.state, int(suspicion.evidence())):
            context.changed(member, suspicion.evidence().name.lower())
        else:
            context.route(member)
        context.timers.at(self._deadline(suspicion), lambda: self._due(node, suspicion))

    def _ask_later(self, node: NodeId, suspicion: Suspicion, turn: int) -> None:
        if turn < len(_ASKED_AT):
            context = self._context
            early = _SPREAD * context.random.random()
            when = suspicion.since + (_ASKED_AT[turn] - early) * shortest(context.view.size, context.config)
            context.timers.at(when, lambda: self._ask(node, suspicion, turn))

    def _ask(self, node: NodeId, suspicion: Suspicion, turn: int) -> None:
        member = self._context.view.find(node)
        if member is not None and member.suspicion is suspicion and member.live:
            self._context.questions.append(member)
            self._ask_later(node, suspicion, turn + 1)

    def _deadline(self, suspicion: Suspicion) -> float:
        context = self._context
        late = 0.0 if suspicion.refused() >= context.needed else _LATER * context.health.lateness
        return suspicion.deadline(context.needed, context.view.size, context.config) + late

    def _due(self, node: NodeId, suspicion: Suspicion) -> None:
        context = self._context
        member = context.view.find(node)
        if member is None or member.suspicion is not suspicion:
            return
        deadline = self._deadline(suspicion)
        if deadline > context.now:
            # Later than when the timer was set: the realm has grown, or a stall was absorbed.
            if not math.isinf(deadline):
                context.timers.at(deadline, lambda: self._due(node, suspicion))
            return
        # From here on the member counts as dead, for this node: it was asked itself and did not refute in time.  Nobody
        # is told so; others conclude it from the same claims.  A higher incarnation still brings it back.
        evidence = suspicion.evidence().name.lower()
        self._running.pop(node, None)
        context.view.bury(member, MemberState.DEAD, context.now)
        self.deaths += 1
        context.changed(member, evidence)
        partners = context.links.partners()
        if partners is not None:
            # Perhaps it is one of many, of which some had no partner that lives to tell: one more is looked at.
            context.questions += filter(None, map(context.view.find, context.view.pick(context.random, 1, partners)))
