"""Rows that ``iris top`` shows as trouble: losses, and members that left, but no command that has ended."""

from __future__ import annotations

from iris.cli.operators.top import rows
from iris.cluster.membership import NodeInfo
from iris.kernel.names import NodeId
from iris.node.realm.views import AbsentNode, RealmView


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
