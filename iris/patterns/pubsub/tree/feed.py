"""Tree feed: a publisher collects events into bodies, signs each body once, and sends it to the tops of its tree.

A signature costs 40 us and its verification 100 us, so one for each event would be most of the work.  As on a link
there is no timer: what has been collected when the scheduler comes round to the flusher is one body, up to 60 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.errors import NotSent
from iris.kernel.link import Link, OpenRun
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.patterns.pubsub.sealed import Audience
from iris.patterns.pubsub.tree.topology import END, RelayedEvents, TreePosition, TreeShape, claim

_BODY: Final = 60 * KIB
"""Size of a body which makes one frame with its envelope."""

_OVERHEAD: Final = 32
"""Size that a message is counted with besides its payload."""


@final
class TreeLink:
    """The route to some nodes of a tree.  Publishers use it as they use a ``Link``."""

    __slots__ = ("_feed", "copies", "mask")

    node: Final = NodeId("")
    """Empty, as it leads to no node in particular."""

    def __init__(self, feed: TreeFeed, mask: int) -> None:
        self._feed = feed
        self.mask: Final = mask
        self.copies: Final = mask.bit_count()
        """Number of the nodes that it leads to."""

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Nodes that it leads to."""
        return tuple(node for node, place in self._feed.shape.places.items() if place.bit & self.mask)

    def __repr__(self) -> str:
        return f"<TreeLink to {self.copies} nodes>"

    def post(self, message: wire.Message, size: int, reserve: int = 0, growing: OpenRun | None = None) -> None:  # noqa: ARG002 -- as that of a link
        """Post a message, which travels with the next body; see ``Link.post``."""
        self._feed.post(self.mask, message, size, growing)

    def has_room(self) -> bool:
        """Return whether the first nodes of the tree have room, and none further down asks for a pause."""
        return self._feed.has_room()

    def is_stalled(self, after: float) -> bool:  # noqa: ARG002 -- as that of a link
        """Return False: a node that delays a tree is taken out of it."""
        return False

    async def wait_room(self) -> None:
        """Wait until it has room, or the tree was left.  Cancelling leaves nothing behind."""
        await self._feed.wait_room()


class TreeSender(Protocol):
    """Publisher whose events go over trees.  No method blocks."""

    def routes_changed(self) -> None:
        """Resolve the routes of all topics anew.  Called when a tree is begun to be used, or left, or wanted."""
        ...

    def count_tree_lost(self, topic: str, copies: int) -> None:
        """Count copies of a topic's events that the first nodes of a tree could not be given."""
        ...

    def send_retained(self, peer: Peer) -> None:
        """Send a node the retained values again: a node that should have forwarded events to it has died.

        Called before what is sent to the node next.
        """
        ...


Route = Link | TreeLink | Audience
"""Route by which events of a publisher leave."""


@final
class TreeFeed:
    """One tree of this node as a publisher, and what goes over it next.

    Args:
        mesh: mesh whose links it uses.
        tree: number of the tree.
        shape: nodes of the tree, and those to which each forwards.
        sender: publisher whose events it sends.
        news: woken when there is something to flush.
    """

    def __init__(self, mesh: Mesh, tree: int, shape: TreeShape, sender: TreeSender, news: Wakeup) -> None:
        self.tree: Final = tree
        self.shape: Final = shape
        self.places: Final[dict[NodeId, TreePosition]] = dict(shape.places)
        """Positions of the nodes that are still there."""
        self.rights: Final = {node: mesh.peers[node].identity.certificate.rights.subscribes for node in shape.places}
        """Rights of each node to subscribe when the tree was made."""
        self.held: Final[dict[NodeId, float]] = {}
        """Nodes that ask for a pause, and the time since when."""
        self.announced: Final[dict[NodeId, wire.Message]] = {}
        """Confirmations of interest that went over the tree, by node."""
        self._mesh = mesh
        self._sender = sender
        self._news = news
        self._routes: dict[int, TreeLink] = {}
        self._number = 0
        self._mask = 0
        self._messages: list[wire.Message] = []
        self._bytes = 0
        self._growing: OpenRun | None = None
        self._left = False
        self._room = trio.lowlevel.ParkingLot()

    def route(self, mask: int) -> TreeLink:
        """Return the route to some of its nodes."""
        route = self._routes.get(mask)
        if route is None:
            if len(self._routes) >= 1024:  # as many sets of subscribers as topics, at worst
                self._routes.clear()
            route = self._routes[mask] = TreeLink(self, mask)
        return route

    # -- sending --------------------------------------------------------------------------------------------

    def post(self, mask: int, message: wire.Message, size: int, growing: OpenRun | None) -> None:
        """Add a message to the body, which is for these places only."""
        size += _OVERHEAD
        self._grow_no_more()
        full = self._bytes + size > _BODY or len(self._messages) == wire.MAX_MESSAGES
        if self._messages and (mask != self._mask or full):
            self.flush()
        self._mask = mask
        self._messages.append(message)
        self._bytes += size
        if growing is not None:
            self._growing = growing
            growing.room = min(growing.room, _BODY - self._bytes)
        self._news.wake()

    def _grow_no_more(self) -> None:
        if self._growing is not None:
            self._growing.end()
            self._bytes += self._growing.grown
            self._growing = None

    def flush(self) -> None:
        """Send what has gathered."""
        self._grow_no_more()
        messages, self._messages = self._messages, []
        self._bytes = 0
        if not messages:
            return
        for missed in self._send(self._mask, wire.encode_batch(messages)):
            for message in messages:
                if isinstance(message, kinds.Events):
                    self._sender.count_tree_lost(message.topic, missed * len(message.payloads))
                elif isinstance(message, kinds.Retained):
                    self._sender.count_tree_lost(message.topic, missed)

    def end(self) -> None:
        """Send what has gathered, and the end of the tree."""
        self.flush()
        for _ in self._send((1 << len(self.shape.places)) - 1, END):
            pass  # a node that misses it goes on after ``PATIENCE`` seconds
        self._left = True
        self._room.unpark_all()

    def _send(self, mask: int, body: bytes) -> Iterator[int]:
        """Send a body; yield how many nodes cannot get it, for each of the first nodes that could not be given it."""
        mesh = self._mesh
        self._number += 1
        signature = mesh.identity.sign(claim(mesh.node, self.tree, self._number, mask, body))
        relayed = RelayedEvents(mesh.node, self.tree, self._number, mask, body, signature)
        message, size = relayed.message()
        for child in self.shape.top:
            if mask & child.mask:
                peer = mesh.peer(child.node)
                try:
                    if peer is None:
                        raise NotSent(f"no link to node {child.node}")
                    peer.link.post_carrying(message, size, relayed.work)
                except NotSent:
                    yield (mask & child.mask).bit_count()

    # -- room -----------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """See ``TreeLink.has_room``."""
        return self._left or (not self.held and self._crowded() is None)

    def _crowded(self) -> Link | None:
        for child in self.shape.top:
            peer = self._mesh.peer(child.node)
            if peer is not None and not peer.link.has_room():
                return peer.link
        return None

    async def wait_room(self) -> None:
        """See ``TreeLink.wait_room``."""
        while not self.has_room():
            link = self._crowded()
            if link is None:
                await self._room.park()
            else:
                await link.wait_room()

    def hold(self, node: NodeId, now: float) -> None:
        """Note that a node of the tree asks for a pause."""
        self.held.setdefault(node, now)

    def release(self, node: NodeId) -> None:
        """Note that a node of the tree can go on."""
        if self.held.pop(node, None) is not None:
            self._room.unpark_all()
