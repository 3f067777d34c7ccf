"""Operators: a node answers them, and asks other nodes for them; see ``iris.node.report``."""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

import trio

from iris.kernel.errors import RemoteError
from iris.kernel.names import NodeId
from iris.node.report import (
    BOOKS,
    LIMITS,
    LONGEST_SETTLE,
    PING,
    REPORT,
    TOPICS,
    BooksOrder,
    BooksReport,
    DrainOrder,
    LinkReport,
    NodeReport,
    OperatorsService,
    TopicsReport,
    books_of,
    links_of,
    ping,
    report_of,
    topics_of,
)
from iris.node.statistics import DRAIN, NODES, RESERVED
from iris.patterns.messages import Request
from iris.patterns.payloads import converted_reply, reply_converter
from iris.patterns.service import Role

if TYPE_CHECKING:
    from iris.node.node import Node

_log: Final = logging.getLogger("iris")

_DRAIN_TIMEOUT: Final = 2.0


# -- answering ----------------------------------------------------------------------------------------------


def unready(node: Node, *, member: bool) -> str | None:
    """Return why no new work should come to a node; None if it may.

    Args:
        member: True if this node is to be a member of a cluster, a gateway or a bridge.
    """
    if node._guard.is_closed:
        return "closed"
    memberships = [joined for name, joined in node._serving.memberships.items() if name not in RESERVED]
    if any(membership.draining for membership in memberships):
        return "draining"
    return "member of no cluster" if member and not memberships and not node._reports else None


async def answer_operators(node: Node, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Answer operators until cancelled.

    It is a task and no block around the program: each request looks at all cancel scopes around its caller.
    """
    started = trio.current_time()
    nodes, drains = OperatorsService(NODES), OperatorsService(DRAIN)
    nodes.request(PING)(ping)

    @nodes.request(REPORT)
    async def report(_: Request) -> NodeReport:
        return report_of(
            node.statistics(),
            trio.current_time() - started,
            draining=[name for name, joined in node._serving.memberships.items() if joined.draining],
            more=await gather_reports(node),
            site=node.site,
            linked=linked(node),
        )

    @nodes.request(TOPICS)
    def topics(_: Request) -> TopicsReport:
        return topics_of(node._pubsub.subscribed(), node._publishing.topics())

    @nodes.request(BOOKS)
    async def books(order: BooksOrder) -> BooksReport:
        return books_of(await node.books(order.pattern, settle=min(order.settle, LONGEST_SETTLE)))

    @drains.request
    def drain(order: DrainOrder, request: Request) -> None:
        _drain(node, order, request.sender.node)

    serving = node._serving
    with trio.CancelScope() as scope:
        async with serving.serve(NODES, Role(nodes, LIMITS)), serving.serve(DRAIN, Role(drains, LIMITS)):
            task_status.started(scope)
            await trio.sleep_forever()


async def gather_reports(node: Node) -> dict[str, Any]:
    """Return what is built on a node counts, by name."""
    gathered: dict[str, object] = {}
    for name, report in list(node._reports.items()):
        reported = report()
        gathered[name] = await reported if isawaitable(reported) else reported
    return gathered


def _drain(node: Node, order: DrainOrder, operator: NodeId) -> None:
    """Have this member take no new work, or again take some; nothing else changes."""
    cluster, joined = order.cluster, node._joined
    membership = node._serving.memberships.get(cluster)
    if membership is None or not joined.has(cluster):
        raise RemoteError("not_a_member", f"this node is no member of the cluster {cluster!r:.130}")
    if membership.draining == order.draining:
        return
    if not order.draining and cluster not in joined.drained:
        raise RemoteError("leaving", f"this member leaves the cluster {cluster!r}: it cannot work again")
    membership.draining = order.draining
    joined.drain(cluster, draining=order.draining)
    (joined.drained.add if order.draining else joined.drained.discard)(cluster)
    _log.warning(
        "operator %s has this member of %s %s",
        operator,
        cluster,
        "take no new work" if order.draining else "work again",
        extra={"cluster": cluster, "peer": operator},
    )


def linked(node: Node) -> list[LinkReport]:
    """Return a report of each link of a node."""
    peers = [peer for mesh in node._meshes for peer in mesh.peers.values()]
    return links_of(peers, node.site, str if node._sites is None else node._sites.remote_members.name_of)


# -- asking -------------------------------------------------------------------------------------------------


async def ask_report(node: Node, member: NodeId, timeout: float) -> NodeReport:
    """Return the report of another node; raises as ``Node.request`` does."""
    reply = await ask_node(node, member, REPORT, timeout)
    report: NodeReport = converted_reply(reply_converter(NodeReport), reply, NODES)
    return report


async def order_drain(node: Node, member: NodeId, cluster: str, *, draining: bool) -> None:
    """Have one member of a cluster take no new work, or work again; raises as ``Node.request`` does.

    Needs the right to serve ``iris.nodes.drain``.
    """
    node._guard.check()
    order = DrainOrder(cluster=cluster, draining=draining)
    left = await node._reach.reach_node(member, _DRAIN_TIMEOUT)
    call = node._requests.call(DRAIN, order, timeout=left, member=member, idempotent=True)
    await node._requests.request(call)


async def ask_topics(node: Node, member: NodeId, timeout: float) -> TopicsReport:
    """Return what another node subscribes to and publishes on; raises as ``Node.request`` does."""
    reply = await ask_node(node, member, TOPICS, timeout)
    report: TopicsReport = converted_reply(reply_converter(TopicsReport), reply, NODES)
    return report


async def ask_books(node: Node, order: BooksOrder, member: NodeId, timeout: float) -> BooksReport:
    """Return what has become of what another node has sent; raises as ``Node.request`` does."""
    reply = await ask_node(node, member, BOOKS, timeout, order)
    report: BooksReport = converted_reply(reply_converter(BooksReport), reply, NODES)
    return report


async def ask_node(node: Node, member: NodeId, operation: str, timeout: float, payload: object = None) -> object:
    """Ask one node, whether it serves a cluster or none; raises as ``Node.request`` does."""
    node._guard.check()
    left = await node._reach.reach_node(member, timeout)
    call = node._requests.call(NODES, payload, timeout=left, operation=operation, member=member)
    return await node._requests.request(call)
