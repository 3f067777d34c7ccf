"""Operators: a node's reports to them, and what they may have it do, with a right of its own for each.

Every node answers requests for two reserved clusters, unless ``open_node`` was told ``operators=False``: ``iris.nodes``
(operations ``report``, ``topics``, ``books`` and ``ping``) and ``iris.nodes.drain``.  They are in nobody's list; nodes
are asked by their id.  Who may ask: nodes of this realm whose certificate lets them serve the reserved cluster (``iris
keys cluster REALM NAME --serve iris.nodes``); in the local realm every node.
"""

from __future__ import annotations

import heapq
import os
import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, final

from msgspec import Struct, field

from iris.cluster.mesh import Peer
from iris.node.statistics import NodeStatistics
from iris.patterns.books import BookRow, Books
from iris.patterns.latency import LatencyStatistics
from iris.patterns.messages import Request
from iris.patterns.pubsub.interest import Terms
from iris.patterns.pubsub.subscribe import SubscriptionStatistics
from iris.patterns.service import Limits, Service
from iris.security.identity import PeerIdentity

REPORT: Final = "report"
PING: Final = "ping"
TOPICS: Final = "topics"
BOOKS: Final = "books"

LIMITS: Final = Limits(concurrency=2, queue=16)

MOST: Final = 32
"""Clusters, histograms, and reasons of losses in one report: those with the most in them.  So it stays below 256 KiB
whatever a node has counted; what is left out is counted in ``omitted``."""

MOST_TOPICS: Final = 128
"""Subscriptions, and topics, in one report of topics."""

MOST_BOOKS: Final = 128
"""Rows in one report of books."""

LONGEST_SETTLE: Final = 10.0
"""Seconds for which a node waits at most, before it reports its books."""

MOST_LINKS: Final = 64
"""Links in one report: those to other sites, then those with the most bytes sent.  The other end reports it as well."""


@final
class ClusterReport(Struct, frozen=True, kw_only=True):
    """One membership: what this member was asked and what became of it, since it joined."""

    cluster: str
    received: int
    served: int
    failed: int
    expired: int
    cancelled: int
    refused: int
    running: int
    queued: int
    queue_delay: float
    """Seconds that requests waited for a handler lately."""
    draining: bool
    """True if it takes no new work: it leaves, or an operator has drained it."""
    programs: int = 1
    """Members that it stands for: programs that serve by a door, or itself."""


@final
class LatencyReport(Struct, frozen=True, kw_only=True):
    """One histogram: of a cluster and operation that this node asked, or that it served."""

    served: bool
    cluster: str
    operation: str | None
    total: float
    edges: list[float]
    counts: list[int]

    @property
    def latency(self) -> LatencyStatistics:
        """The histogram."""
        return LatencyStatistics(buckets=dict(zip(self.edges, self.counts, strict=False)), total=self.total)


@final
class LinkReport(Struct, frozen=True, kw_only=True):
    """One link of a node: the route of its frames to another node."""

    peer: str
    """Id of the other node."""
    site: str
    """Site of the other node; empty for none, and ``REALM/SITE`` in another realm."""
    kind: str
    """``tcp``, ``ipc`` or ``ws``; ``reverse``: the peer has dialled both directions, by ``tcp`` or ``ws``; ``gateway``:
    through the gateways of two sites; ``relay``: through a third node.
    """
    round_trip: float | None
    """Seconds from asking it whether it lives to its answer, the last time.  None: it was not asked yet."""


@final
class GatewayTraffic(Struct, frozen=True, kw_only=True):
    """A gateway, as its node reports it.  Counters are in frames."""

    sites: list[str]
    """Other sites that can be reached."""
    neighbours: dict[str, str]
    """Linked gateways of other sites, by id: the site of each."""
    carried: int
    carried_bytes: int
    refused: int


@final
class BridgeLag(Struct, frozen=True, kw_only=True):
    """A member of a bridge, as its node reports it.  All are counted in events."""

    stored: int
    waiting: int
    """Events that wait for the disk."""
    missed: int
    """Events that are missing: gaps in the log."""
    unstored: int
    """Events neither stored nor confirmed: repeats that came too late to be judged, and shards of others."""
    lags: dict[str, int]
    """Events that a group of readers has still to read, by group."""


@final
class BlockedReport(Struct, frozen=True, kw_only=True):
    """One handler that has blocked the event loop of its node; see ``BlockedStatistics``."""

    cluster: str
    operation: str | None
    count: int
    seconds: float
    place: str


@final
class NodeReport(Struct, frozen=True, kw_only=True):
    """A node, as it reports itself to operators.  Counters are since it started."""

    version: str
    host: str
    process: int
    uptime: float
    """Seconds."""
    clusters: list[ClusterReport]
    asked: int
    """Requests that it made."""
    answered: int
    published: int
    delivered: int
    """Events that its subscriptions have given to the program."""
    without_subscriber: int
    """Published events that nobody subscribed to."""
    lost: dict[str, int]
    """Events and messages that are certainly or perhaps lost, by pattern and reason."""
    refused: dict[str, int]
    """Frames and messages that it turned away, by reason."""
    links: int
    waiting: int
    """Messages that wait on its links."""
    bytes_sent: int
    latencies: list[LatencyReport]
    gateway: GatewayTraffic | None
    bridge: BridgeLag | None
    omitted: int
    site: str = ""
    """Site of the node; empty for none."""
    blocked: list[BlockedReport] = field(default_factory=list[BlockedReport])
    """Handlers that have blocked it, those that did so for longest first."""
    linked: list[LinkReport] = field(default_factory=list[LinkReport])
    """Reports on ``links``; of a gateway on the links to gateways of other sites, too."""


@final
class SubscriptionReport(Struct, frozen=True, kw_only=True):
    """The subscriptions of one node with the same terms, together: counters of the present ones, in events."""

    pattern: str
    """Pattern of topics, with ``REALM/`` before it if they are another realm's."""
    group: str | None
    durable: bool
    subscriptions: int
    received: int
    delivered: int
    lost: int
    """Dropped, malformed, or lost before they arrived."""
    waiting: int


@final
class PublishedReport(Struct, frozen=True, kw_only=True):
    """One topic on which a node has published, since it did so first or had forgotten the topic."""

    topic: str
    published: int
    lost: int
    """Events that were lost: one for each subscriber that did not get it."""


@final
class TopicsReport(Struct, frozen=True, kw_only=True):
    """Subscriptions and published topics of a node: those with the most events, ``MOST_TOPICS`` of each."""

    subscribed: list[SubscriptionReport]
    published: list[PublishedReport]
    omitted: int


@final
class BooksOrder(Struct, frozen=True, kw_only=True):
    """The books that an operator wants to see; see ``Node.books``."""

    pattern: str
    settle: float


@final
class BooksReport(Struct, frozen=True, kw_only=True):
    """The books of a node about what it has sent: the rows with the most that was not received, then the largest."""

    rows: list[BookRow]
    omitted: int


class OperatorsService(Service):
    """The service of every node for operators, under a reserved name."""

    def allows(self, caller: PeerIdentity) -> bool:
        """Return whether the owner of the realm has given a node the right to ask."""
        return caller.other_realm is None and caller.certificate.rights.may_serve(self.name)


@final
class DrainOrder(Struct, frozen=True, kw_only=True):
    """An operator's order to one member: no new work, or work again."""

    cluster: str
    draining: bool


async def ping(request: Request) -> None:
    """Answer: the round trip is all that is asked for."""


def report_of(
    statistics: NodeStatistics,
    uptime: float,
    *,
    draining: Collection[str] = (),
    more: Mapping[str, object] | None = None,
    site: str = "",
    linked: Sequence[LinkReport] = (),
) -> NodeReport:
    """Return the report of a node.

    Args:
        statistics: counters of the node.
        uptime: seconds since it was opened.
        draining: the clusters of which it takes no new work.
        more: parts built on it: ``GatewayStatistics`` as ``gateway``, ``BridgeReport`` as ``bridge``.
        site: the site of the node.
        linked: links of the node, in the order of their weight.
    """
    more = more or {}
    services = sorted(statistics.services.items(), key=lambda entry: -entry[1].received)
    latencies = sorted(_latencies(statistics), key=lambda entry: -sum(entry.counts))
    lost, lost_omitted = _most(_losses(statistics))
    refused, refused_omitted = _most(statistics.refusals)
    subscriptions = [one for several in statistics.subscriptions.values() for one in several]
    return NodeReport(
        version=_version(),
        host=platform.node()[:256],
        process=os.getpid(),
        uptime=uptime,
        clusters=[
            ClusterReport(
                cluster=cluster,
                received=counted.received,
                served=counted.served,
                failed=counted.failed,
                expired=counted.expired,
                cancelled=counted.cancelled,
                refused=counted.refused,
                running=counted.running,
                queued=counted.queued,
                queue_delay=counted.queue_delay,
                draining=cluster in draining,
                programs=counted.programs,
            )
            for cluster, counted in services[:MOST]
        ],
        asked=statistics.requests.sent,
        answered=statistics.requests.answered,
        published=statistics.published,
        delivered=sum(one.delivered for one in subscriptions),
        without_subscriber=statistics.without_subscriber,
        lost=lost,
        refused=refused,
        links=len(statistics.links),
        waiting=sum(link.waiting for link in statistics.links.values()),
        bytes_sent=sum(link.bytes_sent for link in statistics.links.values()),
        latencies=latencies[:MOST],
        gateway=_gateway(more["gateway"]) if "gateway" in more else None,
        bridge=_bridge(more["bridge"]) if "bridge" in more else None,
        omitted=max(0, len(services) - MOST)
        + max(0, len(latencies) - MOST)
        + max(0, len(linked) - MOST_LINKS)
        + lost_omitted
        + refused_omitted,
        site=site,
        blocked=[
            BlockedReport(
                cluster=one.cluster, operation=one.operation, count=one.count, seconds=one.seconds, place=one.place
            )
            for one in sorted(statistics.blocked, key=lambda one: -one.seconds)[:MOST]
        ],
        linked=[*linked[:MOST_LINKS]],
    )


def links_of(peers: Iterable[Peer], site: str, name_of: Callable[[str], str]) -> list[LinkReport]:
    """Return the links to peers: those to other sites than ``site`` first, then those over which the most was sent.

    ``name_of`` returns what a site is called here.
    """
    heaviest = sorted(peers, key=lambda peer: (peer.site == site, -peer.link.statistics().bytes_sent))
    return [
        LinkReport(peer=peer.node, site=name_of(peer.site), kind=peer.kind, round_trip=peer.round_trip)
        for peer in heaviest
    ]


def topics_of(
    subscribed: Iterable[tuple[str, Terms, SubscriptionStatistics]], published: Iterable[tuple[str, int, int]]
) -> TopicsReport:
    """Return the report of subscriptions, each with its pattern, and of topics, each with its events and losses."""
    together: dict[tuple[str, str | None, bool], list[SubscriptionStatistics]] = {}
    for pattern, terms, counted in subscribed:
        together.setdefault((pattern, terms.group, terms.durable), []).append(counted)
    subscriptions = [
        SubscriptionReport(
            pattern=pattern,
            group=group,
            durable=durable,
            subscriptions=len(several),
            received=sum(one.received for one in several),
            delivered=sum(one.delivered for one in several),
            lost=sum(one.lost for one in several),
            waiting=sum(one.waiting for one in several),
        )
        for (pattern, group, durable), several in together.items()
    ]
    topics = list(published)
    busiest = heapq.nlargest(MOST_TOPICS, topics, key=lambda entry: entry[1])
    return TopicsReport(
        subscribed=heapq.nlargest(MOST_TOPICS, subscriptions, key=lambda one: one.received),
        published=[PublishedReport(topic=topic, published=count, lost=lost) for topic, count, lost in busiest],
        omitted=max(0, len(subscriptions) - MOST_TOPICS) + len(topics) - len(busiest),
    )


def books_of(books: Books) -> BooksReport:
    """Return the report of a node's books."""
    kept = heapq.nlargest(MOST_BOOKS, books.rows, key=lambda row: (row.sent - row.received, row.sent))
    return BooksReport(rows=kept, omitted=len(books.rows) - len(kept))


def _gateway(statistics: Any) -> GatewayTraffic:
    return GatewayTraffic(
        sites=list(statistics.sites[:MOST]),
        neighbours=dict(list(statistics.neighbours.items())[:MOST]),
        carried=statistics.carried,
        carried_bytes=statistics.carried_bytes,
        refused=sum(statistics.refused.values()),
    )


def _bridge(report: Any) -> BridgeLag:
    counted = report.statistics
    return BridgeLag(
        stored=counted.stored,
        waiting=counted.waiting,
        missed=counted.missed,
        unstored=counted.stale + counted.misrouted,
        lags=_most(report.lags)[0],
    )


def _losses(statistics: NodeStatistics) -> dict[str, int]:
    losses = Counter[str]()
    patterns = {"request": statistics.requests, "broadcast": statistics.broadcasts, "event": statistics.events}
    for name, pattern in patterns.items():
        losses.update({f"{name}: {reason}": count for reason, count in pattern.lost.items()})
        losses[f"{name}: expired"] += pattern.expired
    for several in statistics.subscriptions.values():
        for subscription in several:
            losses["subscription: dropped"] += subscription.dropped
            losses["subscription: missed"] += subscription.missed
    return {reason: count for reason, count in losses.items() if count}


def _most(counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    kept = sorted(counts.items(), key=lambda entry: -entry[1])[:MOST]
    return {reason[:128]: count for reason, count in kept}, len(counts) - len(kept)


def _latencies(statistics: NodeStatistics) -> Iterator[LatencyReport]:
    for cluster, counted in statistics.services.items():
        for operation, latency in counted.latency.items():
            yield _latency(True, cluster, operation, latency)
    for cluster, operations in statistics.latency.items():
        for operation, latency in operations.items():
            yield _latency(False, cluster, operation, latency)


def _latency(served: bool, cluster: str, operation: str | None, latency: LatencyStatistics) -> LatencyReport:
    return LatencyReport(
        served=served,
        cluster=cluster,
        operation=operation,
        total=latency.total,
        edges=[*latency.buckets.keys()],
        counts=[*latency.buckets.values()],
    )


@cache
def _version() -> str:
    from importlib import metadata  # with email, which only nodes that are asked need

    return metadata.version("iris-mesh")
