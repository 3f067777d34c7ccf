"""Views of a realm: what a survey has found, and the one JSON form of it that ``iris top`` and ``iris dash`` show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, final

from msgspec import Struct, field, structs, to_builtins

from iris.cluster.membership import NodeInfo
from iris.kernel.names import NodeId
from iris.node.report import ClusterReport, NodeReport
from iris.patterns.latency import LatencyStatistics

_INDIRECT: Final = frozenset(("gateway", "relay"))
"""Kinds of links whose frames go through other nodes."""

Series = tuple[bool, str, str | None]
"""Key of a histogram: True if it was served, the cluster, the operation."""


@final
class NodeView(Struct, frozen=True, kw_only=True):
    """One node: what it reported, and what it did since it was asked before.  Rates are per second, 0 at first."""

    node: NodeInfo
    report: NodeReport
    seconds: float
    """Time since it was asked before; 0 at first."""
    served_rate: float
    asked_rate: float
    published_rate: float
    latency: dict[Series, LatencyStatistics]
    """Latency of what ended since it was asked before; in a first survey, of all since it started."""
    rates: dict[str, float]
    """Requests served, by cluster."""


@final
class ClusterView(Struct, frozen=True, kw_only=True):
    """One cluster: what its members that have answered reported, together.  Times are in seconds, rates per second."""

    cluster: str
    members: int
    """Members, and for a door each program that serves there."""
    rate: float
    """Requests served."""
    p50: float | None
    p99: float | None
    """Percentiles as the members measure them; None if nothing was served."""
    running: int
    queued: int
    failed: int
    refused: int
    expired: int
    versions: tuple[str, ...]


@final
class SiteView(Struct, frozen=True, kw_only=True):
    """One site: the node's own, or one that a gateway of it is linked to."""

    site: str
    """Name of the site; empty for none, and ``REALM/SITE`` in another realm."""
    nodes: tuple[NodeId, ...]
    """Nodes of the site that have answered: none at other sites, which are asked from there."""
    gateways: tuple[NodeId, ...]
    """Nodes that are linked to a gateway of another site, or are one that is."""


@final
class LinkView(Struct, frozen=True, kw_only=True):
    """One link between two nodes, which both of them may have reported; ``a`` is the lesser id."""

    a: NodeId
    b: NodeId
    a_site: str
    b_site: str
    kind: str
    """See ``LinkReport``.  Each end dials by itself: if they differ, that of ``a``."""
    round_trip: float | None
    """Seconds of a round trip; the shorter one of what the two ends have measured."""


@final
class AbsentNode(Struct, frozen=True, kw_only=True):
    """One node that has not reported: it is silent, or gone."""

    node: NodeInfo
    """The node as it was seen last."""
    host: str | None
    process: int | None
    """Host and process as it reported before; None if it never did."""
    reason: str
    """Reason of its silence; of a node that is gone, see ``Departure``."""
    late: bool
    """True if it may still answer: the answer counts in the view after it has come."""
    seconds: float | None
    """Seconds since it was gone; None if it is silent."""


@final
class RealmView(Struct, frozen=True, kw_only=True):
    """The realm as one survey found it.

    A graph can be drawn from it: ``links`` are the edges, and ``sites`` say which nodes stand together.
    """

    nodes: tuple[NodeView, ...]
    silent: tuple[AbsentNode, ...]
    """Nodes that are known and did not answer, or whose report cannot be, for it names what does not exist."""
    gone: tuple[AbsentNode, ...]
    """Nodes that were lost or have left in the last ten minutes, at most 256, newest first."""
    remote_clusters: dict[str, tuple[str, ...]]
    """Other sites that export something, and which clusters; none if the node that asks is at no named site."""
    doubted: dict[NodeId, str] = field(default_factory=dict[NodeId, str])
    """Nodes of whose reports a part was left out, and why."""

    @property
    def trouble(self) -> str | None:
        """Reason why nothing is seen; None if a node answered."""
        return None if self.nodes else nobody_answered([absent.reason for absent in self.silent])

    def as_object(self) -> dict[str, object]:
        """Return the view as JSON shows it: seconds and rates per second, percentiles instead of histograms."""
        return {
            "clusters": [structs.asdict(cluster) for cluster in self.clusters()],
            "nodes": [_node_object(seen) for seen in self.nodes],
            "sites": [structs.asdict(site) for site in self.sites()],
            "links": [structs.asdict(link) for link in self.links()],
            "silent": [_absent_object(absent) for absent in self.silent],
            "gone": [_absent_object(absent) for absent in self.gone],
            "doubted": self.doubted,
            "remote_clusters": self.remote_clusters,
        }

    def sites(self) -> tuple[SiteView, ...]:
        """Return the sites of nodes that answered, and those that their gateways are linked to, by name."""
        nodes: dict[str, set[NodeId]] = {}
        gateways: dict[str, set[NodeId]] = {}
        for view in self.nodes:
            nodes.setdefault(view.report.site, set()).add(view.node.node)
        for link in self.links():
            if link.a_site != link.b_site and link.kind not in _INDIRECT:
                gateways.setdefault(link.a_site, set()).add(link.a)
                gateways.setdefault(link.b_site, set()).add(link.b)
        return tuple(
            SiteView(
                site=site, nodes=tuple(sorted(nodes.get(site, ()))), gateways=tuple(sorted(gateways.get(site, ())))
            )
            for site in sorted(nodes.keys() | gateways.keys())
        )

    def links(self) -> tuple[LinkView, ...]:
        """Return the links that nodes have reported, each once, by the ids of its ends.

        A node reports 64 at most, and those of nodes that did not answer are there as far as their other ends did.
        The node that asks is the end of some.
        """
        links: dict[tuple[NodeId, NodeId], LinkView] = {}
        for view in self.nodes:
            for link in view.report.linked:
                here, there = (view.node.node, view.report.site), (NodeId(link.peer), link.site)
                (a, a_site), (b, b_site) = sorted((here, there))
                known = links.get((a, b))
                times = [time for time in (link.round_trip, known and known.round_trip) if time is not None]
                links[a, b] = LinkView(
                    a=a,
                    b=b,
                    a_site=a_site,
                    b_site=b_site,
                    kind=known.kind if known is not None and here[0] != a else link.kind,
                    round_trip=min(times, default=None),
                )
        return tuple(links[ends] for ends in sorted(links))

    def clusters(self) -> tuple[ClusterView, ...]:
        """Return every cluster that a node serves, by name."""
        members: defaultdict[str, list[tuple[NodeView, ClusterReport]]] = defaultdict(list)
        for view in self.nodes:
            for served in view.report.clusters:
                members[served.cluster].append((view, served))
        return tuple(_cluster(name, found) for name, found in sorted(members.items()))


def nobody_answered(reasons: Sequence[str]) -> str:
    """Return why a survey has nothing to show, by the reasons of those that did not answer."""
    return f"none of {len(reasons)} nodes answered: {reasons[0]}" if reasons else "no other node was found"


def _cluster(name: str, members: list[tuple[NodeView, ClusterReport]]) -> ClusterView:
    counts = Counter[float]()
    for view, _ in members:
        for (served, cluster, _operation), latency in view.latency.items():
            if served and cluster == name:
                counts.update(latency.buckets)
    together = LatencyStatistics(buckets=dict(sorted(counts.items())), total=0.0)
    return ClusterView(
        cluster=name,
        members=sum(served.programs for _, served in members),
        rate=sum(view.rates.get(name, 0.0) for view, _ in members),
        p50=together.percentile(50),
        p99=together.percentile(99),
        running=sum(served.running for _, served in members),
        queued=sum(served.queued for _, served in members),
        failed=sum(served.failed for _, served in members),
        refused=sum(served.refused for _, served in members),
        expired=sum(served.expired for _, served in members),
        versions=tuple(sorted({view.report.version for view, _ in members})),
    )


def _node_object(seen: NodeView) -> dict[str, object]:
    report = to_builtins(structs.replace(seen.report, latencies=[], linked=[]))
    del report["latencies"], report["linked"], report["site"]  # which stands in the node's record
    return {
        **structs.asdict(seen.node),
        **report,
        "seconds": seen.seconds,
        "served_rate": seen.served_rate,
        "asked_rate": seen.asked_rate,
        "published_rate": seen.published_rate,
        "latency": [
            {
                "served": served,
                "cluster": cluster,
                "operation": operation,
                "count": latency.count,
                "p50": latency.percentile(50),
                "p99": latency.percentile(99),
            }
            for (served, cluster, operation), latency in seen.latency.items()
        ],
    }


def _absent_object(absent: AbsentNode) -> dict[str, object]:
    fields = structs.asdict(absent)
    return {**structs.asdict(fields.pop("node")), **fields}
