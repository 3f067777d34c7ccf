"""Build: the parts of a node, each made with what it needs, in the order in which they need each other.

What a mesh asks while it handles its first frame comes first, then the mesh, the cluster's parts, the patterns, and the
node.  Nothing is read before all observers of peers are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

import trio

from iris.cluster.balancing import SiteOrder
from iris.cluster.directory import Border, Hop
from iris.cluster.membership import (
    Forwarder,
    IdleLinks,
    LinkStates,
    Lookups,
    Membership,
    MembershipPorts,
    NodeAdmission,
    ProofVerifier,
    RelayedRoutes,
)
from iris.cluster.mesh import Mesh, MeshPorts, PeerObserver, PeerTable
from iris.cluster.routes import Carriers
from iris.cluster.sites import MemberReach, Reach, RemoteMembers, SiteNetwork, Sites
from iris.cluster.swim import ClientView, NodeRecord, Swim, SwimPorts
from iris.kernel.config import Config
from iris.node.blocked import BlockedHandlers
from iris.node.calls import Calls, FirstMembers
from iris.node.environment import Environment
from iris.node.run_guard import RunGuard
from iris.patterns.books import Bookkeeper
from iris.patterns.multicast import Broadcasts, Relays, Surveys
from iris.patterns.pubsub import Elsewhere, OpenSubscriptions, PubSub, SealedReceiver
from iris.patterns.request import Requests
from iris.patterns.service import Server, Tunnels, WorkerPools
from iris.security.identity import NewestRevocations

if TYPE_CHECKING:
    from iris.node.telemetry.tracing import Tracing


@final
class Foundation(NamedTuple):
    """The parts of a node that are there before its mesh, which asks them from its first frame on.

    Attributes:
        peers: peers that the mesh will have.
        pools: memberships that the node will have.
        links: links as the view asks for them.
        view: members as they are seen.
        relayed: connections through other members.
        network: what leads to other sites.  None if the node is at no named site, or a client.
        ports: all of that, as the mesh takes it.
    """

    peers: PeerTable
    pools: WorkerPools
    verifier: ProofVerifier
    links: LinkStates
    view: Swim | ClientView
    relayed: RelayedRoutes
    network: SiteNetwork | None
    ports: MeshPorts


def lay_foundation(
    record: NodeRecord,
    verifier: ProofVerifier,
    revoked: NewestRevocations,
    environment: Environment,
    config: Config,
    *,
    client: bool,
) -> Foundation:
    """Make what a mesh needs, for the node of a record.

    Args:
        record: the node, and its site.
        verifier: verifier of what members say that they serve.
        revoked: nodes and clusters that are not linked.
        environment: source of randomness.
        config: limits and timings.
        client: the node is no member.
    """
    own, peers, pools = record.node, PeerTable(), WorkerPools()
    links = LinkStates(own, peers, everybody=client)
    make_view = ClientView if client else Swim
    view = make_view(
        record=record,
        ports=SwimPorts(trust=verifier, links=links, workload=pools),
        config=config,
        random=environment.random,
        now=trio.current_time(),
    )
    relayed = RelayedRoutes(own, peers)
    network = SiteNetwork(Hop(record.site, own), peers) if record.site and not client else None
    ports = MeshPorts(
        admission=NodeAdmission(revoked, view, verifier),
        peers=peers,
        frames=None if network is None else network.relay,
        punctuality=view,
        carriers=Carriers(None if network is None else network.routes, relayed),
        border=Border() if network is None else network.border,
    )
    return Foundation(peers, pools, verifier, links, view, relayed, network, ports)


@final
class Cluster(NamedTuple):
    """The parts of a node that find, link and know other nodes.

    Attributes:
        lookups: search for members.  None if the node is no client.
        reach: links to members that are not linked before they are asked.
        idle: ends the links that are not used.  None if the node is a client.
        sites: other sites as the node reaches them.  None if it is at no named site, or a client.
        elsewhere: the same, for publish/subscribe.
    """

    forwarder: Forwarder
    membership: Membership
    lookups: Lookups | None
    reach: Reach
    idle: IdleLinks | None
    sites: Sites | None
    elsewhere: Elsewhere | None


def build_cluster(
    mesh: Mesh, base: Foundation, nursery: trio.Nursery, order: SiteOrder, environment: Environment
) -> Cluster:
    """Make the parts of a node that stand between its mesh and its patterns.  They run in ``nursery``."""
    network, view = base.network, base.view
    remote = None if network is None else RemoteMembers(mesh, network.directory, order)
    ports = MembershipPorts(
        verifier=base.verifier,
        links=base.links,
        workload=base.pools,
        order=order,
        remote=remote,
        random=environment.random,
        processor_time=environment.processor_time,
    )
    membership = Membership(mesh, view, nursery, ports)
    sites: Sites | None = None
    elsewhere: Elsewhere | None = None
    if network is not None and remote is not None:
        receiver = SealedReceiver(mesh)
        sites = Sites(mesh, membership, nursery, network, remote, receiver)
        elsewhere = Elsewhere(sites, receiver, environment.entropy)
    forwarder, reach = Forwarder(mesh, base.relayed), MemberReach(mesh, membership, sites)
    if isinstance(view, ClientView):
        lookups = Lookups(mesh, membership, view)
        return Cluster(forwarder, membership, lookups, lookups, None, sites, elsewhere)
    return Cluster(forwarder, membership, None, reach, IdleLinks(mesh, membership, reach), sites, elsewhere)


@final
class Patterns(NamedTuple):
    """The patterns of a node.

    Attributes:
        tracing: joins calls and handlers to traces.  None if the program traces nothing.
        first: waits for the first member of a cluster.
        calls: requests with all that is around them; ``requests`` sends them.
        serving: answering side: receives requests and broadcasts for the clusters that the node has joined.
        blocked: counts handlers that block the event loop, and tells peers.
    """

    guard: RunGuard
    tracing: Tracing | None
    books: Bookkeeper
    requests: Requests
    first: FirstMembers
    calls: Calls
    relays: Relays
    broadcasts: Broadcasts
    surveys: Surveys
    pubsub: PubSub
    serving: Server
    tunnels: Tunnels
    blocked: BlockedHandlers

    @property
    def observers(self) -> tuple[PeerObserver, ...]:
        """Observers of peers, in the order in which they are notified: books first, which others then read."""
        return (
            self.books,
            self.requests,
            self.relays,
            self.broadcasts,
            self.pubsub,
            self.serving,
            self.tunnels,
            self.blocked,
        )


def build_patterns(
    mesh: Mesh,
    membership: Membership,
    memberships: WorkerPools,
    *,
    reach: Reach,
    elsewhere: Elsewhere | None,
    lookups: Lookups | None,
    environment: Environment,
    tracing: Tracing | None,
) -> Patterns:
    """Make the patterns of a node.  Nothing runs before ``Node`` runs it."""
    config = mesh.config
    guard = RunGuard()
    subscriptions = OpenSubscriptions(tracing)
    books = Bookkeeper(mesh, subscriptions)
    ledger = books.ledger
    requests = Requests(mesh, membership, config, ledger, reach)
    books.in_progress.append(requests.in_progress)
    first = FirstMembers(membership, lookups, guard)
    calls = Calls(requests, first, reach, guard, tracing, environment.entropy)
    relays = Relays(mesh, membership)
    broadcasts = Broadcasts(mesh, membership, config, relays, ledger)
    surveys = Surveys(mesh, requests, membership, relays, config)
    pubsub = PubSub(mesh, books, subscriptions, membership, relays.tally, elsewhere)
    serving = Server(mesh, relays, books, memberships, bridges=calls, observer=tracing)
    tunnels = Tunnels(mesh, membership, serving, config, books, reach)
    membership.on_suspected(requests.peer_unreachable)
    membership.proofs.on_lost(tunnels.member_expelled)
    blocked = BlockedHandlers(mesh, serving)
    return Patterns(
        guard, tracing, books, requests, first, calls, relays, broadcasts, surveys, pubsub, serving, tunnels, blocked
    )
