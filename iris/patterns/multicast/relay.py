"""Relay: the trio shell of the relay tree.  It sends this node's messages and forwards those of other origins.

A node that sends a message to another with others behind it keeps the message on its account until that node reports
that it forwarded the message, or is lost.  Each copy is therefore counted once, by the node that knows its outcome.

A node that is to forward a message and is linked to none of a part links to one of them first; the message waits.  It
begins to link to the next one after a quarter of a second: the first may be silent, or out of reach for this node only.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, final

import trio
from msgspec import Struct
from msgspec.structs import replace

from iris.cluster.mesh import Mesh, MessageReceiver, Peer, PeerObserver
from iris.kernel import wire
from iris.kernel.errors import AuthenticationError, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE, Link
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.patterns.books import Tally
from iris.patterns.multicast.tree import (
    Seen,
    behind_untrusted,
    branch,
    claim,
    divided,
    divided_by_site,
    is_current,
    relay_size,
)
from iris.patterns.picker import MemberHealth

_REPORT_PAUSE: Final = 0.05
"""Seconds for which reports are gathered: at high rates one message reports hundreds."""

_REPORTED_AT_ONCE: Final = wire.MAX_ARRAY // 2
_BOOKED: Final = 65536
"""Messages that one node may have in hand without a report; beyond it the oldest count as lost."""

_STALLED: Final = 0.25

_HELD: Final = 1 << 20
"""Waiting bytes of one origin's messages."""

_NEXT: Final = 0.25
"""Seconds after which a link to the next of a part is begun, if there is none to those before."""

_HELD_SECONDS: Final = 2.0
"""Seconds for which a message waits for a link before those behind it count as not reached."""

_decoder: Final = wire.BatchDecoder(kinds.Broadcast, kinds.Request, kinds.Cancel)

Booking = tuple[NodeId, int]
"""Origin and number of a relayed message."""


@final
class RelayPlan(Struct, frozen=True):
    """Receivers and their division into branches; made by ``Relays.tree``, valid while the receivers are the same."""

    receivers: tuple[NodeId, ...]
    parts: tuple[tuple[NodeId, ...], ...]


class _Unlinked(NamedTuple):
    """A part that there is no link to yet."""

    part: tuple[NodeId, ...]
    untried: Iterator[NodeId]
    """Those of them that no link was begun to."""


@final
class _Held(Struct):
    """A message that waits for links.

    Attributes:
        sender: node that gave it to this one, and is told how many were not reached.
        parts: receivers for which there is no link yet.
        lost: receivers that were not reached.
        next: time at which to begin one more link for each part.
        until: time until which it waits.
    """

    sender: NodeId
    relay: kinds.Relay
    parts: list[_Unlinked]
    lost: int
    next: float
    until: float


class RelayMembers(MemberHealth, Protocol):
    """Nodes that a relay may send over."""

    def request_link(self, node: NodeId) -> bool:
        """Begin to link to a node, if it is alive and not linked; return whether it is alive.  Does not block."""
        ...

    def site_of(self, node: NodeId) -> str:
        """Return the site of a node.  Called when a tree is planned; does not block."""
        ...


@final
class Relays(PeerObserver):
    """The relay of one node: what it sends and forwards over relay trees.

    Args:
        members: nodes that it may send over.
    """

    def __init__(self, mesh: Mesh, members: RelayMembers) -> None:
        self.tally: Final = Tally()
        """Counters, one for each message that this node forwards for others, and node behind it."""
        self._mesh = mesh
        self._config: Final = mesh.config
        self._members = members
        self._number = 0
        self._receivers: dict[type[wire.Message], MessageReceiver] = {}
        self._seen: OrderedDict[NodeId, Seen] = OrderedDict()
        self._booked: dict[NodeId, dict[Booking, tuple[Tally, int]]] = {}
        self._reports: dict[NodeId, dict[NodeId, list[tuple[int, int]]]] = {}
        self._report_news = Wakeup()
        self._held: list[_Held] = []
        self._held_bytes: Counter[NodeId] = Counter()
        """Held bytes, by origin."""
        mesh.register(kinds.Relay, self._receive)
        mesh.register(kinds.Relayed, self._receive_report)

    def register(self, kind: type[wire.Message], receiver: MessageReceiver) -> None:
        """Pass relayed messages of a type to ``receiver``, with their origin as if it had sent them itself."""
        self._receivers[kind] = receiver

    # -- sending --------------------------------------------------------------------------------------------

    def tree(self, receivers: Sequence[NodeId]) -> RelayPlan:
        """Return the plan by which a message of this node reaches ``receivers``; this node is not among them."""
        parts = divided_by_site(self._mesh.node, receivers, self._config.relay_fan_out, self._members.site_of)
        return RelayPlan(tuple(receivers), tuple(parts))

    def send(self, tree: RelayPlan, message: wire.Message, tally: Tally) -> list[Link]:
        """Send one message to every receiver of a tree; plain calls, no waiting.

        Counted in ``tally``, one for each receiver: ``sent``, then ``handed_over`` when it is in flight to it, or
        ``lost`` by reason.  What hangs on a report of another node is neither for a moment.

        Returns:
            The links that accepted it, to wait for room on.
        """
        self._number += 1
        body, at = wire.encode_batch((message,)), int(self._mesh.wall_clock())
        relay = kinds.Relay(bytes.fromhex(self._mesh.node), self._number, at, b"", body, b"")
        signed = replace(relay, signature=self._mesh.identity.sign(claim(relay)))
        return self._hand_on(signed, tree.parts, tally)[0]

    def _hand_on(self, relay: kinds.Relay, parts: Sequence[tuple[NodeId, ...]], tally: Tally) -> tuple[list[Link], int]:
        """Give a message to one node of each part; return the links that accepted it, and how many copies are lost."""
        taken: list[Link] = []
        lost = 0
        for part in parts:
            tally.sent += len(part)
            chosen = branch(part, self._is_at_work) or branch(part, self._is_linked)
            peer = None if chosen is None else self._mesh.peer(chosen.head)
            reason = "no link"
            if chosen is not None and peer is not None:
                reason = "no room on the link"
                message = replace(relay, behind=bytes.fromhex("".join(chosen.behind)))
                try:
                    peer.link.post(message, relay_size(message))
                except NotSent:
                    pass
                else:
                    taken.append(peer.link)
                    tally.handed_over += 1
                    if chosen.behind:
                        self._book(chosen.head, (wire.node_of(relay.origin), relay.number), tally, len(chosen.behind))
                    continue
            lost += len(part)
            tally.lost[reason] += len(part)
        return taken, lost

    def _is_at_work(self, node: NodeId) -> bool:
        peer = self._mesh.peer(node)
        return (
            peer is not None
            and peer.link.is_up
            and not self._members.is_suspected(node)
            and not peer.link.is_stalled(_STALLED)
        )

    def _is_linked(self, node: NodeId) -> bool:
        return self._mesh.peer(node) is not None

    # -- what arrives ---------------------------------------------------------------------------------------

    def _receive(self, peer: Peer, relay: kinds.Relay) -> None:
        named = behind_untrusted(relay)
        origin = self._mesh.peer(wire.node_of(relay.origin))
        if origin is None or origin is self._mesh.own:
            self._mesh.refusals["relayed message of a node that is not linked"] += 1
            return
        self._mesh.work.check()
        try:
            origin.identity.verify_untrusted(claim(relay), relay.signature)
        except AuthenticationError:
            # Not raised: the rest of the batch is genuine.
            self._mesh.refusals["relayed message with a wrong signature"] += 1
            return
        if not is_current(relay, self._mesh.wall_clock()):
            self._mesh.refusals["relayed message of another time"] += 1
            return
        if not self._is_new(origin.node, relay.number):
            self._mesh.refusals["relayed message came again"] += 1
            return
        if named:
            behind = [node for node in named if node not in (self._mesh.node, origin.node)]
            parts = divided(behind, self._config.relay_fan_out)
            unlinked = self._unlinked(parts, origin.node, len(relay.body))
            waiting = [one.part for one in unlinked]
            _, lost = self._hand_on(relay, [part for part in parts if part not in waiting], self.tally)
            lost += len(named) - len(behind)
            if unlinked:
                now = trio.current_time()
                self._held.append(_Held(peer.node, relay, unlinked, lost, now + _NEXT, now + _HELD_SECONDS))
                self._held_bytes[origin.node] += len(relay.body)
                self._report_news.wake()
            else:
                self._report(peer.node, origin.node, relay.number, lost)
        inner = _decoder.decode_untrusted(relay.body, self._mesh.work.elements)
        receiver = self._receivers.get(type(inner[0])) if len(inner) == 1 else None
        if receiver is None:
            raise RemoteProtocolError("what is relayed is one message")
        receiver(origin, inner[0])

    def _unlinked(self, parts: Sequence[tuple[NodeId, ...]], origin: NodeId, size: int) -> list[_Unlinked]:
        """Begin to link to one of each part of which none is linked; return these parts, if a message may wait."""
        if self._held_bytes[origin] + size > _HELD:
            return []
        unlinked = [_Unlinked(part, iter(part)) for part in parts if not any(map(self._is_linked, part))]
        return [one for one in unlinked if self._begin_link(one)]

    def _begin_link(self, unlinked: _Unlinked) -> bool:
        """Begin to link to the next of a part that is alive; return False if there is none."""
        return any(map(self._members.request_link, unlinked.untried))

    def _hand_on_held(self) -> None:
        """Forward what there is a link for by now, or will not be."""
        held, self._held = self._held, []
        now = trio.current_time()
        for one in held:
            unlinked = [part for part in one.parts if now < one.until and not any(map(self._is_linked, part.part))]
            ready = [part.part for part in one.parts if part not in unlinked]
            one.lost += self._hand_on(one.relay, ready, self.tally)[1]
            one.parts = unlinked
            if unlinked:
                if now >= one.next:
                    one.next = now + _NEXT if any([*map(self._begin_link, unlinked)]) else one.until
                self._held.append(one)
                continue
            origin = wire.node_of(one.relay.origin)
            self._held_bytes[origin] -= len(one.relay.body)
            if not self._held_bytes[origin]:
                del self._held_bytes[origin]
            self._report(one.sender, origin, one.relay.number, one.lost)

    def _is_new(self, origin: NodeId, number: int) -> bool:
        seen = self._seen.get(origin)
        if seen is None:
            seen = self._seen[origin] = Seen()
            if len(self._seen) > self._config.member_limit:
                self._seen.popitem(last=False)
        else:
            self._seen.move_to_end(origin)  # what is forgotten could come again for a minute
        return seen.add(number)

    # -- accounting -----------------------------------------------------------------------------------------

    def _book(self, head: NodeId, booking: Booking, tally: Tally, count: int) -> None:
        booked = self._booked.setdefault(head, {})
        if len(booked) >= _BOOKED:
            oldest, behind = booked.pop(next(iter(booked)))
            oldest.lost["relay silent"] += behind
        booked[booking] = (tally, count)

    def _report(self, node: NodeId, origin: NodeId, number: int, lost: int) -> None:
        self._reports.setdefault(node, {}).setdefault(origin, []).append((number, lost))
        self._report_news.wake()

    async def run(self) -> None:
        """Report what was forwarded; run it in exactly one task."""
        while True:
            with trio.move_on_at(min((min(one.next, one.until) for one in self._held), default=math.inf)):
                await self._report_news.wait()
            await trio.sleep(_REPORT_PAUSE)
            if self._held:
                self._hand_on_held()
            reports, self._reports = self._reports, {}
            for node, by_origin in reports.items():
                for origin, outcomes in by_origin.items():
                    for start in range(0, len(outcomes), _REPORTED_AT_ONCE):
                        self._post_report(node, origin, tuple(outcomes[start : start + _REPORTED_AT_ONCE]))

    def _post_report(self, node: NodeId, origin: NodeId, outcomes: tuple[tuple[int, int], ...]) -> None:
        size = 3 * wire.ELEMENT * len(outcomes)
        try:
            self._mesh.post(node, kinds.Relayed(bytes.fromhex(origin), outcomes), size, CONTROL_RESERVE)
        except NotSent:
            return  # the node that gave it to this one counts it as lost when the link ends

    def _receive_report(self, peer: Peer, report: kinds.Relayed) -> None:
        booked = self._booked.get(peer.node)
        if booked is None:
            return
        origin = wire.node_of(report.origin)
        for number, missed in report.outcomes:
            entry = booked.pop((origin, number), None)
            if entry is not None:
                tally, count = entry
                lost = min(missed, count)
                tally.handed_over += count - lost
                if lost:
                    tally.lost["not reached by a relay"] += lost

    def _write_off(self, node: NodeId) -> None:
        for tally, count in self._booked.pop(node, {}).values():
            tally.lost["relay lost"] += count

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def holds(self, node: NodeId) -> bool:
        """Return whether a node has messages in hand, or is to get some, of which it was not reported what became."""
        return bool(self._booked.get(node)) or bool(self._held) or node in self._reports

    def peer_connected(self, peer: Peer) -> None:
        """Forward what has waited for a link."""
        if self._held and not peer.at_remote_site:
            self._hand_on_held()

    def frames_lost(self, peer: Peer) -> None:
        """Count as lost what the node had in hand: frames may be lost."""
        self._write_off(peer.node)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """Count as lost what the node had in hand."""
        self._write_off(peer.node)
        self._reports.pop(peer.node, None)


def stands_alone(mesh: Mesh, node: NodeId) -> bool:
    """Return whether this node sends to a node itself: it is this one, or at another site, or was linked just now.

    Until the last frame of the handshake has come there, which this node has sent, it refuses what others hand on.
    """
    peer = mesh.peer(node)
    if node == mesh.node or peer is None:
        return node == mesh.node
    return peer.at_remote_site or (peer.initiated and peer.session is not None and not peer.session.has_received)
