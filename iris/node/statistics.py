"""Statistics: everything that a node counts, in one frozen snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from iris.cluster.discovery import Seeds, SeedStatistics
from iris.cluster.membership import Membership
from iris.cluster.mesh import Mesh
from iris.kernel.buffer_pool import pooled_bytes
from iris.kernel.link import LinkStatistics
from iris.kernel.names import NodeId
from iris.kernel.statistics import Statistics
from iris.node.blocked import BlockedHandlers, BlockedStatistics
from iris.patterns import state
from iris.patterns.books import PatternStatistics
from iris.patterns.latency import LatencyStatistics
from iris.patterns.multicast import Broadcasts, Relays
from iris.patterns.pubsub import PubSub
from iris.patterns.pubsub.publish import PublishStatistics
from iris.patterns.pubsub.subscribe import SubscriptionStatistics
from iris.patterns.request import Requests
from iris.patterns.service import Server, ServiceStatistics, Tunnels
from iris.patterns.tunnel import TunnelsStatistics

NODES: Final = "iris.nodes"
DRAIN: Final = "iris.nodes.drain"
RESERVED: Final = (NODES, DRAIN)
"""Clusters that every node serves to operators; no services of the program's, and not among its statistics."""


@final
class NodeStatistics(Statistics, frozen=True, kw_only=True):
    """A snapshot of every counter of a node, by pattern."""

    requests: PatternStatistics
    repeated: int
    """Requests made once more at another member, after the first one refused or was lost."""
    moved: int
    """Repeated requests that the first member may have run as well: it was lost, silent, or left.  Idempotent ones
    only; of two members that may have run a request, neither knows of the other."""
    not_repeated: int
    """Requests that were not, because too many were: their callers got ``Overloaded``."""
    fallbacks: Mapping[str, int]
    """Requests whose callers got their ``fallback`` in the place of an error, by the error.  Among ``requests`` they
    count as what they came to."""
    hedged: int
    """Requests with ``hedge`` for which a second member was asked."""
    latency: Mapping[str, Mapping[str | None, LatencyStatistics]]
    """Latency of the requests that this node asked, by cluster and operation: from asking to the reply, or to the error
    of the handler.  What this node served is in ``services``."""
    broadcasts: PatternStatistics
    """Broadcasts: one for each message and member it goes to."""
    relayed: PatternStatistics
    """Relayed messages: one for each message that this node took on for others, and node to reach through this one."""
    events: PatternStatistics
    """Events: one for each event and node it goes to."""
    published: int
    without_subscriber: int
    """Published events that nobody subscribed to."""
    publishing: PublishStatistics
    """Counters of this node's publishers about their subscribers."""
    subscriptions: Mapping[str, tuple[SubscriptionStatistics, ...]]
    services: Mapping[str, ServiceStatistics]
    tunnels: TunnelsStatistics
    states: Mapping[str, state.StateStatistics]
    """Statistics of the documents that are open here, by cluster."""
    subscriptions_ended: SubscriptionStatistics | None
    """Counters of the subscriptions that are no more, together; None: there was none."""
    links: Mapping[NodeId, LinkStatistics]
    links_ended: LinkStatistics | None
    """Counters of the links that are no more, together; None: there was none."""
    incomplete_bytes: int
    """Bytes that have come of frames that are not complete.  Of each connection it is one frame at most."""
    pooled_bytes: int
    """Bytes that this process, with all its nodes, keeps for its next large frames."""
    blocked: tuple[BlockedStatistics, ...]
    """Handlers that have blocked the event loop of this node."""
    sessions: int
    """Sessions with other nodes, those included that are about to be replaced."""
    handshakes: int
    """Handshakes that were finished: new peers, reconnects and renewed sessions."""
    seeds: Mapping[str, SeedStatistics]
    """Result for each seed that is looked up: a host name, SRV records, a Service of Kubernetes, a file."""
    refusals: Mapping[str, int]
    """Frames and messages that were refused, by reason, and what was reported of members."""


def gather_statistics(
    mesh: Mesh,
    membership: Membership,
    requests: Requests,
    broadcasts: Broadcasts,
    relays: Relays,
    pubsub: PubSub,
    serving: Server,
    tunnels: Tunnels,
    states: Mapping[str, state.SharedState],
    blocked: BlockedHandlers,
    seeds: Seeds,
) -> NodeStatistics:
    """Return a snapshot of every counter."""
    subscriptions: dict[str, tuple[SubscriptionStatistics, ...]] = {}
    for subscription in pubsub.subscriptions:
        known = subscriptions.get(subscription.pattern, ())
        subscriptions[subscription.pattern] = (*known, subscription.statistics())
    publishing, counted = pubsub.publishing, mesh.statistics()
    return NodeStatistics(
        requests=requests.tally.statistics(),
        repeated=requests.repeated,
        moved=requests.moved,
        not_repeated=requests.not_repeated,
        fallbacks=dict(requests.fallbacks),
        hedged=requests.hedged,
        latency=requests.latency.statistics(),
        broadcasts=broadcasts.tally.statistics(),
        relayed=relays.tally.statistics(),
        events=publishing.tally.statistics(),
        published=publishing.published,
        without_subscriber=publishing.without_subscriber,
        publishing=pubsub.statistics(),
        subscriptions=subscriptions,
        services={name: member.statistics() for name, member in serving.memberships.items() if name not in RESERVED},
        tunnels=tunnels.statistics(),
        states={name: document.statistics() for name, document in states.items()},
        subscriptions_ended=pubsub.ended,
        links={node: peer.link.statistics() for node, peer in mesh.peers.items()},
        links_ended=mesh.ended_links,
        incomplete_bytes=counted.incomplete_bytes,
        pooled_bytes=pooled_bytes(),
        blocked=blocked.statistics(),
        sessions=counted.sessions,
        handshakes=counted.handshakes,
        seeds=seeds.statistics(),
        refusals={**mesh.refusals, **membership.refusals(), **pubsub.refusals()},
    )
