"""Remote sites: the trio shell of the directory.  It links nodes of other sites through gateways.

The gateways of a site tell its nodes which sites there are and what they export.  A session with a node over there is
an ordinary one, begun when it is first needed; its frames travel inside of messages to a gateway, which cannot open
them.  A node takes them out of these messages without decoding that each time.  Only the connection is new to the mesh:
everything above it works as with a node next door.

When a route ends, every connection over it breaks, and is dialled again over the next best one.  If there is none, the
link waits ``Config.site_patience`` for one; nobody is given work over it meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, final

import trio

from iris.cluster.directory import Hop, RemoteSubscriber
from iris.cluster.membership import Membership
from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.cluster.routes import (
    ANYBODY,
    BUSY,
    GONE,
    NOT_EXPORTED,
    READY,
    REASONS,
    CopyRoute,
    GatewayRoute,
    carrier_of,
)
from iris.cluster.sites.network import SiteNetwork
from iris.cluster.sites.remote_links import RemoteLinks, Subscribing
from iris.cluster.sites.remote_members import RemoteMembers
from iris.cluster.sites.reports import ExportDoubts, LossReport
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId, qualified, realm_of_site
from iris.kernel.tasks import Wakeup, time_left
from iris.kernel.wire import kinds, node_of

_log: Final = logging.getLogger("iris")

_AT_ONCE: Final = 3
"""Members that are linked to when a cluster is first asked for: one may not answer, and another may be faster."""

_SPARE: Final = 2
"""Members at other sites that are linked when a cluster is used that has members here, too: work spills to them
without waiting for a handshake."""

_RETRY: Final = 0.25
"""Seconds between attempts to reach a peer whose site cannot be reached."""


class CopyOpener(Protocol):
    """Opens events of other sites."""

    def receive(self, site: str, source: NodeId, frame: bytes) -> None:
        """Receive a frame of a site's publisher from a gateway, not verified yet.  Does not block."""
        ...


@final
class Sites(PeerObserver):
    """Other sites, as this node reaches them.  Made for every node that is at a named site.

    Args:
        network: what leads to other sites, made before the mesh.
        remote_members: the members at other sites.
        opener: opens events of other sites that are for this node.
    """

    def __init__(
        self,
        mesh: Mesh,
        membership: Membership,
        nursery: trio.Nursery,
        network: SiteNetwork,
        foreigners: RemoteMembers,
        opener: CopyOpener,
    ) -> None:
        self._mesh = mesh
        self._membership = membership
        self._nursery = nursery
        self._config = mesh.config
        self._site: Final = mesh.tag.site
        self.directory: Final = network.directory
        self.remote_members: Final = foreigners
        """The members at other sites."""
        self.relay: Final = network.relay
        """Relay of what passes this node on the way between sites."""
        self.copies: Final = network.routes.copies
        """Route of events for several nodes of other sites."""
        self._routes: Final = network.routes
        self.border: Final = network.border
        self._opener = opener
        self.subscribers_version = 0
        """Number that grows when subscribers at other sites, or the links to them, may have changed."""
        self._clusters: dict[NodeId, set[str]] = {}
        """Clusters that each linked member serves, as far as its site exports them."""
        self._unreached: set[NodeId] = set()
        """Linked members of sites that could not be reached when they were to be looked at."""
        self._listed: dict[NodeId, frozenset[Hop]] = {}
        """The gateways that have named each of them as a member of some cluster."""
        self._anew = True
        """True if all is looked at next, and not only what has changed in the directory."""
        self._identity = mesh.identity
        """Identity of this node at the last look, and so its trusted keys."""
        self._settles = math.inf
        """Time at which gateways that came lately are next to know their site."""
        self._doubts: Final = ExportDoubts()
        self._broken: set[NodeId] = set()
        """Linked nodes whose route is gone, as long as there may be another one."""
        self._dropping: set[NodeId] = set()
        """Nodes that are about to be given up: by one task each, however often a gateway says so."""
        self._reached: dict[str, int] = {}
        self._wakeup = Wakeup()
        self._news = trio.lowlevel.ParkingLot()
        self._asking: dict[int, tuple[trio.Event, list[Hop]]] = {}
        """Questions which node is on the route, by their number, and the nodes that have answered."""
        self._links: Final = RemoteLinks(mesh, nursery, self._config, network.routes.path, self._notify_changes)
        nursery.start_soon(LossReport(self.remote_members.name_of).run, mesh)
        mesh.register(kinds.Carry, self._receive_carried)
        mesh.register(kinds.CarryRefused, self._receive_refused)
        mesh.register(kinds.Trace, self._receive_trace)
        mesh.register(kinds.Traced, self._receive_traced)
        mesh.register(kinds.Copy, self._receive_copy)
        mesh.register(kinds.Allowed, self._receive_allowed)
        mesh.register(kinds.Route, self._receive_route)
        mesh.register(kinds.Exports, self._receive_exports)

    def __repr__(self) -> str:
        return f"<Sites {self.directory!r}, {self._routes!r}>"

    # -- who is there ---------------------------------------------------------------------------------------

    def matters(self, address: str) -> bool:
        """Return whether other sites have to be looked at before a cluster is asked; costs two look-ups."""
        if not self.remote_members.has(address) and "@" not in address:
            return False
        return bool(self._broken) or self._reached.get(address) != self.directory.version

    def lists(self, address: str) -> bool:
        """Return whether a cluster has members at other sites."""
        return bool(self.remote_members.ids(address))

    def without_link(self, address: str) -> list[NodeId]:
        """Return the members of a cluster at other sites that are not linked."""
        return [node for node in self.remote_members.ids(address) if node not in self._mesh.peers]

    async def reach(self, address: str, timeout: float, *, everybody: bool) -> float:
        """Link to members of a cluster at other sites, as far as that is needed to ask one of them, or each.

        Returns what is left of ``timeout`` when it has come to something or to nothing, at the latest when a handshake
        must have ended.  Cancelling it leaves handshakes in progress that end by themselves.
        """
        await trio.lowlevel.checkpoint()  # not at the end: what is found there may have gone when the caller looks
        version = self.directory.version
        present = self.remote_members.find(address)
        found = [member for member in present if member.node not in self._mesh.peers]
        linked = [member.node for member in present if member.node in self._mesh.peers]
        at_site = any(node not in self._clusters for node in self._membership.member_ids(address))
        deadline = trio.current_time() + timeout
        ready = [member for member in found if self._links.may_try(member.site, member.node)]
        own = self._membership.order.rank(self._site, 0)
        has_others = everybody
        if at_site and not linked and ready and self.remote_members.rank(ready[0]) < own:
            at_site, has_others = False, True  # those are asked before the members here
            ready = [member for member in ready if self.remote_members.rank(member) < own]
        # Those that do not answer must not take from all others the time in which these do.
        with trio.move_on_after(min(timeout / 2 if has_others else timeout, self._config.handshake_timeout)):
            if everybody:
                await self._links.all(ready)
            elif at_site or linked:
                for member in ready[: max(0, _SPARE - len(linked))]:
                    self._links.begin(member)
                while not at_site and not self._can_be_asked(address) and self._broken.intersection(linked):
                    await self._news.park()
                self._reached[address] = version
            else:
                doing = [self._links.begin(member) for member in ready[:_AT_ONCE]]
                nodes = {member.node for member in ready[:_AT_ONCE]}
                while not all(done.is_set() for done in doing) and not nodes.intersection(self._mesh.peers):
                    await self._news.park()
        return time_left(deadline)

    def _can_be_asked(self, address: str) -> bool:
        picker = self._membership.picker(address)
        return picker is not None and picker.pick() is not None

    async def reach_nodes(
        self, nodes: Collection[Subscribing], has_interest_of: Callable[[NodeId], bool], *, within: float | None = None
    ) -> int:
        """See ``RemoteLinks.reach_subscribers``."""
        return await self._links.reach_subscribers(nodes, has_interest_of, within=within)

    def begin_nodes(self, nodes: Collection[Subscribing]) -> None:
        """See ``RemoteLinks.begin_subscribers``."""
        self._links.begin_subscribers(nodes)

    # -- what changes ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the directory; run it in one task."""
        while True:
            with trio.move_on_at(self._settles):
                await self._wakeup.wait()
            if trio.current_time() >= self._settles:
                self._anew = True
                self._settles = math.inf
            with self._mesh.survive("directory of sites"):
                self._follow()

    def _notify_changes(self) -> None:
        self._news.unpark_all()

    def changed(self) -> None:
        """Look at all again: trusted keys, or the rights to serve, may have changed."""
        self._anew = True
        self._wakeup.wake()

    def follow(self) -> None:
        """The directory may have changed: what has changed in it is looked at, and nothing else."""
        self._wakeup.wake()

    def _follow(self) -> None:
        """Break connections whose route is gone, and give up members that their site no longer has."""
        directory = self.directory
        if self._identity is not self._mesh.identity:
            self._identity, self._anew = self._mesh.identity, True
        rerouted, relisted = directory.pop_changes()
        routes = [*itertools.chain.from_iterable(map(self._routes.at, sorted(rerouted)))]
        nodes: Iterable[NodeId] = sorted(relisted.union(self._unreached))
        if self._anew:
            self._anew = False
            routes, nodes = list(self._routes), list(self._clusters)
        for route in routes:
            origins = directory.gateways(route.target[0])
            if not any(route.path in directory.routes_to(origin) for origin in origins):
                peer = self._mesh.peers.get(route.target[1])
                if peer is not None:
                    peer.returning = bool(origins)
                route.break_off()
        self._unreached.clear()
        for node in nodes:
            peer, clusters = self._mesh.peers.get(node), self._clusters.get(node)
            if peer is None or clusters is None:
                continue
            if not directory.reaches(peer.site):
                self._unreached.add(node)
                continue
            if clusters and self._is_gone(peer.site, node):
                self._mesh.drop(node, f"site {peer.site!r} says that it is gone")
            else:
                self._place(peer)
        subscriptions = directory.subscriptions
        if subscriptions.pop_changed():
            self.subscribers_version += 1
        for node in [*subscriptions.withdrawn]:
            peer = self._mesh.peers.get(node)
            if peer is None or not peer.at_remote_site:
                subscriptions.withdrawn.discard(node)
            elif directory.reaches(peer.site) and directory.is_fully_exported(peer.site):
                subscriptions.withdrawn.discard(node)
                self._nursery.start_soon(self._see_to, peer)
        self.copies.routes_changed()
        self.relay.routes_changed()
        self._membership.news()
        self._news.unpark_all()

    def resubscriptions(self) -> dict[RemoteSubscriber, bool]:
        """Return who at other sites wants events that did not at the last call (True), and the other way round."""
        return self.directory.subscriptions.pop_changes()

    def _is_gone(self, site: str, node: NodeId) -> bool:
        """Return True if a site has withdrawn a member: a gateway that has named it, or all once they have settled."""
        directory = self.directory
        if directory.lists(site, node) or not directory.is_fully_exported(site):
            return False
        if any(map(directory.is_accepted, self._listed.get(node, ()))):
            return True
        settles = directory.settles(site, self._config.site_settling)
        if settles > trio.current_time():
            self._settles = min(self._settles, settles)
            return False
        return True

    async def _see_to(self, peer: Peer) -> None:
        """Give up a subscriber that its site says is none any more, unless it answers: it may have other business."""
        with trio.move_on_after(self._config.handshake_timeout) as scope:
            await self._mesh.barrier(peer.node)
        if scope.cancelled_caught and self._mesh.peers.get(peer.node) is peer:
            self._mesh.drop(peer.node, f"site {peer.site!r} says that it subscribes to nothing, and it does not answer")

    def _place(self, peer: Peer) -> None:
        """Have a linked node asked for what its site exports of it and what it may serve."""
        listing = frozenset(self.directory.listing(peer.site, peer.node))
        if listing:
            self._listed[peer.node] = listing
        route = self.directory.best_route(peer.site)
        exported = self.directory.memberships(peer.site, peer.node)
        clusters = {name for name, proof in exported if self._membership.may_serve(peer.identity, name, proof)}
        doubted = self._doubts.note(peer.site, peer.node, {name for name, _ in exported} - clusters)
        if doubted:
            self._mesh.refusals["member that has no right to be one"] += doubted
        realm = peer.identity.other_realm
        if realm is not None:
            clusters = {qualified(realm.alias, name) for name in clusters if realm.may_use(name)}
        if clusters != self._clusters.get(peer.node):
            self._clusters[peer.node] = clusters
            distance = len(route.path) if route is not None else 1
            self._membership.place_remote(peer.node, self.remote_members.name_of(peer.site), distance, clusters)

    # -- what arrives ---------------------------------------------------------------------------------------

    def _receive_carried(self, peer: Peer, message: kinds.Carry) -> None:
        if peer.at_remote_site:
            raise RemoteProtocolError("a carried frame comes from a gateway")
        self._mesh.check_not_nested(kinds.Carry)
        if self.relay.is_here(message):
            peer.check_gateway()  # frames that are carried are under no limit of an address
            self._mesh.receive_carried(message.frame, kinds.Carry, carrier_of(message.source_site))
        else:
            self.relay.forward(peer, message)

    def receive_sealed(self, site: str, source: NodeId, frame: bytes) -> None:
        """Receive events for this node, sealed by a publisher of another site."""
        self._opener.receive(site, source, frame)

    def _receive_copy(self, peer: Peer, message: kinds.Copy) -> None:
        if self.relay.receive_copy(peer, message):
            self.receive_sealed(message.source_site, node_of(message.source), message.frame)

    def _receive_refused(self, peer: Peer, message: kinds.CarryRefused) -> None:
        if peer.at_remote_site:
            raise RemoteProtocolError("a refusal comes from a gateway")
        if self.relay.is_here(message):
            peer.check_gateway()
            self.refused(message.source_site, node_of(message.source), message.reason)
        else:
            self.relay.forward(peer, message)

    def refused(self, site: str, node: NodeId, reason: int) -> None:
        """A gateway does not carry what goes to a node, or only more slowly.

        It could drop it without a word: this is only a hint.  It is one for what goes to that node at that site: the
        gateways of another realm, which speak of their own sites, have nothing to say of a node elsewhere.
        """
        if reason in (BUSY, READY):
            routes: list[GatewayRoute | CopyRoute] = [*self._routes.to(site, node)]
            if node == ANYBODY.hex() and not realm_of_site(site):  # events do not go there
                routes.append(self.copies)
            for route in routes:
                route.pause() if reason == BUSY else route.resume()
            return
        self._mesh.refusals[f"not carried: {REASONS.get(reason, 'unknown')}"] += 1
        meant = self._routes.to(site, node)
        for route in meant:
            route.break_off()
        peer = self._mesh.peers.get(node)
        if reason in (GONE, NOT_EXPORTED) and (meant or (peer is not None and peer.site == site)):
            self._links.put_off(site, node)
            if node not in self._dropping:
                self._dropping.add(node)
                self._nursery.start_soon(self._drop, site, node, reason)

    async def _drop(self, site: str, node: NodeId, reason: int) -> None:
        """Give a peer up outside of the loop that reads messages."""
        self._dropping.discard(node)
        peer = self._mesh.peers.get(node)
        if peer is not None and peer.at_remote_site and peer.site == site:
            self._mesh.drop(node, f"a gateway refuses: {REASONS[reason]}")

    # -- nodes on the route ---------------------------------------------------------------------------------

    async def find_hop(self, target: tuple[str, NodeId], hops: int, number: int) -> Hop | None:
        """Ask which gateway is ``hops`` gateways behind the first one on the way to a node of another site.

        The last one answers whatever is behind it.  It is a message that goes where frames for that node do, and is
        answered where its hops are used up, as with traceroute.  Waits for the answer without end; cancelling it leaves
        nothing behind.

        Args:
            target: the node, with the site as the directory names it.
            hops: 0 and above.
            number: a number that nobody can guess, of 48 bits.

        Returns:
            None if no way leads there, or the link to the first gateway is full.
        """
        site, node = target
        route = self._routes.path(site)
        link = None if route is None else self._routes.link_to(route.neighbour)
        if link is None:
            return None
        answered, found = self._asking[number] = trio.Event(), list[Hop]()
        own = (self._site, bytes.fromhex(self._mesh.node))
        try:
            link.post(kinds.Trace(hops, site, bytes.fromhex(node), *own, number), 0, CONTROL_RESERVE)
            await answered.wait()
        except NotSent:
            return None
        finally:
            del self._asking[number]
        return found[0]

    def _receive_trace(self, peer: Peer, message: kinds.Trace) -> None:
        if peer.at_remote_site:
            raise RemoteProtocolError("a question who is on the way goes to gateways")
        self.relay.forward(peer, message)

    def _receive_traced(self, peer: Peer, message: kinds.Traced) -> None:
        if peer.at_remote_site:
            raise RemoteProtocolError("who is on the way is told to a node by its gateway")
        if self.relay.is_here(message):
            peer.check_gateway()
            self.traced(message.source_site, node_of(message.source), message.number)
        else:
            self.relay.forward(peer, message)

    def traced(self, site: str, node: NodeId, number: int) -> None:
        """A gateway says that it is on the route."""
        answered, found = self._asking.get(number, (None, None))
        if answered is not None and found is not None:
            found.append(Hop(site, node))
            answered.set()

    def _receive_allowed(self, peer: Peer, message: kinds.Allowed) -> None:
        self._listen_to(peer)
        self.border.receive_untrusted(peer.node, message)

    def _receive_route(self, peer: Peer, message: kinds.Route) -> None:
        self._listen_to(peer)
        self.directory.receive_route_untrusted(peer.node, message, trio.current_time())
        self._wakeup.wake()

    def _receive_exports(self, peer: Peer, message: kinds.Exports) -> None:
        self._listen_to(peer)
        question = self.directory.receive_exports_untrusted(peer.node, message, trio.current_time())
        if question is not None:
            peer.link.post(question, 0, CONTROL_RESERVE)
        self._wakeup.wake()

    def _listen_to(self, peer: Peer) -> None:
        if peer.at_remote_site or peer is self._mesh.own:
            raise RemoteProtocolError("only a gateway of this site tells of others")
        peer.check_gateway()
        self.directory.add(peer.node, trio.current_time(), local=True, owner=peer.identity.owner)

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """A node of another site is linked: it may be asked."""
        if peer.at_remote_site:
            self._links.linked(peer.node)
            self._place(peer)
            self._news.unpark_all()

    def frames_lost(self, peer: Peer) -> None:
        """Gateways send everything anew by themselves.  A node of another site may be asked again."""
        if peer.at_remote_site and peer.link.is_up:
            self._broken.discard(peer.node)
            peer.returning = False
            self._news.unpark_all()

    def peer_unreachable(self, node: NodeId) -> None:
        """Nothing leads through a gateway whose connection broke; it sends everything anew when it is back."""
        self._forget(node)
        peer = self._mesh.peers.get(node)
        if peer is not None and peer.at_remote_site:
            self._broken.add(node)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """Nothing leads through it, and nobody there is asked, any more."""
        self._forget(peer.node)
        self._clusters.pop(peer.node, None)
        self._listed.pop(peer.node, None)
        self._doubts.forget(peer.node)
        self._links.lost(peer.node)
        self._broken.discard(peer.node)
        self._news.unpark_all()
        self.border.forget(peer.node)
        if peer.at_remote_site:
            self.copies.forget(peer.site, peer.node)
            self._reached.clear()
            self.subscribers_version += 1
            self._wakeup.wake()

    def _forget(self, node: NodeId) -> None:
        if self.directory.is_local(node):
            self.directory.forget(node)
            self._wakeup.wake()
