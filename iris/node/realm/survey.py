"""Realm survey: asks every node of this site for its report, and says what changed since the survey before.

::

    survey = RealmSurvey(node)
    await survey.take()
    await trio.sleep(2)
    view = await survey.take()
    for cluster in view.clusters():
        print(cluster.cluster, cluster.members, cluster.rate, cluster.p99)

Needs the right that ``iris.node.report`` tells of.  A node that is lost, is busy or refuses is in ``view.silent``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, final

from iris.cluster.membership import NodeInfo
from iris.kernel.names import NodeId
from iris.kernel.tasks import open_background, protected_context
from iris.node.node import Node
from iris.node.realm.checks import fault_of, of_members_only
from iris.node.realm.questions import Questions
from iris.node.report import LatencyReport, NodeReport
from iris.patterns.latency import LatencyStatistics

_INDIRECT: Final = frozenset(("gateway", "relay"))
"""Kinds of links whose frames go through other nodes."""

Series = tuple[bool, str, str | None]
"""Of a histogram: whether it was served, the cluster, the operation."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node: what it reported, and what it did since it was asked before.  Rates are per second, 0 at first."""

    node: NodeInfo
    report: NodeReport
    served_rate: float
    asked_rate: float
    published_rate: float
    latency: dict[Series, LatencyStatistics]
    """Of what ended since it was asked before; of all since it started, in a first survey."""
    rates: dict[str, float]
    """Requests served, by cluster."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One cluster: what its members that have answered reported, together.  Times are in seconds, rates per second."""

    cluster: str
    members: int
    rate: float
    """Requests served."""
    p50: float | None
    p99: float | None
    """As the members measure them; None if nothing was served."""
    running: int
    queued: int
    failed: int
    refused: int
    expired: int
    versions: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SiteView:
    """One site: the node's own, or one that a gateway of it is linked to."""

    site: str
    """Empty for none, and ``REALM/SITE`` in another realm."""
    nodes: tuple[NodeId, ...]
    """Those that have answered: none at other sites, which are asked from there."""
    gateways: tuple[NodeId, ...]
    """Nodes that are linked to a gateway of another site, or are one that is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One link between two nodes, which both of them may have reported; ``a`` is the lesser id."""

    a: NodeId
    b: NodeId
    a_site: str
    b_site: str
    kind: str
    """See ``LinkReport``.  Each end dials by itself: if they differ, that of ``a``."""
    round_trip: float | None
    """Seconds; the shorter one of what the two ends have measured."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RealmView:
    """The realm as one survey found it.

    A graph can be drawn from it: ``links`` are the edges, and ``sites`` say which nodes stand together.
    """

    nodes: tuple[NodeView, ...]
    silent: dict[NodeId, str]
    """Nodes that did not answer, and why; or whose report cannot be, for it names what does not exist."""
    doubted: dict[NodeId, str] = field(default_factory=dict[NodeId, str])
    """Nodes of whose reports a part was left out, and why."""

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
        names = {served.cluster for view in self.nodes for served in view.report.clusters}
        return tuple(self._cluster(name) for name in sorted(names))

    def _cluster(self, name: str) -> ClusterView:
        members = [(view, served) for view in self.nodes for served in view.report.clusters if served.cluster == name]
        together = LatencyStatistics(buckets={}, total=0.0)
        for view, _ in members:
            for (served, cluster, _operation), latency in view.latency.items():
                if served and cluster == name:
                    together += latency
        return ClusterView(
            cluster=name,
            members=len(members),
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


@final
class RealmSurvey:
    """Asks every other node of this node's site, again and again.

    A node that is slow holds up every view, for ``timeout`` at most: see ``open_survey``.

    Args:
        node: who asks.
        timeout: seconds that a node has to answer.
    """

    def __init__(self, node: Node, *, timeout: float = 2.0) -> None:
        self._node = node
        self._asking = Questions(node, node._ask_report, timeout)
        self._before: dict[NodeId, tuple[float, NodeReport]] = {}

    async def take(self) -> RealmView:
        """Ask every node; ends within ``timeout`` for each sixteen of them that do not answer.

        Cancelling it leaves what the survey before found.
        """
        answers, silent = await self._asking.take()
        nodes = {node.node: node for node in self._node.nodes()}
        views: dict[NodeId, NodeView] = {}
        doubted: dict[NodeId, str] = {}
        for node, (came, told) in answers.items():
            info = nodes.get(node)
            fault = fault_of(told)
            if info is None:  # it has left since
                continue
            if fault is not None:
                self._node._mesh.refusals["report of a node that cannot be"] += 1
                silent[node] = f"its report is refused: {fault}"
                continue
            report, others = of_members_only(told, info.clusters)
            if others:
                self._node._mesh.refusals["report of a node about clusters that it is no member of"] += 1
                doubted[node] = f"reports of clusters that it is no member of: {', '.join(others)}"
            views[node] = _view(info, report, came, self._before.get(node))
            self._before[node] = came, report
        self._before = {node: known for node, known in self._before.items() if node in nodes}
        return RealmView(nodes=tuple(views[node] for node in sorted(views)), silent=silent, doubted=doubted)


@protected_context
async def open_survey(node: Node, *, timeout: float = 2.0, patience: float = 0.5) -> AsyncIterator[RealmSurvey]:
    """Survey that waits for nobody: for the length of the block its views take ``patience`` seconds at most.

    A node that has not answered by then is in ``RealmView.silent`` as late; its answer is in the view that is taken
    when it has come, within ``timeout`` seconds.
    """
    async with open_background() as nursery:
        survey = RealmSurvey(node, timeout=timeout)
        survey._asking = Questions(node, node._ask_report, timeout, nursery, patience)
        yield survey
        nursery.cancel_scope.cancel()


def _view(node: NodeInfo, report: NodeReport, now: float, before: tuple[float, NodeReport] | None) -> NodeView:
    asked_at, earlier = (now, report) if before is None else before
    seconds = now - asked_at
    served = {of.cluster: of.served + of.failed for of in report.clusters}
    served_before = {of.cluster: of.served + of.failed for of in earlier.clusters}
    known = {} if before is None else {_series(of): of for of in earlier.latencies}

    def rate(count: Callable[[NodeReport], int]) -> float:
        return _per_second(count(report) - count(earlier), seconds)

    rates = {name: _per_second(count - served_before.get(name, 0), seconds) for name, count in served.items()}
    latency = {
        (series := _series(of)): of.latency.since(known[series].latency if series in known else None)
        for of in report.latencies
    }
    return NodeView(
        node=node,
        report=report,
        served_rate=sum(rates.values()),
        asked_rate=rate(lambda of: of.asked),
        published_rate=rate(lambda of: of.published),
        latency=latency,
        rates=rates,
    )


def _series(report: LatencyReport) -> Series:
    return report.served, report.cluster, report.operation


def _per_second(count: int, seconds: float) -> float:
    return max(0, count) / seconds if seconds > 0 else 0.0
