"""Frame forwarder (circuit relay): passes frames between two nodes of the site of which neither can dial the other.

Any node that others can dial forwards for the members of its realm, to nodes that it is linked to itself: there is one
relay on a path and never two.  The forwarder cannot read a frame and waits for nothing: where the next link is full
the frame is dropped and counted, and its session notices.  Plain calls: every frame between the two comes by here.
"""

from __future__ import annotations

import hashlib
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh, Peer, PeerObserver, PeerTable
from iris.cluster.routes import RelayedConnection, is_two_way, parse_via_url
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import Link
from iris.kernel.names import NodeId
from iris.kernel.slots import Groups
from iris.kernel.transport import ConnectionUser
from iris.kernel.wire import carried_by, kinds, node_of

_AVOIDED: Final = 5.0
"""Seconds for which a helper is not asked again for a node that it could not reach."""

_REMEMBERED: Final = 4096
"""Pairs of helper and node that are avoided at one time; the oldest give way."""


@final
class RelayedRoutes:
    """The relayed connections of one node; see ``Carrier``.

    Args:
        own: the node.
        peers: the peers of its mesh.
    """

    def __init__(self, own: NodeId, peers: PeerTable) -> None:
        self._own = own
        self._peers = peers
        self._ways: Groups[NodeId, RelayedConnection] = Groups()
        """Relayed connections by helper."""
        self._ways_to: Groups[tuple[NodeId, NodeId], RelayedConnection] = Groups()
        """Relayed connections by helper and target: a helper reports each link that it lacks, with small frames."""
        self._avoided: dict[tuple[NodeId, NodeId], float] = {}
        self._vain: dict[tuple[NodeId, NodeId], None] = {}
        """Pairs of helper and target that came to no link, those that did so last at the end."""

    def __repr__(self) -> str:
        return f"<RelayedRoutes of {self._own[:8]}>"

    async def dial(self, url: str, user: ConnectionUser) -> RelayedConnection:
        """See ``Transport.dial``."""
        target = parse_via_url(url)
        await trio.lowlevel.checkpoint()
        helper = self._helper(target)
        if helper is None:
            raise NotSent(
                f"node {target} only dials out, as this one does, and no node is known that both are linked to: that "
                "takes one that listens (listen=, IRIS_LISTEN)"
            )
        route = RelayedConnection(target, helper, self, user)
        self._ways.add(helper, route)
        self._ways_to.add((helper, target), route)
        return route

    def route_closed(self, route: RelayedConnection) -> None:
        """See ``RelayedMaker``."""
        self._ways.remove(route.helper, route)
        pair = route.helper, route.target
        self._ways_to.remove(pair, route)
        if self._peers.get(route.target) is None:
            # A helper may drop all that it is to carry, and say nothing: the next attempt goes through another one.
            self._vain.pop(pair, None)
            self._vain[pair] = None
            if len(self._vain) > _REMEMBERED:
                del self._vain[next(iter(self._vain))]

    def _helper(self, target: NodeId) -> NodeId | None:
        """Choose the relay: of those that could, another one for each pair, and the same at either end.

        Those through which the last attempts came to nothing are chosen last.
        """
        now = trio.current_time()
        fit = [
            peer.node
            for peer in self._peers
            if peer.node != target
            and not peer.client
            and peer.link.is_up
            and any(map(is_two_way, peer.addresses))
            and self._avoided.get((peer.node, target), 0.0) <= now
        ]
        vain = [helper for helper, node in self._vain if node == target and helper in fit] if self._vain else []
        if vain:
            fit = [node for node in fit if node not in vain] or vain[:1]
        pair = "".join(sorted((self._own, target))).encode()
        return min(fit, key=lambda node: hashlib.blake2b(pair + node.encode(), digest_size=8).digest(), default=None)

    def link_to(self, helper: NodeId) -> Link | None:
        """See ``RelayedMaker``."""
        peer = self._peers.get(helper)
        return None if peer is None or not peer.link.is_up else peer.link

    def refused(self, helper: NodeId, target: NodeId) -> None:
        """A helper has no link to a node: end the connections through it, and look for another one for a while."""
        for route in self._ways_to.of((helper, target)):
            self._avoid(helper, target)
            route.break_off()

    def _avoid(self, helper: NodeId, target: NodeId) -> None:
        self._avoided.pop((helper, target), None)
        self._avoided[helper, target] = trio.current_time() + _AVOIDED
        if len(self._avoided) > _REMEMBERED:
            del self._avoided[next(iter(self._avoided))]

    def helper_lost(self, helper: NodeId) -> None:
        """End the connections through a node whose connection broke, or that is gone."""
        for route in self._ways.of(helper):
            route.break_off()


@final
class Forwarder(PeerObserver):
    """The frames that one node forwards for others, and those that come to it so.

    Args:
        routes: the node's own relayed connections, which end with the link to their helper.
    """

    def __init__(self, mesh: Mesh, routes: RelayedRoutes) -> None:
        self.forwarded = 0
        """Frames forwarded for others."""
        self._mesh = mesh
        self._routes = routes
        mesh.register(kinds.Forward, self._receive)
        mesh.register(kinds.ForwardRefused, self._receive_refused)

    def __repr__(self) -> str:
        return f"<Forwarder: {self.forwarded} frames handed on>"

    # -- what arrives ---------------------------------------------------------------------------------------

    def _receive(self, peer: Peer, message: kinds.Forward) -> None:
        target, frame = node_of(message.target), message.frame
        if peer.at_remote_site:
            raise RemoteProtocolError("a frame to hand on comes from a node of this site")
        self._mesh.check_not_nested(kinds.Forward)  # one relay on a path, and never two
        if target == self._mesh.node:
            # Under limits of its own: any member can be a relay.
            self._mesh.receive_carried(frame, kinds.Forward, f"through {peer.node}")
            return
        other = self._mesh.peers.get(target)
        if other is None or not other.link.is_up or other.indirect:
            self._mesh.refusals["not handed on: no link"] += 1
            peer.link.post(kinds.ForwardRefused(message.target), 0)
            return
        # Dropped and not queued: the session of the two ends notices the gap, while a queue here would be memory of
        # this node that two others fill.
        if not other.link.has_room():
            self._mesh.refusals["not handed on: link full"] += 1
            return
        other.link.post_carrying(message, len(frame), carried_by(len(frame)))
        self.forwarded += 1

    def _receive_refused(self, peer: Peer, refused: kinds.ForwardRefused) -> None:
        self._routes.refused(peer.node, node_of(refused.target))

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_unreachable(self, node: NodeId) -> None:
        """End the relayed connections through a node whose connection broke."""
        self._routes.helper_lost(node)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """End the relayed connections through a node that is gone."""
        self._routes.helper_lost(peer.node)
