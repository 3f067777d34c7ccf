"""Gateway: a node that is also linked to gateways of other sites, and forwards frames that it cannot read.

A gateway has two meshes under one identity.  In its site it is a node like any other.  To gateways of other sites it
has links of their own, at addresses of their own, which carry only the directory of sites and forwarded frames.  The
membership of a site never leaves the site.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, final

import trio

from iris.cluster.address_rules import check_listening
from iris.cluster.directory import (
    Hop,
    SiteTag,
    TooManyChanges,
    hop_untrusted,
    message_size,
)
from iris.cluster.mesh import Mesh, MeshPorts, MeshSetting, Peer, PeerObserver, PeerTable, open_mesh
from iris.cluster.sites import Sites
from iris.federation.advertising import Advertiser
from iris.federation.forwarder import Forwarding, ForwardingLimits
from iris.federation.home_site import GatewaySite
from iris.federation.own_exports import SiteContents
from iris.federation.policy import Lists, Policy
from iris.federation.realm_names import check_dialled, inward_untrusted, split_peer, trusted_id
from iris.federation.reports import ReportSchedule
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.numerals import as_float, shown
from iris.kernel.tasks import Wakeup, open_background, protected_context
from iris.kernel.wire import Message, kinds
from iris.node.node import Node
from iris.node.parts import NodeParts
from iris.patterns.pubsub.interest import Terms
from iris.security.identity import PeerIdentity

T = TypeVar("T", bound=Message)

_log: Final = logging.getLogger("iris")

_GATHER: Final = 0.05
"""Seconds for which changes of the directory are collected before they are advertised, many in one message."""

_ALIVE_EVERY: Final = 2
"""Each neighbour is asked whether it lives once in so many intervals in which a member is probed: each second."""

_ALIVE_WITHIN: Final = 2.0
"""A neighbour that does not answer within this many seconds is given up; its connection may look well for minutes."""

_BUSY_TURNS: Final = 10
"""Checks of a neighbour while frames still leave for it: 16 MiB wait at most, and take 16 s at 1 MiB/s."""

_PAUSES: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach a gateway of another site; the last one repeats."""

_SENT_AWAY: Final = (
    "ends each link as soon as it is up: its log says why; its clock may differ by more than 300 s from the one here"
)

_SENT_AWAY_AT: Final = 2
"""Links in a row that end within seconds, until it is said that a gateway ends each."""

_RIVAL_PATIENCE: Final = 5.0
"""Seconds after which gateways of one site have named each other at the latest."""

_STILL: Final = 0.25
"""Seconds without a frame after which a gateway that leaves has forwarded what was in flight: more than the routes of
one session take to change."""

_FLOOD_PAUSE: Final = 30.0
"""Seconds for which advertisements of a neighbour that floods the directory are ignored."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatistics:
    """A snapshot of a gateway's counters.

    received = carried + refused, in frames; but of events, one that came may go on to several gateways and nodes, and
    each of these counts.  Those that wait for a route do not yet.
    """

    received: int
    """Refusals that this gateway sent are among them."""
    carried: int
    carried_bytes: int
    refused: Mapping[str, int]
    """Frames that were not carried, by reason."""
    waiting_bytes: int
    """Memory that events take which wait for a route to their site."""
    rejected: Mapping[str, int]
    """Frames, messages and handshakes of other gateways that were forged, malformed or out of date, by reason."""
    unreached: Mapping[str, str]
    """Gateways that this one dials and is not linked to, by address, each with the reason."""
    sites: tuple[str, ...]
    """Other sites that can be reached; those of other realms as ``REALM/SITE``."""
    neighbours: Mapping[NodeId, str]
    """Linked gateways of other sites, each with its site."""
    sent: int
    sent_bytes: int
    """Messages about sites that went to neighbours, nodes of this site included, and about how large they were."""
    not_advertised: int
    """Gateways of other sites that are not advertised, and exports of this one, for there are too many."""


@final
class GatewayParts:
    """The parts of a gateway that are there before its mesh: what it exports, and how it forwards.

    Args:
        of_node: parts of the node.
        sites: other sites, as the node reaches them.
        peers: the peers that the mesh of gateways will have.
        policy: rules for exports and imports.
        rate: bytes per second that one neighbour may send; None: any.
    """

    def __init__(self, of_node: NodeParts, sites: Sites, peers: PeerTable, policy: Policy, rate: float | None) -> None:
        near, directory = of_node.mesh, sites.directory
        self.directory: Final = directory
        self.policy: Final = policy
        self.lists: Final = Lists(policy, near)
        self.advertising: Final = Advertiser(
            directory, transit=policy.transit, realm_id=near.identity.realm_id, outward=self.lists
        )
        home = GatewaySite(
            of_node.membership,
            directory,
            self.lists,
            self.advertising,
            of_node.config.site_settling,
        )
        self.carrying: Final = Forwarding(near, peers, sites, home, ForwardingLimits(policy.transit, rate))


@final
class Gateway:
    """A gateway that is up.  Made by ``open_gateway``."""

    def __init__(self, node: Node, sites: Sites, between: Mesh, parts: GatewayParts) -> None:
        self.site: Final = node.site
        self.addresses: Final = between.listening
        """The URLs at which gateways of other sites reach this one; none if it only dials out."""
        of_node = node._parts
        self._site_mesh = of_node.mesh
        self._membership = of_node.membership
        self._pubsub = of_node.patterns.pubsub
        self._sites = sites
        self._between = between
        self._directory = parts.directory
        self._realm_id = self._site_mesh.identity.realm_id
        self._lists = parts.lists
        self._advertising = parts.advertising
        self._carrying = parts.carrying
        self._sent = self._sent_bytes = 0
        self._flooded: dict[NodeId, float] = {}
        self._reports = ReportSchedule()
        self._unreached: dict[str, str] = {}
        self._stale: set[NodeId] = set()
        self._ended: set[Hop] = set()
        """Origins to which a route has ended, as long as other gateways are not told."""
        self._wakeup = Wakeup()
        self._follows = True
        self._has_ended = False
        self._identity = self._site_mesh.identity
        """Identity of the gateway when subscriptions were last looked at: it says which realms are trusted."""
        self._contents = SiteContents(self._lists)
        self._lost = trio.lowlevel.ParkingLot()
        self._directory.permit(self._lists.may_import)
        self._allowed = kinds.Allowed(parts.policy.exports, parts.policy.export_topics, parts.policy.import_topics)
        sites.border.receive_untrusted(self._site_mesh.node, self._allowed)
        self._membership.link_everybody()  # it tells each of the other sites, and hears what each subscribes to
        for member in self._membership.nodes():
            self.place(member.node)
        self._membership.on_placed(self.place)
        for subscriber, pattern in self._pubsub.wanted():
            self._contents.subscribe(subscriber, pattern, 1)
        self._pubsub.on_interest_changed(self._interest_changed)
        self._carrying.receive_from(between)
        sites.relay.serve(self._carrying)
        for mesh in (self._site_mesh, between):
            mesh.register(kinds.ExportsWanted, self._receive_wanted)
        between.register(kinds.Route, self._receive_route)
        between.register(kinds.Exports, self._receive_exports)
        own_neighbours, remote_neighbours = _Neighbours(self, own_site=True), _Neighbours(self, own_site=False)
        self._site_mesh.observe(own_neighbours)
        between.observe(remote_neighbours)

    def __repr__(self) -> str:
        return f"<Gateway of site {self._directory.own.site!r} to {', '.join(self._directory.sites()) or 'none'}>"

    def statistics(self) -> GatewayStatistics:
        """Return a snapshot of the counters."""
        return GatewayStatistics(
            received=self._carrying.received,
            carried=self._carrying.carried,
            carried_bytes=self._carrying.carried_bytes,
            refused=dict(self._carrying.refused),
            waiting_bytes=self._carrying.waiting_bytes,
            rejected=dict(self._between.refusals),
            unreached=dict(self._unreached),
            sites=tuple(sorted(map(self._sites.remote_members.name_of, self._directory.sites()))),
            neighbours={
                node: self._sites.remote_members.name_of(peer.site) for node, peer in self._between.peers.items()
            },
            sent=self._sent,
            sent_bytes=self._sent_bytes,
            not_advertised=self._advertising.left_out + self._advertising.cut,
        )

    async def wait_for_site(self, site: str) -> None:
        """Wait until a site can be reached; one of another realm is ``REALM/SITE``.

        Raises:
            trio.ClosedResourceError: this gateway is closed, or is closed meanwhile.
        """
        while not self._has_ended and not self._directory.reaches(self._sites.remote_members.site_named(site)):
            await self._membership.wait_news()
        if self._has_ended:
            raise trio.ClosedResourceError("this gateway is closed: the block of its open_gateway has ended")

    # -- the directory --------------------------------------------------------------------------------------

    def _receive_route(self, peer: Peer, message: kinds.Route) -> None:
        led = self._leads_untrusted(peer, message)
        self._receive_directory(peer, message, self._directory.receive_route_untrusted)
        if led and not self._leads_untrusted(peer, message):  # of others nobody was told
            route = self._inward_untrusted(peer, message)
            self._ended.add(hop_untrusted(route.site, route.gateway))
            self._site_mesh.work.once("routes that have ended", self._retract)

    def _leads_untrusted(self, peer: Peer, message: kinds.Route) -> bool:
        """Return whether a route leads through a neighbour to the origin that its message names, if it names one."""
        with suppress(RemoteProtocolError):
            route = self._inward_untrusted(peer, message)
            origin = hop_untrusted(route.site, route.gateway)
            return any(path.neighbour == peer.node for path in self._directory.routes_to(origin))
        return False

    def _receive_exports(self, peer: Peer, message: kinds.Exports) -> None:
        self._receive_directory(peer, message, self._directory.receive_exports_untrusted)

    def _receive_directory(self, peer: Peer, message: T, receive: Callable[[NodeId, T, float], Message | None]) -> None:
        message = self._inward_untrusted(peer, message)
        try:
            question = receive(peer.node, message, trio.current_time())
            if question is not None:
                self._ask(peer.node, question)
        except TooManyChanges:
            self._flood(peer)
        except RemoteProtocolError as error:
            if peer.node in self._directory.neighbours:  # else it is not listened to, and may not know of it yet
                self._reports.impossible(peer, error)
            raise
        self.news()

    def _ask(self, neighbour: NodeId, question: Message) -> None:
        peer = self._peer(neighbour)
        if peer is not None:
            peer.link.post(question, 0, CONTROL_RESERVE)

    def _receive_wanted(self, peer: Peer, message: kinds.ExportsWanted) -> None:
        wanted = self._inward_untrusted(peer, message)
        origin = hop_untrusted(wanted.site, wanted.gateway)
        if peer.node in self._flooded:
            raise RemoteProtocolError("a gateway that floods the directory is not answered for now")
        try:
            self._advertising.answer_untrusted(peer.node, origin, trio.current_time())
        except TooManyChanges as error:
            if self._between.peers.get(peer.node) is not peer:
                # A node of this site: nothing leads through it that could be given up.
                self._reports.impossible(peer, error)
                raise
            self._flood(peer)
            return
        self._stale.add(peer.node)
        self.news()

    def _inward_untrusted(self, peer: Peer, message: T) -> T:
        return inward_untrusted(message, self._realm_id, peer.identity.other_realm_id) if peer.other_realm else message

    def _flood(self, peer: Peer) -> None:
        if peer.node not in self._flooded:
            _log.warning(
                "gateway %s of site %r floods the directory: not listened to for now",
                peer.node,
                peer.site,
                extra={"peer": peer.node, "site": peer.site},
            )
        self._flooded[peer.node] = trio.current_time()
        self._directory.forget(peer.node)

    def news(self) -> None:
        """Something has changed that may have to be advertised, and that the directory follows."""
        self._follows = True
        self._wakeup.wake()

    def _interest_changed(self, node: NodeId, added: Iterable[Terms], removed: Iterable[Terms]) -> None:
        for terms in removed:
            self._contents.subscribe(node, terms.pattern, -1)
        for terms in added:
            self._contents.subscribe(node, terms.pattern, 1)
        self.news()

    def place(self, node: NodeId) -> None:
        """Look again at what a node of this site serves."""
        self._contents.place(node, self._membership.served_by(node))

    async def run(self, nursery: trio.Nursery) -> None:
        """Keep neighbours informed."""
        nursery.start_soon(self._carrying.pressure.run)
        nursery.start_soon(self._watch_members)
        nursery.start_soon(self._look_after_neighbours)
        while True:
            await self._wakeup.wait()
            await trio.sleep(_GATHER)
            with self._site_mesh.survive("directory of sites"):
                self.advertise()

    async def _watch_members(self) -> None:
        while True:
            self._wakeup.wake()  # no more: what follows the directory is news of the membership, without end
            await self._membership.wait_news()

    def advertise(self) -> None:
        """Advertise to neighbours what has changed of the directory, and of what this site exports."""
        changed = {*self._directory.changed}
        self._directory.changed.clear()
        if self._export():
            changed.add(self._directory.own)
        stale, self._stale = self._stale, set()
        for neighbour in self._advertising.concerned(changed, stale):
            self._advertise_to(neighbour, None if neighbour in stale else changed)
        if self._stale or self._advertising.is_behind:
            self._wakeup.wake()
        self._reports.not_advertised(self._advertising.left_out, self._advertising.cut)
        if self._follows:
            self._follows = False
            self._sites.follow()

    def _retract(self) -> None:
        """Tell gateways what routes have ended before any frame goes over them instead.

        Until a gateway knows, its best route may lead back here, and each frame between the two would be lost when its
        hops are used up: on a fast network within milliseconds, and changes are collected for longer.  Links keep the
        order, so it knows before the first frame.
        """
        if not self._ended:
            return
        ended, self._ended = self._ended, set()
        with self._site_mesh.survive("directory of sites"):
            for gateway in self._advertising.concerned(frozenset(), {*self._directory.neighbours}):
                self._advertise_to(gateway, ended)

    def _export(self) -> bool:
        """Receive what has changed of what this site exports; return whether there is something."""
        if self._identity is not self._site_mesh.identity:
            self._identity = self._site_mesh.identity
            self._contents.examine()
        self._contents.accompany(filter(self._directory.is_local, self._directory.neighbours))
        return self._advertising.export(*self._contents.pop_changes())

    def _advertise_to(self, neighbour: NodeId, changed: set[Hop] | None) -> None:
        """Advertise to it what has changed, or all."""
        peer = self._peer(neighbour)
        if peer is None or peer.client:
            return
        messages = self._advertising.messages(neighbour, changed, trio.current_time())
        # Before anything of the directory: nodes link to other sites with it, and have to know what may cross.
        lists = [self._allowed] if changed is None and neighbour in self._site_mesh.peers else []
        for message in itertools.chain(lists, messages):
            size = message_size(message)
            try:
                peer.link.post(message, size, CONTROL_RESERVE)
            except NotSent:
                self._advertising.repeat(neighbour)
                self._stale.add(neighbour)
                return
            self._sent += 1
            self._sent_bytes += size

    def _peer(self, neighbour: NodeId) -> Peer | None:
        return self._between.peers.get(neighbour) or self._site_mesh.peers.get(neighbour)

    async def _look_after_neighbours(self) -> None:
        """Health check: drop neighbours that do not answer or are no longer admitted; report duplicate site names."""
        asked: set[NodeId] = set()

        async def ask(peer: Peer) -> None:
            try:
                for _ in range(_BUSY_TURNS):
                    with trio.move_on_after(_ALIVE_WITHIN):
                        await self._between.barrier(peer.node)
                        return
                    if not peer.link.waiting_bytes or peer.link.is_stalled(_ALIVE_WITHIN):
                        break  # else the question stands behind frames in flight over a slow link
                if self._between.peers.get(peer.node) is peer:
                    self._between.drop(peer.node, f"no answer for {_ALIVE_WITHIN:g} s")
            finally:
                asked.discard(peer.node)

        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(_ALIVE_EVERY * self._site_mesh.config.probe_interval)
                now = trio.current_time()
                self._carrying.give_up_late()
                self._between.renew_identity(self._site_mesh.identity)
                self._lists.ask_anew(self._directory, self._ask)
                for node, peer in list(self._between.peers.items()):
                    try:
                        self._between.check_peer(peer.identity)  # its right to be a gateway, for one
                    except AuthenticationError as error:
                        self._between.drop(node, str(error))
                        continue
                    if node not in asked:
                        asked.add(node)
                        nursery.start_soon(ask, peer)
                for node, since in list(self._flooded.items()):
                    if now - since > _FLOOD_PAUSE:
                        del self._flooded[node]
                        self._between.drop(node, "it had flooded the directory")
                self._reports.name_conflicts(self._directory.name_conflicts(now, _RIVAL_PATIENCE))

    async def keep_dialling(self, url: str, alias: str = "") -> None:
        """Have a link to the gateway at ``url``, perhaps of the realm ``alias``, for as long as this one is up."""
        attempt = brief = 0
        warned = False
        while True:
            try:
                peer = await self._between.connect([url], realm_id=trusted_id(self._site_mesh.identity, alias))
            except (NotSent, AuthenticationError, ConfigError) as error:
                self._unreached[url] = str(error)
                if not warned:
                    warned = True
                    _log.warning("%s; trying again", error, extra={"address": url, "reason": type(error).__name__})
                await trio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
                attempt += 1
                continue
            warned = False
            with trio.move_on_after(_PAUSES[-1]):
                await self._wait_lost(peer)
            if self._between.peers.get(peer.node) is peer:
                attempt = brief = 0
                if self._unreached.pop(url, None) is not None:
                    _log.info("gateway at %s is back", url, extra={"address": url})
                await self._wait_lost(peer)
            else:  # it lets others in and sends them away; once may be that it was closed, or its machine fails
                brief += 1
                if brief == _SENT_AWAY_AT:
                    _log.warning("gateway at %s %s; trying again", url, _SENT_AWAY, extra={"address": url})
                if brief >= _SENT_AWAY_AT:
                    self._unreached[url] = f"it {_SENT_AWAY}"
                await trio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
                attempt += 1

    async def _wait_lost(self, peer: Peer) -> None:
        while self._between.peers.get(peer.node) is peer:
            await self._lost.park()

    def neighbour_up(self, peer: Peer, *, own_site: bool) -> None:
        """A node or gateway is linked: it gets everything."""
        if peer.at_remote_site:
            return
        if not own_site:
            self._listen_to(peer)
        self._advertising.add(peer.node, self._directory.own.site if own_site else peer.site)
        if own_site:  # at once: it is not open before this gateway has answered it, and then knows whom it can ask
            self._advertise_to(peer.node, None)
        else:
            self._stale.add(peer.node)
        self.news()

    def neighbour_reset(self, peer: Peer, *, own_site: bool) -> None:
        """Advertisements to it and from it may be lost."""
        if not peer.at_remote_site:
            if not own_site:
                self._listen_to(peer)
            self._advertising.repeat(peer.node)
            self._stale.add(peer.node)
            self.news()

    def _listen_to(self, peer: Peer) -> None:
        """Receive advertisements of a neighbour; one that flooded the directory is not readmitted by a RESET."""
        if peer.node not in self._flooded:
            self._directory.add(peer.node, trio.current_time(), local=False, owner=peer.identity.owner)

    def neighbour_lost(self, node: NodeId, *, own_site: bool) -> None:
        """Forget the routes through a neighbour on the mesh of gateways that was lost; they may come back."""
        if not own_site:
            self._directory.forget(node)
            self._carrying.checkpoint.forget(node)
        self._ended |= self._directory.changed
        self._retract()
        self.news()

    def forget(self, node: NodeId) -> None:
        """Forget a neighbour that is given up."""
        self._advertising.remove(node)
        self._lost.unpark_all()

    async def drain(self) -> None:
        """Have everybody turn to other gateways, and forward what is still in flight; then this one can end.

        Returns when nothing has passed for a moment, at the latest after ``Config.drain_timeout``.
        """
        self._advertising.leave()
        self._stale.update(self._site_mesh.peers, self._between.peers)
        self.advertise()
        with trio.move_on_after(self._site_mesh.config.drain_timeout):
            carried = -1
            # No message says that the last sender has turned to another gateway; a pause without a frame is the only
            # sign.
            while carried != self._carrying.carried or self._carrying.is_waiting:
                carried = self._carrying.carried
                await trio.sleep(_STILL)

    def end(self) -> None:
        """Advertise to the nodes of this site, later ones too, that nothing leads or may cross here any more."""
        self._carrying.end()
        self._allowed = kinds.Allowed((), (), ())
        self._sites.border.receive_untrusted(self._site_mesh.node, self._allowed)
        for node in self._directory.neighbours:
            if not self._directory.is_local(node):
                self._directory.forget(node)
        self._stale.update(self._site_mesh.peers)
        self.advertise()
        self._has_ended = True
        self._membership.news()  # for those who wait for a site


@final
class _Neighbours(PeerObserver):
    """Observer of the peers of one of the two meshes."""

    of_clients = False

    def __init__(self, gateway: Gateway, *, own_site: bool) -> None:
        self._gateway = gateway
        self._own_site = own_site

    def peer_connected(self, peer: Peer) -> None:
        self._gateway.neighbour_up(peer, own_site=self._own_site)

    def frames_lost(self, peer: Peer) -> None:
        self._gateway.neighbour_reset(peer, own_site=self._own_site)

    def peer_unreachable(self, node: NodeId) -> None:
        self._gateway.neighbour_lost(node, own_site=self._own_site)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        self._gateway.neighbour_lost(peer.node, own_site=self._own_site)
        self._gateway.forget(peer.node)


@final
class OpenGateway(NamedTuple):
    """A gateway that is up, and what it is made of.

    Attributes:
        between: the mesh of gateways.
    """

    gateway: Gateway
    between: Mesh
    parts: GatewayParts


@protected_context
async def open_gateway(
    node: Node,
    *,
    listen: Iterable[str] = (),
    peers: Iterable[str] = (),
    policy: Policy | None = None,
    rate: float | None = None,
) -> AsyncIterator[Gateway]:
    """Make a node a gateway of its site until the block ends.

    Any number of gateways may serve a site; nodes spread over them and turn to others when one is gone.

    Args:
        node: a node at a named site, whose certificate permits it to be a gateway.
        listen: URLs at which gateways of other sites reach this one.  None: it dials both directions of each link, as
            behind NAT or a firewall.
        peers: URLs of gateways of other sites.  They are dialled until they answer, and again when they are lost.
            Before that of a gateway of another realm stands what the realm is called here: ``REALM/URL``.
        policy: rules for exports and imports; by default nothing is exported.
        rate: bytes per second that one gateway of another site may send here; None: any.

    Raises:
        ConfigError: the node has no site, or no right to be a gateway; an address or the rate cannot be used; or a
            realm is not trusted by the node's credential.

    Leaving it drains first: nodes and neighbours turn to other gateways, and what is in flight is forwarded, within
    ``Config.drain_timeout``.  Cancelling it skips that: frames on their way through it are lost, and their sessions
    notice.  Both tell neighbours goodbye.
    """
    async with open_gateway_parts(node, listen=listen, peers=peers, policy=policy, rate=rate) as opened:
        yield opened.gateway


@protected_context
async def open_gateway_parts(
    node: Node,
    *,
    listen: Iterable[str] = (),
    peers: Iterable[str] = (),
    policy: Policy | None = None,
    rate: float | None = None,
) -> AsyncIterator[OpenGateway]:
    """Make a node a gateway as ``open_gateway`` does, and hand over what it is made of."""
    if rate is not None:
        most = as_float(rate)
        if not 0 < most < math.inf:
            raise ConfigError(f"a gateway's rate is {shown(rate)}: use bytes per second, or None for any")
        rate = most
    parts = node._parts
    if parts.sites is None:
        raise ConfigError("a gateway needs a site: open its node with site='NAME'")
    parts.sites.relay.check_unserved()
    if not parts.mesh.identity.certificate.rights.gateway:
        raise ConfigError(f"the certificate of cluster {node.name!r} gives no right to be a gateway: see 'iris keys'")
    environment = parts.environment
    urls = [check_listening(environment.check_url(url)) for url in listen]
    dialled = [(alias, environment.check_url(url)) for alias, url in map(split_peer, peers)]
    for alias, _ in dialled:
        trusted_id(parts.mesh.identity, alias)
    if not urls:
        check_dialled([url for _, url in dialled])
    await parts.reception.serve()  # nodes of the site come here, those that only dial out included
    neighbours = PeerTable()
    gateway_parts = GatewayParts(parts, parts.sites, neighbours, policy or Policy(), rate)
    transport = environment.transport(parts.config)
    try:
        bound = await transport.listen(urls)
    except BaseException:
        transport.close()
        raise
    ports = MeshPorts(
        admission=_GatewayAdmission(parts.mesh),
        peers=neighbours,
        frames=gateway_parts.carrying.from_gateways,
        work=parts.mesh.work,  # frames of the one mesh are carried in those of the other
    )
    setting = MeshSetting(
        config=parts.config,
        entropy=environment.entropy,
        wall_clock=environment.wall_clock,
        tag=SiteTag(site=node.site, between=True),
        dials_both=not urls,
        rules=parts.mesh.rules,
    )
    async with (
        open_mesh(parts.mesh.identity, transport, bound, ports, setting) as between,
        open_background() as nursery,
    ):
        parts.sites.relay.check_unserved()  # another task may have made it one meanwhile
        parts.revoking.attach(between)
        gateway = Gateway(node, parts.sites, between, gateway_parts)
        node._reports["gateway"] = gateway.statistics
        node._meshes.append(between)
        between.begin_reading()
        nursery.start_soon(gateway.run, nursery)
        for alias, url in dialled:
            nursery.start_soon(gateway.keep_dialling, url, alias)
        try:
            yield OpenGateway(gateway, between, gateway_parts)
            await gateway.drain()
        finally:
            with trio.CancelScope(shield=True):
                parts.revoking.detach(between)
                await between.disconnect_all("the gateway was closed", 0.5)
            gateway.end()
            node._meshes.remove(between)
            del node._reports["gateway"]


@final
class _GatewayAdmission:
    """The rules for links to a gateway: the node's own rules for links, and the right to be a gateway."""

    def __init__(self, site_mesh: Mesh) -> None:
        self._site_mesh = site_mesh

    def check(self, peer: PeerIdentity) -> None:
        self._site_mesh.check_peer(peer)
        if not peer.certificate.rights.gateway:
            raise AuthenticationError(f"the certificate of cluster {peer.cluster!r} gives no right to be a gateway")

    def reason(self, peer: PeerIdentity) -> str | None:
        return self._site_mesh.reason(peer)

    def final_messages(self, peer: PeerIdentity) -> Sequence[Message]:
        return self._site_mesh.final_messages(peer)
