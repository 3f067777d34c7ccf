"""Metrics: a node's counters and latencies for Prometheus, at /metrics, and whether work may come here, at /healthz.

Published as ``iris.metrics``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, final, overload

import trio

from iris.kernel.errors import ConfigError
from iris.kernel.tasks import protected_context, run_in_thread
from iris.node.node import Node
from iris.node.operators import gather_reports, unready
from iris.node.telemetry.endpoint import MetricsEndpoint, Page, missing, open_endpoint, text_page
from iris.node.telemetry.families import FAMILIES, NEVER_BACK, NodeSnapshot, histograms, samples
from iris.patterns.latency import EDGES, LatencyStatistics

if TYPE_CHECKING:
    from prometheus_client import Metric

    from iris import aio, sync

PORT: Final = 9464
"""Port of OpenTelemetry's exporter for Prometheus."""

_FRESH: Final = 0.5
"""Seconds for which a page is given to all who ask: no number of scrapers makes a node work more than that."""


@overload
def serve(
    node: Node, host: str = ..., port: int = ..., *, member: bool = ...
) -> AbstractAsyncContextManager[MetricsEndpoint]: ...
@overload
def serve(
    node: aio.Node, host: str = ..., port: int = ..., *, member: bool = ...
) -> AbstractAsyncContextManager[MetricsEndpoint]: ...
@overload
def serve(
    node: sync.Node, host: str = ..., port: int = ..., *, member: bool = ...
) -> AbstractContextManager[MetricsEndpoint]: ...
def serve(node: Any, host: str = "127.0.0.1", port: int = PORT, *, member: bool = True) -> object:
    """Serve the metrics of a node, and of the gateway or bridge that is built on it, until the block ends.

    Example::

        async with iris.open_node("orders") as node, iris.metrics.serve(node) as metrics:
            print(metrics.url)
            async with node.join("orders", service):
                await trio.sleep_forever()

    ``GET /metrics`` has what docs/reference/telemetry.md lists.  ``GET /healthz`` has status 200 if new work may come
    to this node, else 503 and the reason: that it is a member of no cluster, that it drains, or that it is closed.
    Both are open to everybody who reaches the address; no payload, key or credential is in them.

    Args:
        node: a node of ``iris``, ``iris.aio`` or ``iris.sync``; with the last it is a plain ``with`` block.
        host: the address to listen at; only this machine reaches it unless you say otherwise.
        port: 0 takes a free one, see ``MetricsEndpoint.port``.
        member: True if the node is ready only as a member of a cluster; False for one that only asks others.

    Raises:
        ConfigError: the address cannot be used, or prometheus-client or h11 are not installed.

    Enter it before the node joins a cluster: then /healthz tells while it drains.  Leaving it, also cancelled, closes
    the endpoint.
    """
    opening = partial(_serve, host=host, port=port, member=member)
    return opening(node) if isinstance(node, Node) else node._enter(opening)


@protected_context
async def _serve(node: Node, *, host: str, port: int, member: bool) -> AsyncIterator[MetricsEndpoint]:
    node._guard.check()
    if type(host) is not str or type(port) is not int or not 0 <= port < 65536:
        raise ConfigError(f"metrics at {host!r}:{port!r}: use the text of an address, and a port from 0 to 65535")
    exposition = Exposition(node, member=member)
    pages = {"/metrics": exposition.metrics, "/healthz": exposition.health}
    async with open_endpoint(host, port, pages) as endpoint:
        yield endpoint


@final
class Exposition:
    """Writes out what a node is, for Prometheus.

    Raises:
        ConfigError: prometheus-client is not installed.
    """

    def __init__(self, node: Node, *, member: bool) -> None:
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError as error:
            raise missing("prometheus-client") from error
        self._node = node
        self._member = member
        self._snapshot: NodeSnapshot | None = None
        self._version = metadata.version("iris-mesh")
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._turn = trio.Lock()
        self._pages: dict[str, tuple[float, Page]] = {}

    async def health(self, _: str) -> Page:
        """Return the page of /healthz."""
        await trio.lowlevel.checkpoint()
        reason = unready(self._node, member=self._member)
        return text_page(200, "ready") if reason is None else text_page(503, f"not ready: {reason}")

    async def metrics(self, accept: str) -> Page:
        """Return the page of /metrics, of this moment or half a second old."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        async with self._turn:
            known = self._pages.get(content_type)
            if known is not None and trio.current_time() < known[0] + _FRESH:
                return known[1]
            self._snapshot = await self.look()
            # In a thread: it takes milliseconds, and the node has other things to do.
            body = await run_in_thread(encode, self._registry)
            page = Page(200, content_type, body)
            if len(self._pages) > _FORMATS:
                self._pages.clear()
            self._pages[content_type] = trio.current_time(), page
            return page

    async def look(self) -> NodeSnapshot:
        """Return a snapshot of all that the node counts."""
        node = self._node
        return NodeSnapshot(
            node=node.id,
            cluster=node.name,
            site=node.site,
            version=self._version,
            unready=unready(node, member=self._member),
            nodes=len(node.nodes()),
            statistics=node.statistics(),
            reports=await gather_reports(node),
        )

    # -- a collector of prometheus-client -------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last snapshot; called by the registry, in a thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        snapshot = self._snapshot
        if snapshot is None:
            return []
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        found: dict[str, Any] = {}
        for name, labels, value in samples(snapshot):
            if name not in found:
                family = FAMILIES[name]
                found[name] = kinds[family.kind](name, family.help, labels=family.labels)
            found[name].add_metric(labels, self._not_back(name, labels, value))
        for side, target, latency in histograms(snapshot.statistics):
            name = f"iris_{side}_duration_seconds"
            if name not in found:
                family = FAMILIES[name]
                found[name] = HistogramMetricFamily(name, family.help, labels=family.labels)
            found[name].add_metric(target, _cumulative(latency), latency.total)
        return found.values()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry is not to ask before there is a snapshot."""
        return []

    def _not_back(self, name: str, labels: tuple[str, ...], value: float) -> float:
        if name not in NEVER_BACK:
            return value
        highest = self._highest[name, labels] = max(value, self._highest.get((name, labels), 0))
        return highest


_FORMATS: Final = 8
"""Pages that are kept: one for each format that scrapers ask for."""


def _cumulative(latency: LatencyStatistics) -> list[tuple[str, float]]:
    """Return the counts as Prometheus has them: each bucket holds those below it."""
    counts = [(repr(edge), float(latency.below(edge))) for edge in EDGES]
    return [*counts, ("+Inf", float(latency.count))]
