"""Push/pull state exchange: verifies incoming records, merges them into the view, answers joins, runs anti-entropy.

Rules of this file:

- A record is verified before it is used, and only if it is newer than what is held.
- A node id belongs to the keys that first spoke for it: while a node is remembered, dead or alive, a record under
  other keys or of another cluster is refused.
- Of one cluster's key only so many records are held, alive and gone together: it can make up any number.
- Who is not believed any more (revoked) is forgotten: neither asked nor probed, and named to nobody.
- What a joining node learns it does not pass on: everybody else knows it already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

from iris.cluster.swim.anti_entropy import compared_untrusted, differing_buckets, digests, pack_nodes, portions
from iris.cluster.swim.confirmations import Confirmations
from iris.cluster.swim.context import SwimContext, Synchronized
from iris.cluster.swim.failure_detector import FailureDetector
from iris.cluster.swim.gossip import Accusation, Renewal
from iris.cluster.swim.record_quota import RecordQuota
from iris.cluster.swim.records import MemberState, NodeRecord, precedes
from iris.cluster.swim.view import BUCKETS, NodeState, pick
from iris.kernel.names import NodeId
from iris.kernel.wire import Message, kinds, node_of

_ASKED_AGAIN: Final = 0.5
"""Seconds before the same record or state is asked for, or sent to the same node, once more."""

_SOON: Final = 2.0
"""Seconds after which a node that has heard of a member, or of what it serves now, compares views with one that is
linked: of many that come together each may miss some."""

_COMPARISONS: Final = 256
"""Comparisons begun that may still be answered.  Each bucket is answered for once: 250 bytes that claim to know
nobody must not fetch all records again and again."""

_PATIENCE: Final = 3
"""Seconds for which a member has time to show newer certificates than those that hold no more."""

_UNKNOWN_NODES: Final = 1024
"""Senders without a record that are remembered as asked, and joining nodes remembered as answered."""

_SPARE: Final = 64
"""Records that may be wanted in half a second beyond one of each live member: of those that came or left meanwhile."""


@final
class StateExchange:
    """The records of a realm as one node holds them, and their exchange with peers."""

    def __init__(self, context: SwimContext, prober: FailureDetector, suspects: Confirmations) -> None:
        self._context = context
        self._prober = prober
        self._suspects = suspects
        self._quota = RecordQuota(context.config.records_per_cluster_key)
        self._contacts: list[NodeId] = []
        self._asked: dict[NodeId, float] = {}
        self._served: dict[tuple[NodeId, type[Message]], float] = {}
        self._given: dict[NodeId, int] = {}
        """Records sent to each that wanted some, since it was last due to be answered."""
        self._comparing: dict[NodeId, set[int]] = {}
        self._retrying = False
        self._has_news = False
        """True while views are to be compared soon."""
        config = context.config
        context.timers.at(
            context.now + context.random.random() * config.synchronize_interval, self._synchronize_regularly
        )

    # -- records --------------------------------------------------------------------------------------------

    def is_old(self, node: bytes, incarnation: int, signature: bytes) -> bool:
        """Return True for a record, by three of its fields, if ``receive`` would do nothing with it."""
        member = self._context.view.find(NodeId(node.hex()))
        if member is None or not member.live:
            return False
        held = member.record
        return incarnation < held.incarnation or (incarnation == held.incarnation and signature == held.signature)

    def receive(
        self, record: NodeRecord, sender: NodeId, *, renewal: Renewal | None = None, state: bool = False
    ) -> None:
        """Merge a record that a peer sent; ``state`` if it came in answer to a comparison or to joining."""
        context = self._context
        if record.node == context.view.own.node:
            self._receive_own(record, sender)
            return
        member = context.view.find(record.node)
        if member is None:
            self._meet(record, sender, pass_on=not (state and self._contacts))
            return
        held = member.record
        if record.incarnation <= held.incarnation and (
            record.incarnation < held.incarnation or record.signature == held.signature or not precedes(held, record)
        ):
            if state and member.state is MemberState.DEAD:
                self._accuse(member, sender)
            return
        if not self._believed(record, member):
            self._disbelieve(record, sender)
            return
        self._renew(member, record, renewal)

    def note_own_updates(self, sender: NodeId, updates: tuple[kinds.AnyUpdate, ...], *, new: bool) -> None:
        """A node has told of itself on its own account, in ``updates`` that were read: others hear it from it, too.

        Not so where nodes are not linked to all; nor of refutations, which have to be everywhere soon: they are gossip.
        ``new``: it was not known before.
        """
        member = self._context.view.find(sender)
        match updates:
            case _ if self._context.links.partners() is not None:
                pass
            case (kinds.RecordUpdate(node=node, incarnation=incarnation),) if member is not None:
                if (node_of(node), incarnation) == (sender, member.record.incarnation):
                    self._context.sent_directly(sender, new=new)
            case _:
                pass

    def receive_renewal(self, renewal: Renewal, sender: NodeId, *, state: bool = False) -> None:
        """Merge a renewal, or ask for the whole record if it does not apply to the one held."""
        context = self._context
        member = context.view.find(renewal.node)
        if renewal.node == context.view.own.node:
            record = renewal.applied_to(context.view.own)
        elif member is None:
            self.want(renewal.node, sender)
            return
        else:
            if renewal.incarnation <= member.record.incarnation:
                return
            record = renewal.applied_to(member.record)
            if not self._believed(record, member):
                self.want(renewal.node, sender)
                return
            self._renew(member, record, renewal)
            return
        self.receive(record, sender, state=state)

    def _believed(self, record: NodeRecord, member: NodeState | None) -> bool:
        trust = self._context.trust
        if not trust.verify(record, record.statement(), record.signature):
            return False
        # A valid chain is not enough for an id that is held: another node of the same cluster, which has such a chain,
        # could otherwise take this one's place.
        return member is None or record.proof == member.record.proof or trust.continues(member.record, record)

    def _disbelieve(self, record: NodeRecord, sender: NodeId) -> None:
        holds = self._context.trust.holds(record)
        reason = "its subject did not sign" if holds else "rests on certificates that do not hold"
        self._context.reject(sender, f"a record that {reason}")

    def _receive_own(self, record: NodeRecord, sender: NodeId) -> None:
        context = self._context
        if record.incarnation < context.view.own.incarnation or record.signature == context.view.own.signature:
            return
        if context.trust.verify(context.view.own, record.statement(), record.signature):
            context.reject(sender, "another process uses this node's id and key")
        else:
            context.reject(sender, "a record of this node that it did not sign")

    def _meet(self, record: NodeRecord, sender: NodeId, *, pass_on: bool) -> None:
        context = self._context
        if len(context.view.live) >= context.config.member_limit:
            context.reject(sender, "more members than member_limit")
            return
        key = context.trust.issuer(record)
        in_place_of: NodeId | None = None
        if self._quota.is_full(key):  # before anything is verified, which takes ten times as long
            in_place_of = self._of_least_use(key, linked=record.node == sender)
            if in_place_of is None:
                context.reject(sender, "more records of one cluster's key than records_per_cluster_key")
                return
        if not self._believed(record, None):
            self._disbelieve(record, sender)
            return
        if in_place_of is not None:
            self._forget(in_place_of)
        # From here on the node is a member: it is probed, gets gossip, and counts against the quota of its key until it
        # is forgotten, also when it is dead by then.
        member = context.view.add(record, context.now)
        self._quota.add(record.node, key)
        if pass_on:
            context.spread(record)
        if record.leaving:
            # Remembered only so that an older record, still on its way, does not bring it in.
            context.view.bury(member, MemberState.LEFT, context.now)
            return
        self._prober.joined(record.node)
        context.changed(member)
        self._synchronize_soon()

    def _of_least_use(self, key: bytes, *, linked: bool) -> NodeId | None:
        """Return whose record may go for another one of the same key; ``linked``: for that of a linked node."""
        context = self._context
        gone = self._quota.first(key, context.view.gone.__contains__)
        if gone is not None or not linked:
            return gone
        return self._quota.first(key, lambda node: not context.links.is_linked(node))

    def _forget(self, node: NodeId) -> None:
        """Hold a node's record no more, and if it is live, report it gone."""
        context = self._context
        member = context.view.find(node)
        assert member is not None
        if member.live:
            self._suspects.drop(member)
            context.view.bury(member, MemberState.DEAD, context.now)
            self._prober.gone(node)
            context.changed(member, "expelled")
        context.dissemination.discard(("record", node))
        self._quota.discard(node)
        context.view.forget(node)

    def _renew(self, member: NodeState, record: NodeRecord, renewal: Renewal | None) -> None:
        context = self._context
        node = record.node
        newer = record.incarnation > member.record.incarnation
        if record.leaving:
            self._suspects.clear(member)
            member.record = record
            if member.state is not MemberState.LEFT:
                context.view.bury(member, MemberState.LEFT, context.now)
                self._prober.gone(node)
        else:
            was_gone = not member.live
            if not newer and was_gone:
                # The same incarnation with other words does not raise the dead.
                return
            if newer:
                # Only its subject can sign a higher incarnation: it has spoken since, which voids every claim.
                self._suspects.clear(member)
            context.view.renew(member, record)
            if newer:
                member.state = MemberState.ALIVE
                member.since = context.now
            if was_gone:
                member.met = context.now
                self._prober.joined(node)
            self._prober.renewed(member)
        context.spread_record(record, renewal)
        context.changed(member)
        if renewal is None:
            self._synchronize_soon()

    def _accuse(self, member: NodeState, to: NodeId) -> None:
        accusation = Accusation(node=member.record.node, incarnation=member.record.incarnation)
        self._context.send_updates(to, kinds.Gossip, updates=[accusation])

    def recheck(self, vouched: Callable[[NodeId], bool], patience: int = _PATIENCE) -> None:
        """Forget whose certificates do not hold any more.

        Who is linked by certificates that do hold (``vouched``) has newer ones than its record here: it is asked for
        that first, once a second and ``patience`` times.
        """
        context = self._context
        view = context.view
        held = [*view.live, *view.gone]
        late = False
        for node in held:
            member = view.find(node)
            if member is None or context.trust.holds(member.record):
                continue
            if member.live and patience and vouched(node):
                self.want(node, node)
                late = True
                continue
            self._forget(node)
        if late:
            context.timers.at(context.now + 1.0, lambda: self.recheck(vouched, patience - 1))

    def want(self, node: NodeId, sender: NodeId) -> None:
        """Ask ``sender`` for the record of ``node``, unless it was asked for a moment ago."""
        context = self._context
        if context.now < self._asked.get(node, -math.inf) + _ASKED_AGAIN:
            return
        if len(self._asked) >= _UNKNOWN_NODES:
            self._asked.clear()
        self._asked[node] = context.now
        context.send(sender, kinds.Wanted(bytes.fromhex(node)))

    def wanted(self, nodes: list[NodeId], sender: NodeId) -> None:
        """Send the records that a peer asks for; in half a second no more than there are."""
        context = self._context
        if self._may_ask(sender, kinds.Wanted):
            self._given[sender] = 0
        asked = list(dict.fromkeys(nodes))
        given = asked[: max(0, context.view.size + _SPARE - self._given[sender])]
        self._given[sender] += len(given)
        if len(given) < len(asked):
            context.reject(sender, "records wanted again and again")
        self._send_state([record for node in given if (record := self._record(node)) is not None], sender)

    def _record(self, node: NodeId) -> NodeRecord | None:
        context = self._context
        if node == context.view.own.node:
            return context.view.own
        member = context.view.find(node)
        return member.record if member is not None and member.state is not MemberState.DEAD else None

    def _send_state(self, records: list[NodeRecord], to: NodeId, *, last: bool = False) -> None:
        context = self._context
        parts = list(portions(records, context.config.state_bytes))
        for number, part in enumerate(parts, 1):
            context.send_updates(to, kinds.State, last and number == len(parts), updates=part)

    # -- joining --------------------------------------------------------------------------------------------

    def join(self, contact: NodeId) -> None:
        """Ask this node, like those named before, for everybody's records, until one of them has sent them all."""
        if contact not in self._contacts:
            self._contacts.append(contact)
        self._ask_to_join(contact)
        self._retry_later()

    def _ask_to_join(self, node: NodeId) -> None:
        self._context.send(node, kinds.Join(self._context.view.own.as_update()), self._context.view.own.size)

    def _retry_later(self) -> None:
        if self._contacts and not self._retrying:
            self._retrying = True
            self._context.timers.at(self._context.now + 1.0, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        if self._contacts:
            contact = self._contacts.pop(0)
            self._contacts.append(contact)
            self._ask_to_join(contact)
            self._retry_later()

    def joining(self, record: NodeRecord, sender: NodeId) -> None:
        """A node asks for everybody's records and brings its own."""
        context = self._context
        if record.node != sender:
            context.reject(sender, "it joins in another node's name")
            return
        self.receive(record, sender)
        if not self._may_ask(sender, kinds.Join):
            return
        records = [context.view.own]
        records.extend(record for record in context.view.records() if record.node != sender)
        self._send_state(records, sender, last=True)

    def _may_ask(self, sender: NodeId, kind: type[Message]) -> bool:
        """Return whether a costly question of this kind is due; the same one a moment later is not answered."""
        now = self._context.now
        if now < self._served.get((sender, kind), -math.inf) + _ASKED_AGAIN:
            return False
        if len(self._served) >= _UNKNOWN_NODES:
            self._served.clear()
            self._given.clear()
        self._served[sender, kind] = now
        return True

    def complete(self, sender: NodeId) -> None:
        """A contact has sent all it had; now it is sent what only this node knew."""
        if sender in self._contacts:
            self._contacts.clear()
            self._context.outbox.append(Synchronized(node=sender))
            self.synchronize(sender)

    # -- comparing ------------------------------------------------------------------------------------------

    def _synchronize_regularly(self) -> None:
        context = self._context
        pause = context.config.synchronize_interval * (0.75 + 0.5 * context.random.random())
        context.timers.at(context.now + pause, self._synchronize_regularly)
        self._forget_left()
        self._synchronize_with_one()

    def _synchronize_with_one(self) -> None:
        context = self._context
        for node in context.view.pick(context.random, 1):
            self.synchronize(node)

    def _synchronize_soon(self) -> None:
        """Something is new, and so more may be."""
        if not self._has_news:
            self._has_news = True
            self._context.timers.at(self._context.now + _SOON, self._synchronize_with_partner)

    def _synchronize_with_partner(self) -> None:
        """Compare with one that is linked: who is not is asked regularly, which is what joins parted halves."""
        self._has_news = False
        context = self._context
        for node in pick([*filter(context.links.is_linked, context.partners())], context.random, 1):
            self.synchronize(node)

    def _forget_left(self) -> None:
        context = self._context
        view = context.view
        left = context.now - context.config.dead_retention
        for node in [m.record.node for m in view.gone_members() if m.state is MemberState.LEFT and m.since < left]:
            self._forget(node)
        while len(view.gone) > context.config.gone_limit:
            self._forget(next(iter(view.gone)))

    def synchronize(self, node: NodeId) -> None:
        """Compare views with ``node``."""
        if len(self._comparing) >= _COMPARISONS:
            del self._comparing[next(iter(self._comparing))]
        self._comparing[node] = set(range(BUCKETS))
        self._context.send(node, kinds.Sync(self._context.view.hashes()), 64 + 8 * BUCKETS)

    def compare_hashes(self, hashes: bytes, sender: NodeId) -> None:
        """A peer wants to compare."""
        if not self._may_ask(sender, kinds.Sync):
            return
        for buckets, entries in digests(self._context.view, differing_buckets(self._context.view, hashes)):
            self._context.send(sender, kinds.Digest(buckets, entries), 64 + len(buckets) + len(entries))

    def compare_digest(self, buckets: bytes, entries: bytes, sender: NodeId) -> None:
        """A peer has listed what it holds live.  Raises RemoteProtocolError."""
        context = self._context
        awaited = self._comparing.get(sender, set())
        listed = set(buckets)
        if not (listed and listed <= awaited):
            # Told to nobody: of two comparisons begun in one moment only the first is answered, perhaps twice.
            context.rejections["a digest that was not asked for"] += 1
            return
        found = compared_untrusted(context.view, buckets, entries)
        awaited -= listed
        for packed in pack_nodes(found.wanted):
            context.send(sender, kinds.Wanted(packed), 64 + len(packed))
        self._send_state([r for node in found.offered if (r := self._record(node)) is not None], sender)
        accusations = [Accusation(node=node, incarnation=incarnation) for node, incarnation in found.contradicted]
        for part in portions(accusations, context.config.state_bytes):
            context.send_updates(sender, kinds.Gossip, updates=part)
