"""The books of every node that a test opens in its own process: at its end each of them has to add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

import iris
import iris.node.open
import iris.patterns.pubsub.pubsub
import iris.patterns.service.server
from iris.patterns.books import PatternStatistics
from iris.patterns.pubsub.subscribe.subscription import Subscription
from iris.patterns.service.worker_pool import WorkerPool


def check_pattern(pattern: PatternStatistics) -> None:
    """sent = answered + handed over + expired + refused + lost, and nothing is in progress."""
    ended = pattern.answered + pattern.handed_over + pattern.expired + pattern.refused + sum(pattern.lost.values())
    assert pattern.sent == ended, pattern
    assert pattern.waiting == 0, pattern


def check_node(node: iris.Node) -> None:
    """Check the counters of a closed node."""
    statistics = node.statistics()
    tunnels = statistics.tunnels
    for pattern in (
        statistics.requests, statistics.broadcasts, statistics.relayed, statistics.events, tunnels.messages
    ):  # fmt: skip
        check_pattern(pattern)
    publishing = statistics.publishing
    assert publishing.sent == publishing.handed_over + sum(publishing.lost.values()), publishing
    for link in statistics.links.values():
        assert link.posted == link.sent + link.lost + link.waiting, link
    assert tunnels.open == 0, tunnels
    check_refusals(statistics.refusals)


def check_refusals(refusals: Mapping[str, int]) -> None:
    """Check that nothing sent by a peer has caused an unexpected error: such an error ends only a link and is a bug."""
    assert not [reason for reason in refusals if reason.startswith("unexpected error")], refusals


def check_membership(membership: WorkerPool) -> None:
    """Check the counters of a member that has left."""
    it = membership.statistics()
    assert it.received == it.served + it.failed + it.expired + it.cancelled + it.refused, it
    assert (it.running, it.queued) == (0, 0), it
    assert it.shed <= it.refused, it
    ended = it.broadcasts + it.broadcasts_failed + it.broadcasts_refused + it.broadcasts_cancelled
    assert it.broadcasts_received == ended, it
    assert it.tunnels_received == it.tunnels_served + it.tunnels_failed + it.tunnels_cancelled, it
    assert (it.broadcasts_queued, it.tunnels_running) == (0, 0), it


def check_subscription(subscription: Subscription) -> None:
    """Check the counters of a subscription that has ended."""
    it = subscription.statistics()
    assert it.received == it.delivered + it.dropped + it.malformed + it.expired + it.waiting, it
    assert it.waiting >= 0, it
    assert it.waiting_bytes >= 0, it


@contextmanager
def accounts_add_up() -> Iterator[None]:
    """Note every node, membership and subscription that is made in the block, and check them at its end."""
    nodes: list[iris.Node] = []
    memberships: list[WorkerPool] = []
    subscriptions: list[Subscription] = []

    def open_node(*arguments: Any, **options: Any) -> iris.Node:
        nodes.append(iris.Node(*arguments, **options))
        return nodes[-1]

    def join(*arguments: Any, **options: Any) -> WorkerPool:
        memberships.append(WorkerPool(*arguments, **options))
        return memberships[-1]

    def subscribe(*arguments: Any, **options: Any) -> Subscription:
        subscriptions.append(Subscription(*arguments, **options))
        return subscriptions[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iris.node.open, "Node", open_node)
        patch.setattr(iris.patterns.service.server, "WorkerPool", join)
        patch.setattr(iris.patterns.pubsub.pubsub, "Subscription", subscribe)
        yield
    for node in nodes:
        check_node(node)
    for membership in memberships:
        check_membership(membership)
    for subscription in subscriptions:
        check_subscription(subscription)
