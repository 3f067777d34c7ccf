"""Realm survey: asks every node of this site for its report, and says what changed since the survey before.

::

    survey = RealmSurvey(node)
    await survey.take()
    await trio.sleep(2)
    view = await survey.take()
    for cluster in view.clusters():
        print(cluster.cluster, cluster.members, cluster.rate, cluster.p99)

Needs the right that ``iris.node.report`` tells of.  A node that is busy or refuses is in ``view.silent``, one that was
lost or has left is in ``view.gone`` for ten minutes.  ``iris top`` and ``iris dash`` show what ``RealmView.as_object``
returns.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import trio

from iris.cluster.membership import NodeInfo
from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.node.report import ClusterReport, LatencyReport, NodeReport
from iris.patterns.latency import LatencyStatistics

_AT_ONCE: Final = 16
"""Nodes that are asked at one time: their answers are of up to 256 KiB each."""

_GONE_FOR: Final = 600.0
"""Seconds for which a node that is gone is shown."""

Series = tuple[bool, str, str | None]
"""Of a histogram: whether it was served, the cluster, the operation."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node: what it reported, and what it did since it was asked before.  Rates are per second, 0 at first."""

    node: NodeInfo
    report: NodeReport
    seconds: float
    """Since it was asked before; 0 at first."""
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
class AbsentNode:
    """One node that has not reported: it is silent, or gone."""

    node: NodeInfo
    """As it was seen last."""
    host: str | None
    process: int | None
    """As it reported before; None if it never did."""
    reason: str
    """Why it did not answer; of one that is gone, see ``Departure``."""
    seconds: float | None
    """Since it was gone; None if it is silent."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RealmView:
    """The realm as one survey found it."""

    nodes: tuple[NodeView, ...]
    silent: tuple[AbsentNode, ...]
    """Nodes that are known and did not answer."""
    gone: tuple[AbsentNode, ...]
    """Nodes that were lost or have left in the last ten minutes, at most 256, newest first."""
    abroad: dict[str, tuple[str, ...]]
    """Other sites that export something, and which clusters; none if the node that asks is at no named site."""

    @property
    def trouble(self) -> str | None:
        """Why nothing is seen; None if a node answered."""
        if self.nodes:
            return None
        if not self.silent:
            return "no other node was found"
        return f"none of {len(self.silent)} nodes answered: {self.silent[0].reason}"

    def as_object(self) -> dict[str, Any]:
        """Return the view as JSON shows it: seconds and rates per second, percentiles instead of histograms."""
        return {
            "clusters": [dataclasses.asdict(cluster) for cluster in self.clusters()],
            "nodes": [_node_object(seen) for seen in self.nodes],
            "silent": [_absent_object(absent) for absent in self.silent],
            "gone": [_absent_object(absent) for absent in self.gone],
            "abroad": self.abroad,
        }

    def clusters(self) -> tuple[ClusterView, ...]:
        """Return every cluster that a node serves, by name."""
        members: defaultdict[str, list[tuple[NodeView, ClusterReport]]] = defaultdict(list)
        for view in self.nodes:
            for served in view.report.clusters:
                members[served.cluster].append((view, served))
        return tuple(_cluster(name, found) for name, found in sorted(members.items()))


@final
class RealmSurvey:
    """Asks every other node of this node's site, again and again.

    Args:
        node: who asks.
        timeout: seconds that a node has to answer.
    """

    def __init__(self, node: Node, *, timeout: float = 2.0) -> None:
        self._node = node
        self._timeout = timeout
        self._before: dict[NodeId, tuple[float, NodeReport]] = {}
        self._places: dict[NodeId, tuple[str, int]] = {}
        """Host and process of every node that has reported, for as long as it may be shown."""

    def forget(self) -> None:
        """Begin anew: the next survey is a first one."""
        self._before.clear()

    async def take(self) -> RealmView:
        """Ask every node; ends within ``timeout`` for each sixteen of them that do not answer.

        Cancelling it leaves what the survey before found.
        """
        views: dict[NodeId, NodeView] = {}
        silent: list[AbsentNode] = []
        taken: dict[NodeId, tuple[float, NodeReport]] = {}
        places = trio.CapacityLimiter(_AT_ONCE)

        async def ask(node: NodeInfo) -> None:
            async with places:
                try:
                    report = await self._node._ask_report(node.node, self._timeout)
                except IrisError as error:
                    silent.append(self._absent(node, str(error), None))
                    return
            now = trio.current_time()
            taken[node.node] = now, report
            self._places[node.node] = report.host, report.process
            views[node.node] = _view(node, report, now, self._before.get(node.node))

        async with trio.open_nursery() as nursery:
            for node in self._node.nodes():
                nursery.start_soon(ask, node)
        self._before = taken
        # Who was lost while it was asked is gone, and not silent.
        now, departures = trio.current_time(), self._node._departures()
        ids = {departure.node.node for departure in departures}
        view = RealmView(
            nodes=tuple(views[node] for node in sorted(views) if node not in ids),
            silent=tuple(sorted((absent for absent in silent if absent.node.node not in ids), key=_id)),
            gone=tuple(
                self._absent(gone.node, gone.reason, now - gone.at)
                for gone in reversed(departures)
                if now - gone.at < _GONE_FOR
            ),
            abroad=_abroad(self._node),
        )
        shown = {*ids, *views, *map(_id, silent)}
        self._places = {node: place for node, place in self._places.items() if node in shown}
        return view

    def _absent(self, node: NodeInfo, reason: str, seconds: float | None) -> AbsentNode:
        host, process = self._places.get(node.node, (None, None))
        return AbsentNode(node=node, host=host, process=process, reason=reason, seconds=seconds)


def _cluster(name: str, members: list[tuple[NodeView, ClusterReport]]) -> ClusterView:
    counts = Counter[float]()
    for view, _ in members:
        for (served, cluster, _operation), latency in view.latency.items():
            if served and cluster == name:
                counts.update(latency.buckets)
    together = LatencyStatistics(buckets=dict(sorted(counts.items())), total=0.0)
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


def _id(absent: AbsentNode) -> NodeId:
    return absent.node.node


def _abroad(node: Node) -> dict[str, tuple[str, ...]]:
    sites: defaultdict[str, set[str]] = defaultdict(set)
    for cluster in node.clusters():
        for member in node.members(cluster):
            if member.site != node.site:
                sites[member.site].add(cluster)
    return {site: tuple(sorted(clusters)) for site, clusters in sorted(sites.items())}


def _node_object(seen: NodeView) -> dict[str, Any]:
    report = dataclasses.asdict(dataclasses.replace(seen.report, latencies=[]))
    del report["latencies"]
    return {
        **dataclasses.asdict(seen.node),
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


def _absent_object(absent: AbsentNode) -> dict[str, Any]:
    told = dataclasses.asdict(absent)
    return {**told.pop("node"), **told}


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
        seconds=seconds,
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
