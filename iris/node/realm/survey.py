"""Realm survey: asks every node of this site for its report, and says what changed since the survey before.

::

    survey = RealmSurvey(node)
    await survey.collect()
    await trio.sleep(2)
    view = await survey.collect()
    for cluster in view.clusters():
        print(cluster.cluster, cluster.members, cluster.rate, cluster.p99)

Needs the right that ``iris.node.report`` names.  A node that is busy or refuses is in ``view.silent``, one that was
lost or has left is in ``view.gone`` for ten minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, final

import trio

from iris.cluster.membership import NodeInfo
from iris.kernel.names import NodeId
from iris.kernel.tasks import open_background, protected_context
from iris.node.node import Node
from iris.node.operators import ask_report
from iris.node.realm.checks import fault_of, of_members_only
from iris.node.realm.questions import Questions
from iris.node.realm.views import AbsentNode, NodeView, RealmView, Series
from iris.node.report import LatencyReport, NodeReport

_GONE_FOR: Final = 600.0
"""Seconds for which a node that is gone is shown."""


@final
class RealmSurvey:
    """Asks every other node of this node's site, again and again.

    A node that is slow holds up every view, for ``timeout`` at most: see ``open_survey``.

    Args:
        node: the node that asks.
        timeout: seconds that a node has to answer.
    """

    def __init__(self, node: Node, *, timeout: float = 2.0) -> None:
        self._node = node
        self._asking = Questions(node, partial(ask_report, node), timeout)
        self._before: dict[NodeId, tuple[float, NodeReport]] = {}
        self._places: dict[NodeId, tuple[str, int]] = {}
        """Host and process of every node that has reported, for as long as it may be shown."""

    def forget(self) -> None:
        """Begin anew: the next survey is a first one."""
        self._asking.forget()
        self._before.clear()

    async def collect(self) -> RealmView:
        """Ask every node; ends within ``timeout`` for each sixteen of them that do not answer.

        Cancelling it leaves what the survey before found.
        """
        answers, failures, late = await self._asking.collect()
        now, departures = trio.current_time(), self._node._membership.departures()
        gone = {departure.node.node for departure in departures}  # who was lost while it was asked is not silent
        nodes = {node.node: node for node in self._node.nodes() if node.node not in gone}
        views: dict[NodeId, NodeView] = {}
        doubted: dict[NodeId, str] = {}
        for node, (came, reported) in answers.items():
            info = nodes.get(node)
            fault = fault_of(reported)
            if info is None:  # it has left since
                continue
            if fault is not None:
                self._node._mesh.refusals["report of a node that cannot be"] += 1
                failures[node] = f"its report is refused: {fault}"
                continue
            report, others = of_members_only(reported, info.clusters)
            if others:
                self._node._mesh.refusals["report of a node about clusters that it is no member of"] += 1
                doubted[node] = f"reports of clusters that it is no member of: {', '.join(others)}"
            views[node] = _view(info, report, came, self._before.get(node))
            self._before[node] = came, report
            self._places[node] = report.host, report.process
        silent = {node: self._absent(nodes[node], why) for node, why in failures.items() if node in nodes}
        for node, waited in late.items():
            if node in nodes:
                silent[node] = self._absent(nodes[node], f"late: no answer for {waited:.1f} s", late=True)
        self._before = {node: known for node, known in self._before.items() if node in nodes}
        self._places = {node: place for node, place in self._places.items() if node in nodes or node in gone}
        return RealmView(
            nodes=tuple(views[node] for node in sorted(views)),
            silent=tuple(silent[node] for node in sorted(silent)),
            gone=tuple(
                self._absent(departure.node, departure.reason, seconds=now - departure.at)
                for departure in reversed(departures)
                if now - departure.at < _GONE_FOR
            ),
            doubted=doubted,
            remote_clusters=_remote_clusters(self._node),
        )

    def _absent(self, node: NodeInfo, reason: str, *, late: bool = False, seconds: float | None = None) -> AbsentNode:
        host, process = self._places.get(node.node, (None, None))
        return AbsentNode(node=node, host=host, process=process, reason=reason, late=late, seconds=seconds)


@protected_context
async def open_survey(node: Node, *, timeout: float = 2.0, patience: float = 0.5) -> AsyncIterator[RealmSurvey]:
    """Survey that waits for nobody: for the length of the block its views take ``patience`` seconds at most.

    A node that has not answered by then is in ``RealmView.silent`` as late; its answer is in the view that is taken
    when it has come, within ``timeout`` seconds.
    """
    async with open_background() as nursery:
        survey = RealmSurvey(node, timeout=timeout)
        survey._asking = Questions(node, partial(ask_report, node), timeout, nursery, patience)
        yield survey
        nursery.cancel_scope.cancel()


def _remote_clusters(node: Node) -> dict[str, tuple[str, ...]]:
    sites: defaultdict[str, set[str]] = defaultdict(set)
    for cluster in node.clusters():
        for member in node.members(cluster):
            if member.site != node.site:
                sites[member.site].add(cluster)
    return {site: tuple(sorted(clusters)) for site, clusters in sorted(sites.items())}


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
