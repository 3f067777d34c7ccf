"""Forwarding: the next hop of each frame that passes a gateway, and which frames go no further.

Plain calls: every frame between two sites takes this path.  Forwarding never waits: senders to a busy link are asked to
pause (``iris.federation.backpressure``).  A frame for a full link is dropped and counted, and its session notices.  A
link holds at most ``Config.link_bytes``.
"""

from __future__ import annotations

import math
from collections import Counter
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, final

import trio
from msgspec.structs import replace

from iris.cluster.directory import ExportIndex, SitePath
from iris.cluster.mesh import Mesh, Peer, PeerTable
from iris.cluster.routes import (
    ANYBODY,
    BUSY,
    GONE,
    HOPS,
    HOPS_AT,
    NO_ROUTE,
    NODE,
    NOT_EXPORTED,
    PAUSE,
    READY,
    STALLED,
    CopiesAside,
    Flows,
    Targets,
    Waiting,
    carrier_of,
    copy_message,
    open_envelope,
    split_nodes,
    targets_untrusted,
)
from iris.cluster.sites import Sites
from iris.federation import firewall as checkpoint
from iris.federation.backpressure import Backpressure, FrameFlow
from iris.federation.firewall import Firewall
from iris.federation.realm_names import inward_untrusted, outward_site
from iris.kernel import wire
from iris.kernel.buffer_pool import LARGE
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import Link
from iris.kernel.names import NodeId, is_site, realm_of_site
from iris.kernel.wire import kinds, node_of

_CODES: Final = MappingProxyType({"gone": GONE, checkpoint.NOT_EXPORTED: NOT_EXPORTED, "no route": NO_ROUTE})
"""Reasons that are reported to a sender."""

_MAX_SLOWED: Final = 4096
"""Senders of which it is kept that they were asked to pause."""


_TRACE: Final = 128
"""Size in bytes that a question which gateways are on the route counts as, where a neighbour has a rate."""

_DATA: Final = bytes((wire.DATA,))


class _Passage(NamedTuple):
    """Forwarding entry of one flow."""

    peer: Peer
    """The peer that the frames come from."""
    site: str
    """The site that they go to."""
    path: SitePath | None
    """The route there; None at this gateway's own site."""
    link: Link
    companion: bool
    """True if they are permitted because they come from another gateway of this site."""


class HomeSite(Protocol):
    """The own site of a gateway, as forwarding asks for it.  Plain calls in the task that reads; none may block."""

    @property
    def exports(self) -> ExportIndex:
        """Exports of this gateway, by node."""
        ...

    def is_exported(self, node: NodeId, site: str) -> bool:
        """Return whether a node of this site serves something that this gateway exports to another site."""
        ...

    def is_settled(self, site: str) -> bool:
        """Return whether this gateway, and those of a site, have been there long enough to know their sites."""
        ...

    def is_gone(self, node: NodeId) -> bool | None:
        """Return whether a node of this site has gone; None if it is not known at all."""
        ...


class ForwardingLimits(NamedTuple):
    """The limits of one gateway."""

    transit: bool
    """True if frames between other sites pass."""
    rate: float | None
    """Rate limit of one neighbour, in bytes per second. None: there is none."""


@final
class GatewayFrames:
    """The first look at what gateways of other sites bring; see ``FrameFilter``."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding

    def examine(self, peer: Peer, batch: bytes | memoryview) -> bool:
        """See ``FrameFilter.examine``."""
        return self._forwarding.examine_from_gateway(peer, batch)


@final
class Forwarding:
    """Forwarding at one gateway; see ``SiteForwarder``.

    Args:
        site_mesh: the mesh of its own site.
        between: the peers that the mesh of gateways will have.
        sites: other sites, as this node reaches them.
        home: what the gateway knows of its own site.
        limits: whether frames between other sites pass, and how many.
    """

    def __init__(
        self, site_mesh: Mesh, between: PeerTable, sites: Sites, home: HomeSite, limits: ForwardingLimits
    ) -> None:
        self.refused: Counter[str] = Counter()
        """Frames that were not carried, by reason."""
        self.received = self.carried = self.carried_bytes = 0
        self._site_mesh = site_mesh
        self._between = between
        self._sites = sites
        self._directory = sites.directory
        self._home = home
        self._realm_id = site_mesh.identity.realm_id
        self._transit = limits.transit
        self._slowed: dict[FrameFlow, float] = {}
        self.pressure: Final = Backpressure(site_mesh.config.link_bytes, self)
        self.checkpoint: Final = Firewall(home, self._directory, limits.rate)
        self._outbound_flows: Flows[_Passage] = Flows()
        self._inbound_flows: Flows[_Passage] = Flows()
        self._aside: Final = CopiesAside()
        self._has_ended = False
        self._looked = -1
        """Version of the directory at which what waits for a route was last looked at."""
        self.from_gateways: Final = GatewayFrames(self)
        """First look at what gateways of other sites bring."""

    def __repr__(self) -> str:
        return f"<Forwarding: {self.carried} of {self.received} frames carried>"

    def receive_from(self, between: Mesh) -> None:
        """Forward what gateways of other sites bring, by the mesh whose peers these are."""
        for kind in (kinds.Carry, kinds.CarryRefused, kinds.Trace, kinds.Traced):
            between.register(kind, self._forward_inbound)
        between.register(kinds.Copy, self._divide_inbound)

    def forward(self, peer: Peer, message: kinds.Carried) -> None:
        """Forward a frame of a node, or gateway, of this site; raise RemoteProtocolError if it may not send that."""
        _check_ends_untrusted(message)
        source, own = node_of(message.source), self._directory.own
        # The source of a frame is its sender's word. It must be the very node that hands the frame over; only another
        # gateway of this site, which has checked the same, may bring frames of others.
        if not self._directory.is_local(peer.node) and (message.source_site, source) != (own.site, peer.node):
            raise RemoteProtocolError("a node hands over frames of its own only")
        self.received += 1
        if isinstance(message, kinds.Carry) and message.site != own.site and message.source_site == own.site:
            reason = self.checkpoint.refusal(source, message.site, node_of(message.target), message.frame)
            if reason is not None:
                self._refuse(message, reason)
                return
        self._carry(message)

    def _forward_inbound(self, peer: Peer, message: kinds.Carried) -> None:
        """Forward a frame that a gateway of another site has brought."""
        if peer.other_realm:
            message = inward_untrusted(message, self._realm_id, peer.identity.other_realm_id)
        _check_ends_untrusted(message)
        site, source_site, own = message.site, message.source_site, self._directory.own
        self.received += 1
        # A frame from outside that claims to come from this site is forged, or its route has formed a circle.
        if source_site == own.site:
            self.refused["comes from this site and from outside"] += 1
            return
        if isinstance(message, kinds.Carry):
            target, source, frame = message.target, message.source, message.frame
            if not self.checkpoint.within_rate(peer.node, len(message.frame), trio.current_time()):
                self._slow_down(FrameFlow(source_site, source, site, target))
                return
            if site == own.site:
                reason = self.checkpoint.refusal(node_of(target), source_site, node_of(source), frame)
                if reason is not None:
                    self._refuse(message, reason)
                    return
        elif isinstance(message, kinds.Trace) and not self.checkpoint.within_rate(
            peer.node, _TRACE, trio.current_time()
        ):
            self.refused[checkpoint.TOO_FAST] += 1
            return
        if site != own.site and not self._transit:
            self.refused["no transit"] += 1
            return
        self._carry(message)

    def _carry(self, message: kinds.Carried) -> None:
        site, target, own = message.site, node_of(message.target), self._directory.own
        if isinstance(message, kinds.Trace) and (message.hops <= 0 or site == own.site):
            # Answered here, and never by a node behind: it would learn of what is not exported to it.
            self.carried += 1
            self.received += 1
            asker = (message.source_site, message.source)
            self._carry(kinds.Traced(HOPS, *asker, own.site, bytes.fromhex(own.gateway), message.number))
            return
        # Routes may form a circle while gateways learn of a change; the hop count ends it.
        if message.hops <= 0:
            self.refused["too many hops"] += 1
            return
        if (site, target) == own:
            self._deliver(message)
            return
        named = self._named_onward(site, message.source_site)
        if named is None:
            self.refused["no transit"] += 1
            return
        link = self._next_link(site, target)
        if link is None:
            self._refuse(message, "gone" if site == self._directory.own.site else "no route")
            return
        size = len(message.frame) if isinstance(message, kinds.Carry) else 0
        onward = replace(message, hops=message.hops - 1, source_site=named)
        try:
            # The frame goes on as the bytes that it came as: this gateway has no key that opens it, and needs none.
            link.post_carrying(onward, size, wire.carried_by(size))
        except NotSent:
            self.refused["next link full"] += 1
            return
        self.carried += 1
        self.carried_bytes += size
        if size and self.pressure.is_high(link):
            flow = FrameFlow(message.source_site, message.source, site, message.target)
            self.pressure.hold(link, flow, trio.current_time())

    def _named_onward(self, site: str, source_site: str) -> str | None:
        """Return what the site that a frame is from is called on its next link; None if it may not go there."""
        route = self._directory.best_route(site) if realm_of_site(site) else None
        peer = None if route is None else self._between.get(route.neighbour)
        if peer is None or not peer.other_realm:
            return source_site
        return None if realm_of_site(source_site) else outward_site(source_site, self._realm_id)

    def _next_link(self, site: str, target: NodeId) -> Link | None:
        """Return the link over which a frame leaves, if there is one."""
        if site != self._directory.own.site:
            route = self._directory.best_route(site)
            return None if route is None else self._link_onward(route.neighbour)
        peer = self._site_mesh.peer(target)
        return None if peer is None or peer.at_remote_site else peer.link

    # -- frames that travel alone ---------------------------------------------------------------------------

    def examine(self, peer: Peer, batch: bytes | memoryview) -> bool:
        """See ``FrameFilter.examine``: of what nodes of this site bring."""
        return self._pass(peer, batch, self._outbound_flows, outbound=True)

    def examine_from_gateway(self, peer: Peer, batch: bytes | memoryview) -> bool:
        """See ``FrameFilter.examine``: of what gateways of other sites bring."""
        return self._pass(peer, batch, self._inbound_flows, outbound=False)

    def _pass(self, peer: Peer, batch: bytes | memoryview, flows: Flows[_Passage], *, outbound: bool) -> bool:
        """Forward a batch that is a single frame of a session as it is, if it may pass.

        It is large, or the next link is idle.  Otherwise it is decoded, and refused, carried or counted as ever.
        """
        found = flows.look(batch)
        if found is None:
            return False
        envelope, passage, begin = found
        # Data of sessions only: the first frame of a handshake takes the slow path, where the firewall examines it.
        if batch[begin : begin + 1] != _DATA or not 0 < batch[HOPS_AT] <= HOPS:
            return False
        if passage is None or passage.peer is not peer or self._directory.best_route(passage.site) != passage.path:
            passage = self._passage(peer, envelope, outbound=outbound)
            if passage is None:
                return False
            flows.remember(envelope, passage)
        if passage.companion and not self._directory.is_local(peer.node):
            return False
        size = len(batch) - begin
        onward = bytearray(batch) if isinstance(batch, bytes) else batch  # which is nobody else's
        link = passage.link
        onward[HOPS_AT] -= 1
        if link.send_alone(onward, size):
            self.received += 1
            self.carried += 1
            self.carried_bytes += size
            return True
        if size >= LARGE and link.is_up:
            self.received += 1
            self._pass_behind(link, envelope, bytes(onward), size)
            return True
        onward[HOPS_AT] += 1
        if not link.is_up:
            flows.forget(envelope)
        return False

    def _pass_behind(self, link: Link, envelope: bytes, batch: bytes, size: int) -> None:
        """Have a large frame wait for its turn on the next link as it is; decoded, it would be copied three times."""
        try:
            link.post_encoded(batch, size)
        except NotSent:
            self.refused["next link full"] += 1
            return
        self.carried += 1
        self.carried_bytes += size
        opened = open_envelope(envelope)
        if opened is not None and self.pressure.is_high(link):
            self.pressure.hold(
                link, FrameFlow(opened.source_site, opened.source, opened.site, opened.target), trio.current_time()
            )

    def _passage(self, peer: Peer, envelope: bytes, *, outbound: bool) -> _Passage | None:
        """Return how frames of a flow pass, None if they do not or have to be looked at each."""
        opened, own = open_envelope(envelope), self._directory.own
        if (
            opened is None
            or (opened.site, opened.target.hex()) == own
            or peer.other_realm
            or realm_of_site(opened.site)
        ):
            return None
        companion = outbound and self._directory.is_local(peer.node)
        if outbound:
            is_own = (opened.source_site, opened.source.hex()) == (own.site, peer.node)
            if peer.at_remote_site or not (companion or is_own):
                return None
        elif (
            opened.source_site == own.site
            or self.checkpoint.is_limited
            or not (self._transit or opened.site == own.site)
        ):
            return None
        link = self._next_link(opened.site, NodeId(opened.target.hex()))
        return (
            None
            if link is None
            else _Passage(peer, opened.site, self._directory.best_route(opened.site), link, companion)
        )

    # -- copies of events -----------------------------------------------------------------------------------

    def divide(self, peer: Peer, message: kinds.Copy) -> None:
        """Forward events of a node, or gateway, of this site; raise RemoteProtocolError if it may not send them."""
        source_site, own = message.source_site, self._directory.own
        local = self._directory.is_local(peer.node)
        publisher = (source_site, node_of(message.source))
        if not is_site(source_site) or (not local and publisher != (own.site, peer.node)):
            raise RemoteProtocolError("a node hands over events of its own only")
        self.received += 1
        self.routes_changed()  # what waits goes first
        wanted = targets_untrusted(message.targets)
        if source_site == own.site:
            wanted.pop(own.site, None)
        self._divide(message, wanted, peer.identity.owner)

    def _divide_inbound(self, peer: Peer, message: kinds.Copy) -> None:
        """Forward events that a gateway of another site has brought."""
        if peer.other_realm:
            message = inward_untrusted(message, self._realm_id, peer.identity.other_realm_id)
        source_site, own = message.source_site, self._directory.own
        if not is_site(source_site):
            raise RemoteProtocolError("a copy says whose it is")
        self.received += 1
        wanted = targets_untrusted(message.targets)
        if source_site == own.site:
            self.refused["comes from this site and from outside"] += 1
            return
        if not self.checkpoint.within_rate(peer.node, len(message.frame), trio.current_time()):
            self._slow_down(FrameFlow(source_site, message.source, own.site, ANYBODY))
            return
        if not self._transit and wanted.keys() != {own.site}:
            self.refused["no transit"] += 1
            wanted = {site: nodes for site, nodes in wanted.items() if site == own.site}
        if own.site in wanted:
            wanted[own.site] = self._hearers(own.site, wanted[own.site], realm_of_site(source_site))
        self.routes_changed()
        self._divide(message, wanted, peer.identity.owner)

    def _hearers(self, site: str, nodes: bytes, realm_id: str = "") -> bytes:
        """Return those of some nodes that want events of a realm, as far as that may be known at the other site."""
        own = site == self._directory.own.site
        subscribes = self._home.exports.subscribes if own else self._directory.subscribes
        passed = b"".join(node for node in split_nodes(nodes) if subscribes(site, node_of(node), realm_id))
        if len(passed) != len(nodes):
            self.checkpoint.refused[checkpoint.NOT_EXPORTED] += 1
            self.refused[checkpoint.NOT_EXPORTED] += (len(nodes) - len(passed)) // NODE
        return passed

    def _divide(self, message: kinds.Copy, targets: Targets, owner: str, since: float | None = None) -> None:
        """Send one copy over each link that leads to some of the targets; set it aside for those that have no route.

        Args:
            message: the copy.
            targets: nodes by site.
            owner: owner of the node that has handed it over.
            since: time from which it waits, if it does.
        """
        if message.hops <= 0:
            self.refused["too many hops"] += 1
            return
        nexts: dict[tuple[Link, str], dict[str, bytes]] = {}
        own = self._directory.own
        for site, nodes in targets.items():
            if site == own.site:
                self._hand_out(message, nodes)
                continue
            route = self._directory.best_route(site)
            link = None if route is None else self._link_onward(route.neighbour)
            if link is None:
                if self._directory.has_reached(site):
                    self._set_aside(site, nodes, message, owner, since)
                elif message.source_site != own.site or self._hearers(site, nodes):
                    self.refused["no route"] += 1
                continue
            named = self._named_onward(site, message.source_site)
            if named is None:
                self.refused["no transit"] += 1
                continue
            if message.source_site == own.site:
                nodes = self._exported_hearers(site, nodes, message, owner, since)  # noqa: PLW2901
            if nodes:
                nexts.setdefault((link, named), {})[site] = nodes
        for (link, named), part in nexts.items():
            self._post_copy(link, message, named, part)

    def _exported_hearers(self, site: str, nodes: bytes, message: kinds.Copy, owner: str, since: float | None) -> bytes:
        """Return those of some nodes that a site exports; a route comes before its exports, and the others wait."""
        if self._directory.is_fully_exported(site):
            return self._hearers(site, nodes)
        known, unknown = b"", b""
        for node in split_nodes(nodes):
            if self._directory.subscribes(site, node_of(node)):
                known += node
            else:
                unknown += node
        if unknown:
            self._set_aside(site, unknown, message, owner, since)
        return known

    def _set_aside(self, site: str, nodes: bytes, message: kinds.Copy, owner: str, since: float | None) -> None:
        waiting = Waiting(trio.current_time() if since is None else since, owner, nodes, message)
        # Publishers of another realm get no room here, as on a busy link: theirs could take that of all others.
        if self._has_ended or realm_of_site(message.source_site) or not self._aside.add(site, waiting):
            self.refused["no route"] += 1

    @property
    def is_waiting(self) -> bool:
        """True if events wait here for a route."""
        return self._aside.bytes > 0

    @property
    def waiting_bytes(self) -> int:
        """Memory that events take which wait here for a route, in bytes."""
        return self._aside.bytes

    def routes_changed(self) -> None:
        """See ``SiteForwarder``: copies of events that wait for a route."""
        if not self.is_waiting or self._looked == self._directory.version:
            return
        self._looked = self._directory.version
        self.give_up_late()
        for site in self._aside.sites:
            if self._directory.reaches(site):
                for waiting in self._aside.pop(site, math.inf):
                    self._divide(waiting.copy, {site: waiting.nodes}, waiting.owner, waiting.since)

    def give_up_late(self) -> None:
        """Refuse events that have waited ``Config.site_patience`` for a route.  Called now and then."""
        self._give_up(trio.current_time() - self._site_mesh.config.site_patience)

    def end(self) -> None:
        """Refuse all that waits, and keep nothing from now on: the gateway is closed."""
        self._has_ended = True
        self._give_up(math.inf)

    def _give_up(self, before: float) -> None:
        for site in self._aside.sites:
            late = self._aside.pop(site, before)
            if late:
                self.refused["no route"] += len(late)

    def _hand_out(self, message: kinds.Copy, nodes: bytes) -> None:
        """Send events to nodes of this site, each on its own link."""
        own = self._directory.own
        for node in split_nodes(nodes):
            if node.hex() == own.gateway:
                self.carried += 1
                self._sites.receive_sealed(message.source_site, node_of(message.source), message.frame)
                continue
            peer = self._site_mesh.peers.get(NodeId(node.hex()))
            if peer is None or peer.at_remote_site:
                self.refused["gone"] += 1
            else:
                self._post_copy(peer.link, message, message.source_site, {own.site: node})

    def _post_copy(self, link: Link, copy: kinds.Copy, source_site: str, targets: Targets) -> None:
        realm = realm_of_site(source_site)
        if realm and realm != self._realm_id and self.pressure.is_high(link):
            self.refused["next link busy"] += 1  # publishers of another realm do not wait: only what has room goes on
            return
        message, size = copy_message(copy.hops - 1, source_site, copy.source, targets, copy.frame)
        try:
            link.post(message, size)
        except NotSent:
            self.refused["next link full"] += 1
            return
        self.carried += 1
        self.carried_bytes += len(copy.frame)
        # As at home: publishers wait for a link that is full and moves, and one that stands still holds up nobody.
        # A realm whose gateways are slow misses events: it holds up no publisher of this one.
        if not realm and self.pressure.is_high(link) and not link.is_stalled(STALLED):
            site = next(iter(targets))
            flow = FrameFlow(
                source_site, copy.source, self._directory.own.site if realm_of_site(site) else site, ANYBODY
            )
            self.pressure.hold(link, flow, trio.current_time())

    # -- inside ---------------------------------------------------------------------------------------------

    def _slow_down(self, flow: FrameFlow) -> None:
        """Count a frame that is beyond the rate, and have its sender pause: what it sends meanwhile would be lost."""
        self.refused[checkpoint.TOO_FAST] += 1
        now = trio.current_time()
        if now - self._slowed.get(flow, -PAUSE) >= PAUSE / 2:
            if len(self._slowed) >= _MAX_SLOWED:
                self._slowed.clear()
            self._slowed[flow] = now
            self.report_pressure(flow, busy=True)

    def report_pressure(self, flow: FrameFlow, *, busy: bool) -> None:
        """See ``PressureNotices.report_pressure``."""
        self.received += 1
        code = BUSY if busy else READY
        self._carry(kinds.CarryRefused(HOPS, flow.source_site, flow.source, flow.site, flow.target, code))

    def _deliver(self, message: kinds.Carried) -> None:
        """Deliver a frame to this very node."""
        self.carried += 1
        if isinstance(message, kinds.Carry):
            self._site_mesh.receive_carried(message.frame, kinds.Carry, carrier_of(message.source_site))
        elif isinstance(message, kinds.Traced):
            self._sites.traced(message.source_site, node_of(message.source), message.number)
        elif isinstance(message, kinds.CarryRefused):
            self._sites.refused(message.source_site, node_of(message.source), message.reason)

    def _refuse(self, message: kinds.Carried, reason: str) -> None:
        """Count a frame that goes no further, and report it to its sender where that helps it."""
        self.refused[reason] += 1
        code = _CODES.get(reason)
        if code is not None and isinstance(message, kinds.Carry):
            site, target, source_site, source = message.site, message.target, message.source_site, message.source
            if code != NO_ROUTE and not self._is_final(reason, site, target, source_site):
                code = NO_ROUTE
            self.received += 1
            self._carry(kinds.CarryRefused(HOPS, source_site, source, site, target, code))

    def _is_final(self, reason: str, site: str, target: bytes, source_site: str) -> bool:
        """Return whether a refusal is one for good, so that the sender may give its peer up.

        A gateway that does not know its site or the other one yet must not have it do so: the two ends may have spoken
        for hours, and this gateway may have been started again a moment ago.  Its sender then tries again, for as long
        as it waits for a route (``Config.site_patience``).
        """
        if reason == "gone":
            gone = self._home.is_gone(node_of(target))
            return self._home.is_settled("") if gone is None else gone
        return self._home.is_settled(source_site if site == self._directory.own.site else site)

    def _link_onward(self, neighbour: NodeId) -> Link | None:
        """Return the link to the next gateway, if frames can leave over it now."""
        peer = self._between.get(neighbour) or self._site_mesh.peer(neighbour)
        return None if peer is None or peer.at_remote_site or not peer.link.is_up else peer.link

    def link_to(self, neighbour: NodeId) -> Link | None:
        """Frames of this very node take the same path as those of others, over its link to itself."""
        return None if self._link_onward(neighbour) is None else self._site_mesh.own.link


def _check_ends_untrusted(message: kinds.Carried) -> None:
    """Check the ends of a frame before anything is kept of it, or sent to them later, when it is no sender's fault.

    Raises:
        RemoteProtocolError: it is not between two sites.
    """
    if not (is_site(message.site) and is_site(message.source_site)):
        raise RemoteProtocolError("a carried frame says where it comes from and where it is to go")
