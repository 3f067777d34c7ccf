"""Rows that ``iris top`` shows as trouble: losses, and members that left, but no command that has ended."""

from __future__ import annotations

from iris.cli.operators.top import rows
from iris.cluster.membership import NodeInfo
from iris.kernel.names import NodeId
from iris.node.realm.views import AbsentNode, NodeView, RealmView
from iris.node.report import BlockedReport, NodeReport


def absent(name: str, reason: str, *clusters: str) -> AbsentNode:
    node = NodeInfo(
        node=NodeId(name.encode().hex().ljust(32, "0")), speaks_for=name, site="", addresses=(), status="alive",
        clusters=clusters,
    )  # fmt: skip
    return AbsentNode(node=node, host=None, process=None, reason=reason, late=False, seconds=3.0)


def test_a_command_that_has_ended_is_no_trouble() -> None:
    gone = (
        absent("request", "left"), absent("crashed", "refused"), absent("member", "left", "store"),
        absent("lost", "silent", "store"),
    )  # fmt: skip
    head, tables = rows(RealmView(nodes=(), silent=(), gone=gone, remote_clusters={}), wide=False)
    assert head == "0 nodes, 0 silent, 3 gone"
    assert [row[1] for row in tables[-1][1]] == ["crashed", "member", "lost"]
    _, tables = rows(RealmView(nodes=(), silent=(), gone=gone[:1], remote_clusters={}), wide=False)
    assert len(tables) == 2, "there is no table of trouble"


def test_what_has_blocked_a_node_is_trouble() -> None:
    blocked = BlockedReport(cluster="prices", operation="quote", count=2, seconds=8.5, place="app.py:12 in quote")
    report = NodeReport(
        version="1", host="here", process=1, uptime=1.0, clusters=[], asked=0, answered=0, published=0, delivered=0,
        without_subscriber=0, lost={}, refused={}, links=0, waiting=0, bytes_sent=0, latencies=[], gateway=None,
        bridge=None, omitted=0, blocked=[blocked],
    )  # fmt: skip
    seen = NodeView(
        node=absent("shop", "").node, report=report, seconds=0.0, served_rate=0.0, asked_rate=0.0, published_rate=0.0,
        latency={}, rates={},
    )  # fmt: skip
    _, tables = rows(RealmView(nodes=(seen,), silent=(), gone=(), remote_clusters={}), wide=False)
    assert [row[-1] for row in tables[-1][1]] == ["prices quote blocked it 2 times, 8.50s in all: app.py:12 in quote"]
