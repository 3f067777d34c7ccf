"""Tree management: use of an event tree by a publisher.  Propose, switch when relays are ready, leave.

Above ``Config.relay_above`` nodes that want a topic, those that can be in a tree get one.  Nodes that come later get
events directly, until there are as many of them again.  So a publisher never sends to more than that number directly,
and a tree changes seldom.  A publisher leaves a tree when one of its relays dies, stalls, no longer subscribes or may
no longer do so, and proposes another one without that relay.  Until then all nodes get events directly, so none waits
for a tree.

Always directly: nodes with a subscription that publishers wait for (``overflow="wait"``) or that acknowledges
(``durable``), groups, nodes at other sites, and this node itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.errors import NotSent
from iris.kernel.link import CONTROL_RESERVE, Link
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.patterns.picker import MemberHealth
from iris.patterns.pubsub.interest import InterestTable
from iris.patterns.pubsub.tree.feed import Route, TreeFeed, TreeSender
from iris.patterns.pubsub.tree.topology import MAX_PLACES, TreeRole, TreeShape, shaped

READY, GOES_ON, HELD, CUT_OFF, ENDED = range(5)
"""States that a node of a tree reports."""

STALLED: Final = 0.25
"""Seconds without progress after which a link holds up a tree."""

_TICK: Final = 0.1
"""Seconds between two looks at a tree in use."""

_PROPOSAL: Final = 1.0
"""Seconds that the nodes of a tree have to get ready."""

_PAUSE: Final = 1.0
"""Seconds between leaving a tree and proposing another one, so that troubles do not make trees by the dozen."""

_REST: Final = 10.0
"""Seconds for which a node that held up a tree, or could not be reached there, is in none."""

_MAX_HOLD: Final = 1.0
"""Seconds for which a node of a tree may make all others wait: links that move find room sooner."""


@final
class EventTrees:
    """The tree of this node as a publisher, if it has one.

    Args:
        mesh: mesh whose nodes it reaches.
        interest: table of the nodes that subscribe.
        health: nodes that are to get no new work now.
        sender: publisher whose tree it is.
    """

    def __init__(self, mesh: Mesh, interest: InterestTable, health: MemberHealth, sender: TreeSender) -> None:
        self._mesh = mesh
        self._config: Final = mesh.config
        self._interest = interest
        self._health = health
        self._sender = sender
        self.feed: TreeFeed | None = None
        self._next: tuple[int, TreeShape, set[NodeId], float] | None = None
        """Proposal: its number and shape, the nodes not ready yet, and their deadline.  None if there is none."""
        self._tree = 0
        self._turn = 0
        self._last = 0
        """The tree that was left last, and the nodes that have not confirmed so far that all of it has arrived."""
        self._not_ended: set[NodeId] = set()
        self._ended = trio.lowlevel.ParkingLot()
        self._closing = False
        self._resting: dict[NodeId, float] = {}
        self._not_before = -math.inf
        self._wanted = False
        """True if there was no tree although one was wanted."""
        self._news = Wakeup()
        self._upkeep = Wakeup()
        mesh.register(kinds.EventRelay, self._receive_report)

    @property
    def size(self) -> int:
        """Nodes in the tree in use; 0 without one."""
        return 0 if self.feed is None else len(self.feed.places)

    # -- routes --------------------------------------------------------------------------------------------

    def routes(self, links: Mapping[NodeId, Link]) -> tuple[Route, ...]:
        """Return the routes to nodes that want the same events; one of them may be the tree."""
        feed, above = self.feed, self._config.relay_above
        if feed is None:
            if len(links) > above:
                self._propose(links)
            return tuple(links.values())
        mask = 0
        direct: list[Route] = []
        for node, link in links.items():
            place = feed.places.get(node)
            if place is None:
                direct.append(link)
            else:
                mask |= place.bit
        if len(direct) > above:
            self._propose(links)
        return (*direct, feed.route(mask)) if mask else tuple(direct)

    def route_to(self, peer: Peer) -> Route:
        """Return the route by which a node gets its events."""
        place = None if self.feed is None else self.feed.places.get(peer.node)
        return peer.link if self.feed is None or place is None else self.feed.route(place.bit)

    def confirm_interest(self, peer: Peer, message: wire.Message) -> None:
        """Confirm a node's interest behind the last values that were sent to it.

        Raises:
            NotSent: see ``Link.post``.
        """
        route = self.route_to(peer)
        if self.feed is not None and route is not peer.link:
            self.feed.announced[peer.node] = message
        route.post(message, 0, CONTROL_RESERVE)

    def flush(self) -> None:
        """Send what has gathered for the tree."""
        if self.feed is not None:
            self.feed.flush()

    # -- another tree ---------------------------------------------------------------------------------------

    def _propose(self, nodes: Iterable[NodeId]) -> None:
        now = trio.current_time()
        if self._next is not None or self._closing:
            return
        if now < self._not_before:
            self._want()
            return
        former: Mapping[NodeId, object] = {} if self.feed is None else self.feed.places
        eligible = [node for node in dict.fromkeys((*former, *nodes)) if self._is_eligible(node)]
        well = [node for node in eligible if self._is_well(node, now)]
        fit = well[:MAX_PLACES]
        if len(fit) <= self._config.relay_above or all(node in former for node in fit):
            if len(well) < len(eligible):  # some may be well again soon
                self._not_before = now + _PAUSE
                self._want()
            return
        classes: dict[object, list[NodeId]] = {}
        for node in fit:
            classes.setdefault(self._mesh.peers[node].identity.certificate.rights.subscribes, []).append(node)
        shape = shaped(self._mesh.node, classes.values(), self._config.relay_fan_out)
        awaited = {node for node, place in shape.places.items() if place.children}
        if not awaited:
            return  # so many that nobody has anybody behind
        self._tree += 1
        self._next = (self._tree, shape, awaited, now + _PROPOSAL)
        for node, place in shape.places.items():
            self._post(node, *TreeRole(self._tree, place.bit, place.children).message())
        self._upkeep.wake()

    def _is_eligible(self, node: NodeId) -> bool:
        """Return whether a node can be in a tree at all."""
        peer = self._mesh.peers.get(node)
        terms = self._interest.terms_of(node)
        return peer is not None and bool(terms) and not peer.at_remote_site and not self._interest.needs_link(node)

    def _is_well(self, node: NodeId, now: float) -> bool:
        """Return whether nothing keeps such a node from being in a tree now."""
        link = self._mesh.peers[node].link
        return (
            link.is_up
            and link.has_room()
            and not self._health.is_suspected(node)
            and self._resting.get(node, now) <= now
        )

    def _want(self) -> None:
        self._wanted = True
        self._upkeep.wake()

    def _use(self) -> None:
        """Turn to the tree that was proposed."""
        assert self._next is not None
        tree, shape, _, _ = self._next
        self._next = None
        now = trio.current_time()
        if not all(self._is_eligible(node) and self._is_well(node, now) for node in shape.places):
            self._want()  # without those that are no longer fit
            return
        self._go(TreeFeed(self._mesh, tree, shape, self._sender, self._news))

    def _leave(self, *broken: NodeId) -> None:
        """Return to direct links; ``broken`` forward nothing any more."""
        self._not_before = trio.current_time() + _PAUSE
        self._want()
        self._go(None, broken)

    def _go(self, feed: TreeFeed | None, broken: Collection[NodeId] = ()) -> None:
        former, self.feed = self.feed, feed
        self._sender.routes_changed()  # no run grows any more, so that none gets longer behind what is announced now
        self._turn += 1
        before: Mapping[NodeId, object] = {}
        cut = 0
        if former is not None:
            former.end()
            before = former.places
            for node in broken:
                place = former.shape.places[node]
                cut |= place.mask ^ place.bit
            self._last = former.tree
            self._not_ended = {node for node in before if not former.shape.places[node].bit & cut}
        after: Mapping[NodeId, object] = {} if feed is None else feed.places
        for node in dict.fromkeys((*before, *after)):
            wait = node in before and former is not None and not former.shape.places[node].bit & cut
            tree = feed.tree if feed is not None and node in after else 0
            self._post(node, kinds.EventRoute(self._turn, tree, wait), 16)
        if former is not None:
            self._cut_off_all(former, cut)

    def _cut_off_all(self, feed: TreeFeed, mask: int) -> None:
        """Send nodes that may have missed something what they would wait for."""
        for node, place in feed.places.items():
            peer = self._mesh.peers.get(node)
            if place.bit & mask and peer is not None:
                self._sender.send_retained(peer)
                if node in feed.announced:
                    self._post(node, feed.announced[node], 0)

    def _post(self, node: NodeId, message: wire.Message, size: int) -> None:
        try:
            self._mesh.post(node, message, size, CONTROL_RESERVE)
        except NotSent:
            self._mesh.refusals["word of a tree without room on the link"] += 1

    # -- what nodes say, and what becomes of them -----------------------------------------------------------

    def _receive_report(self, peer: Peer, report: kinds.EventRelay) -> None:
        tree, state = report.tree, report.state
        if state == ENDED:
            if tree == self._last:
                self._not_ended.discard(peer.node)
                if not self._not_ended:
                    self._ended.unpark_all()
            return
        shape = self._shape(tree)
        place = None if shape is None else shape.places.get(peer.node)
        if place is None or not place.children:
            return  # of a tree that was left, or nothing that it would know
        child = wire.node_of(report.node)
        if state == CUT_OFF:
            if child in {one.node for one in place.children}:
                self._cannot_reach(tree, child)
        elif self._next is not None and tree == self._next[0]:
            if state == READY:
                self._next[2].discard(peer.node)
                if not self._next[2]:
                    self._use()
        elif self.feed is not None:
            if state == HELD:
                self.feed.hold(peer.node, trio.current_time())
            elif state == GOES_ON:
                self.feed.release(peer.node)

    def _shape(self, tree: int) -> TreeShape | None:
        if self._next is not None and tree == self._next[0]:
            return self._next[1]
        return self.feed.shape if self.feed is not None and tree == self.feed.tree else None

    def _cannot_reach(self, tree: int, child: NodeId) -> None:
        self._resting[child] = trio.current_time() + _REST
        if self._next is not None and tree == self._next[0]:
            self._next = None
            self._not_before = trio.current_time() + _PAUSE
            self._want()
        else:
            self._leave(child)

    def interest_changed(self, node: NodeId) -> None:
        """Leave the tree if a node that subscribes to something else now cannot be in it."""
        feed = self.feed
        place = None if feed is None else feed.places.get(node)
        if feed is None or place is None:
            return
        terms = self._interest.terms_of(node)
        if self._interest.needs_link(node) or (not terms and (place.children or self._is_deserted(feed))):
            self._leave()

    def _is_deserted(self, feed: TreeFeed) -> bool:
        """Return whether so few of a tree's nodes subscribe to anything that it is of no use."""
        return 2 * sum(1 for node in feed.places if self._interest.terms_of(node)) < self._config.relay_above

    def frames_lost(self, node: NodeId) -> None:
        """Announce the tree to a node again: messages to and from it may be lost."""
        if self._next is not None and node in self._next[1].places:
            coming = self._next[1].places[node]
            self._post(node, *TreeRole(self._next[0], coming.bit, coming.children).message())
        if not self._turn:
            return
        feed = self.feed
        place = None if feed is None else feed.places.get(node)
        if feed is None or place is None:
            self._post(node, kinds.EventRoute(self._turn, 0, wait=False), 16)
        else:
            feed.release(node)
            self._post(node, *TreeRole(feed.tree, place.bit, place.children).message())
            self._post(node, kinds.EventRoute(self._turn, feed.tree, wait=False), 16)
            self._cut_off_all(feed, place.mask ^ place.bit)

    def peer_gone(self, node: NodeId) -> None:
        """Remove a node that is given up; what it had in hand is lost, and shows as a gap at those behind it."""
        if self._next is not None and node in self._next[1].places:
            self._next = None
            self._want()
        feed = self.feed
        if feed is not None and node in feed.places:
            feed.release(node)
            if feed.places.pop(node).children:
                self._leave(node)
        self._not_ended.discard(node)
        self._ended.unpark_all()

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def close(self, timeout: float) -> None:
        """Leave the tree for good, and wait until all that went over it has come, for at most ``timeout`` seconds."""
        self._closing = True
        if self.feed is not None:
            self._go(None)
            with trio.move_on_after(timeout):
                while self._not_ended:
                    await self._ended.park()

    async def run(self) -> None:
        """Send what gathers, and look after the tree; run it in exactly one task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_after)
            while True:
                await self._news.wait()
                self.flush()

    async def _look_after(self) -> None:
        while True:
            await self._upkeep.wait()
            while self.feed is not None or self._next is not None or self._wanted:
                await trio.sleep(_TICK)
                self._check(trio.current_time())

    def _check(self, now: float) -> None:
        if self._next is not None and now >= self._next[3]:
            self._resting.update(dict.fromkeys(self._next[2], now + _REST))
            self._next = None
            self._want()
        if self.feed is not None:
            trouble = self._trouble(self.feed, now)
            if trouble:
                self._resting.update(dict.fromkeys(trouble, now + _REST))
                self._leave(*trouble)
            elif self._rights_changed(self.feed):
                self._leave()
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        if self._wanted and now >= self._not_before and self._next is None:
            self._wanted = False
            self._sender.routes_changed()

    def _trouble(self, feed: TreeFeed, now: float) -> list[NodeId]:
        """Return the nodes that hold up the tree."""
        found = [node for node, since in feed.held.items() if now - since > _MAX_HOLD]
        for child in feed.shape.top:
            peer = self._mesh.peers.get(child.node)
            # A link that merely waits for its peer harms those behind that one; one without room harms everybody.
            harmful = feed.shape.places[child.node].children or (peer is not None and not peer.link.has_room())
            if harmful and peer is not None and peer.link.is_stalled(STALLED):
                found.append(child.node)
        found += [node for node, place in feed.places.items() if place.children and self._health.is_suspected(node)]
        return list(dict.fromkeys(found))

    def _rights_changed(self, feed: TreeFeed) -> bool:
        """Return whether a node has another certificate since, which may not permit what it forwards."""
        peers = self._mesh.peers
        return any(peers[node].identity.certificate.rights.subscribes != feed.rights[node] for node in feed.places)
