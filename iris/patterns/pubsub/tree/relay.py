"""Event relay: the receiving side of events that arrive over trees.  Reorders them, delivers them, and forwards them.

A body is forwarded before it is delivered here, and the relay does not look into it.  A downstream link without room
makes the publisher wait.  A downstream link that is stalled or gone makes the publisher leave the tree.  Copies that a
link refused are counted here and reported to the publisher, like events that a subscription drops.
"""

from __future__ import annotations

import math
from typing import Protocol, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.errors import AuthenticationError, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE, Link
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.patterns.books import Tally
from iris.patterns.pubsub.interest import InterestTable
from iris.patterns.pubsub.tree.reorder import ReorderBuffer
from iris.patterns.pubsub.tree.topology import (
    CARRIED,
    Child,
    RelayedEvents,
    role_untrusted,
)
from iris.patterns.pubsub.tree.trees import CUT_OFF, ENDED, GOES_ON, HELD, READY, STALLED

_Branch = tuple[NodeId, int]
"""A publisher and the number of its tree."""


class RelayReceiver(Protocol):
    """Receiver of the messages that come over trees.  No method blocks."""

    def receive_relayed(self, peer: Peer, message: wire.Message) -> None:
        """Receive a message that came over a tree, or waited for one that did, in its turn.

        Raises:
            RemoteProtocolError: it is refused.
        """
        ...

    def count_not_handed_on(self, publisher: NodeId, topic: str, copies: int) -> None:
        """Count copies of a publisher's events that could not be forwarded; it is told."""
        ...


class MemberLinks(Protocol):
    """Members of this site, as ``iris.cluster.membership.Membership`` links them."""

    def request_link(self, node: NodeId) -> bool:
        """Begin to link to a member; return whether it is alive.  Does not block."""
        ...


@final
class _Incoming:
    """See ``OrderedReceiver``: the events of one publisher."""

    def __init__(self, relays: EventRelays, peer: Peer) -> None:
        self._relays = relays
        self._peer = peer

    def receive(self, message: wire.Message) -> None:
        self._relays._receive_one(self._peer, message)

    def receive_body(self, body: bytes) -> None:
        self._relays._open_body(self._peer, body)

    def may_receive(self, body: bytes) -> bool:
        return self._relays._mesh.work.may_open(len(body))

    def receive_waiting(self, body: bytes) -> None:
        self._relays._open_body(self._peer, body, waited=True)

    def forward(self, relayed: RelayedEvents, children: tuple[Child, ...]) -> None:
        self._relays._hand_on(relayed, children)

    def refuse(self, reason: str) -> None:
        self._relays._refuse(reason)

    def ended(self, tree: int) -> None:
        self._relays._report(self._peer.node, tree, ENDED)


@final
class EventRelays:
    """The relay of one node: receives over the trees of others, delivers, forwards.

    Args:
        mesh: mesh whose links it uses.
        tally: counters, one for each body that this node forwards for others, and node behind it.
        interest: table of the nodes that subscribe, or did: nothing is forwarded to others.
        receiver: receiver of what comes over trees.
        members: members of this site, of which those that are to be handed events are linked.
    """

    def __init__(
        self, mesh: Mesh, tally: Tally, interest: InterestTable, receiver: RelayReceiver, members: MemberLinks
    ) -> None:
        self._mesh = mesh
        self._tally = tally
        self._interest = interest
        self._receiver = receiver
        self._members = members
        self._incoming: dict[NodeId, ReorderBuffer] = {}
        self._linking: dict[NodeId, tuple[int, set[NodeId]]] = {}
        """Publishers whose last tree this node is not ready for: its number, and the children that are being linked."""
        self._crowded: dict[_Branch, set[Link]] = {}
        self._nursery: trio.Nursery | None = None
        self._expires = math.inf
        self._news = Wakeup()
        mesh.register(kinds.EventTree, self._receive_tree)
        mesh.register(kinds.EventRoute, self._receive_route)
        mesh.register(kinds.EventsRelayed, self._receive_relayed)

    def holds(self, peer: Peer, message: wire.Message) -> bool:
        """Keep a direct message if it has to wait; return whether it does."""
        incoming = self._incoming.get(peer.node)
        if incoming is None or not incoming.is_waiting:
            return False
        incoming.receive_direct(message, trio.current_time())
        self._watch(incoming)
        return True

    # -- what arrives ---------------------------------------------------------------------------------------

    def _from(self, peer: Peer) -> ReorderBuffer:
        known = self._incoming.get(peer.node)
        if known is None:
            known = self._incoming[peer.node] = ReorderBuffer(_Incoming(self, peer))
        return known

    def _refuse(self, reason: str) -> None:
        self._mesh.refusals[reason] += 1

    def _receive_tree(self, peer: Peer, message: kinds.EventTree) -> None:
        role = role_untrusted(message)
        self._from(peer).receive_role(role)
        self._linking.pop(peer.node, None)
        unlinked: set[NodeId] = set()
        for child in role.children:
            below = self._mesh.peers.get(child.node)
            if below is None and self._members.request_link(child.node):
                unlinked.add(child.node)
            elif below is None or not below.link.is_up:
                self._report(peer.node, role.tree, CUT_OFF, child.node)
                return
        if unlinked:
            self._linking[peer.node] = role.tree, unlinked
        else:
            self._report(peer.node, role.tree, READY)

    def interest_changed(self, node: NodeId) -> None:
        """Note that a node is linked, and has sent what it subscribes to: it may be handed events."""
        if not self._interest.is_whole(node):
            return
        for publisher, (tree, unlinked) in [*self._linking.items()]:
            unlinked.discard(node)
            if not unlinked:
                del self._linking[publisher]
                self._report(publisher, tree, READY)

    def hands_on_to(self, node: NodeId) -> bool:
        """Return whether this node hands events on to another one, or is about to."""
        return any(incoming.forwards_to(node) for incoming in self._incoming.values())

    def _receive_route(self, peer: Peer, route: kinds.EventRoute) -> None:
        incoming = self._from(peer)
        incoming.receive_route(route, trio.current_time())
        self._watch(incoming)

    def _receive_relayed(self, _: Peer, message: kinds.EventsRelayed) -> None:
        relayed = RelayedEvents.of(message)
        publisher = self._mesh.peers.get(relayed.publisher)
        if publisher is None:
            self._refuse("relayed events of a node that is not linked")
            return
        self._mesh.work.check()
        try:
            # From here the events are the publisher's own, for the receivers that it named: no relay before can have
            # changed them.
            publisher.identity.verify_untrusted(relayed.claim, relayed.signature)
        except AuthenticationError:
            # Not raised: the rest of the batch is genuine.
            self._refuse("relayed events with a wrong signature")
            return
        incoming = self._from(publisher)
        incoming.receive_relayed(relayed, trio.current_time())
        self._watch(incoming)

    def _open_body(self, peer: Peer, body: bytes, *, waited: bool = False) -> None:
        work = self._mesh.work
        try:
            messages = CARRIED.decode_untrusted(body, None if waited else work.elements)
        except RemoteProtocolError:
            self._refuse("relayed events that are malformed")
            return
        try:
            if not waited:
                work.add_messages(len(messages))
        except RemoteProtocolError:
            self._refuse("relayed events beyond what one frame may bring")
            return
        for message in messages:
            self._receive_one(peer, message)

    def _receive_one(self, peer: Peer, message: wire.Message) -> None:
        try:
            self._receiver.receive_relayed(peer, message)
        except RemoteProtocolError:
            self._refuse(f"message of kind {type(message).__name__}")
        except Exception as error:  # noqa: BLE001 -- it may have waited, and come from another node than its publisher
            self._mesh.quarantine_peer(peer, f"message of kind {type(message).__name__}", error)

    # -- forwarding -----------------------------------------------------------------------------------------

    def _hand_on(self, relayed: RelayedEvents, children: tuple[Child, ...]) -> None:
        message, size = relayed.message()
        reserve = self._mesh.config.link_bytes // 2  # for what was on its way when the publisher was asked to wait
        for node, mask in children:
            copies = (relayed.mask & mask).bit_count()
            if not copies:
                continue
            self._tally.sent += copies
            peer = self._mesh.peers.get(node)
            why = "no link"
            if peer is not None and (peer.at_remote_site or not self._interest.has_subscribed(node)):
                why = "a node that subscribes to nothing"
            elif peer is not None:
                why = "no room on the link"
                try:
                    peer.link.post_carrying(message, size, relayed.work, reserve)
                except NotSent:
                    pass
                else:
                    self._tally.handed_over += copies
                    if not peer.link.has_room():
                        self._hold_up((relayed.publisher, relayed.tree), peer.link)
                    continue
            self._tally.lost[why] += copies
            self._report(relayed.publisher, relayed.tree, CUT_OFF, node)
            self._report_lost(relayed, copies)

    def _report_lost(self, relayed: RelayedEvents, copies: int) -> None:
        if not relayed.body:
            return
        try:
            messages = CARRIED.decode_untrusted(relayed.body)
        except RemoteProtocolError:
            return  # its receivers would have refused it
        for message in messages:
            if isinstance(message, kinds.Events):
                self._receiver.count_not_handed_on(relayed.publisher, message.topic, copies * len(message.payloads))

    def _hold_up(self, branch: _Branch, link: Link) -> None:
        """Ask a publisher to pause until a link has room again."""
        if self._nursery is None:
            return
        links = self._crowded.get(branch)
        if links is None:
            links = self._crowded[branch] = set()
            self._report(*branch, HELD)
        if link not in links:
            links.add(link)
            self._nursery.start_soon(self._wait_room, branch, link)

    async def _wait_room(self, branch: _Branch, link: Link) -> None:
        while not link.has_room():
            if link.is_stalled(STALLED):
                self._report(*branch, CUT_OFF, link.node)
                break
            with trio.move_on_after(STALLED):
                await link.wait_room()
        links = self._crowded[branch]
        links.discard(link)
        if not links:
            del self._crowded[branch]
            self._report(*branch, GOES_ON)

    def _report(self, publisher: NodeId, tree: int, state: int, node: str = "") -> None:
        try:
            self._mesh.post(publisher, kinds.EventRelay(tree, state, bytes.fromhex(node)), 16, CONTROL_RESERVE)
        except NotSent:
            return  # a publisher without a report looks after its tree by itself

    # -- upkeep ---------------------------------------------------------------------------------------------

    def _watch(self, incoming: ReorderBuffer) -> None:
        if incoming.deadline < self._expires:
            self._news.wake()

    async def run(self) -> None:
        """Expire what has not arrived in time; run it in exactly one task."""
        async with trio.open_nursery() as self._nursery:
            while True:
                self._expires = min((one.deadline for one in self._incoming.values()), default=math.inf)
                with trio.move_on_at(self._expires):
                    await self._news.wait()
                now = trio.current_time()
                for incoming in list(self._incoming.values()):
                    if incoming.deadline <= now:
                        self._mesh.work.begin()
                        with self._mesh.survive("relayed events"):
                            incoming.expire(now)

    def frames_lost(self, node: NodeId) -> None:
        """Wait no longer for events in flight from a node, which may be lost; it announces its path anew."""
        incoming = self._incoming.get(node)
        if incoming is not None:
            incoming.reset(trio.current_time())
            self._watch(incoming)
        for publisher, other in self._incoming.items():
            for tree in other.trees_over(node):
                self._report(publisher, tree, CUT_OFF, node)

    def peer_gone(self, node: NodeId) -> None:
        """Forget a node: nothing comes from it any more."""
        self._incoming.pop(node, None)
        self._linking.pop(node, None)
