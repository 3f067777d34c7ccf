"""Metrics of a node for Prometheus, and whether work may come to it.

::

    async with iris.open_node("orders") as node, iris.metrics.serve(node) as metrics:
        print(metrics.url)

What each metric means is in docs/reference/telemetry.md.  ``FAMILIES`` has the same for programs: by name the kind, the
labels and the help of each.
"""

from iris.node.telemetry.endpoint import MetricsEndpoint
from iris.node.telemetry.families import FAMILIES, Family
from iris.node.telemetry.metrics import serve

__all__ = ("FAMILIES", "Family", "MetricsEndpoint", "serve")
