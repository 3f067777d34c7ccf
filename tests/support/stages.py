"""Complete nodes for tests of what users call, whose counters have to add up when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

import iris
import iris.testing
from iris.testing import Network

IN_FLIGHT = 0.2
"""Seconds, of the virtual clock, after which nothing is in flight any more in a network without faults."""


class Stage:
    """Nodes that stay up until the test is over.  Use it in the task that opened it."""

    def __init__(self, network: Network, stack: AsyncExitStack) -> None:
        self.network = network
        self.harmless: tuple[str, ...] = ()
        """Parts of reasons for which nodes may have refused messages."""
        self._stack = stack
        self._nodes: dict[str, iris.Node] = {}

    async def node(self, name: str, host: str | None = None, **options: Any) -> iris.Node:
        """Bring up a node that speaks for a cluster; its host has the same name unless another is given."""
        host = host or name
        node = await self._stack.enter_async_context(self.network.open_node(name, host=host, **options))
        self._nodes[host] = node
        return node

    async def member(
        self, service: iris.Service, host: str | None = None, *, limits: iris.Limits | None = None, **options: Any
    ) -> iris.Node:
        """Bring up a node that is a member of the service's cluster."""
        node = await self.node(service.name, host, **options)
        await self._stack.enter_async_context(node.join(service.name, service, limits=limits))
        return node

    async def join(self, node: iris.Node, service: iris.Service) -> None:
        """Have a node be a member of one more cluster."""
        await self._stack.enter_async_context(node.join(service.name, service))

    async def pair(self, service: iris.Service, **options: Any) -> tuple[iris.Node, iris.Node]:
        """Bring up one member of the service's cluster, and a node ``shop`` that knows of it."""
        member = await self.member(service, **options)
        shop = await self.node("shop")
        await shop.wait_for(service.name)
        return member, shop

    def crash(self, host: str) -> None:
        """Kill a host; the counters of its node are nobody's business any more."""
        self.network.memory.crash(host)
        self._nodes.pop(host, None)

    def forget_accounts(self) -> None:
        """Ignore the counters of all nodes: messages in flight were given up."""
        self._nodes.clear()

    def check_accounts(self) -> None:
        """Assert that every message of every living node is accounted for, and none is in progress."""
        for node in self._nodes.values():
            check_accounts(node, *self.harmless)


def check_accounts(node: iris.Node, *harmless: str) -> None:
    """Assert that the counters of a node add up, and that nothing is in progress.

    Args:
        node: whose.
        harmless: parts of reasons for which it may have refused messages.
    """
    statistics = node.statistics()
    for pattern in (statistics.requests, statistics.broadcasts, statistics.relayed, statistics.events):
        ended = pattern.answered + pattern.handed_over + pattern.expired + pattern.refused + sum(pattern.lost.values())
        assert pattern.sent == ended, pattern
        assert pattern.waiting == 0, pattern
    for service in statistics.services.values():
        ended = service.served + service.failed + service.expired + service.cancelled + service.refused
        assert service.received == ended, service
        assert (service.running, service.queued) == (0, 0), service
    for subscriptions in statistics.subscriptions.values():
        for subscription in subscriptions:
            taken = subscription.delivered + subscription.dropped + subscription.malformed + subscription.expired
            assert subscription.received == taken + subscription.waiting, subscription
            assert subscription.waiting >= 0, subscription
            assert subscription.waiting_bytes >= 0, subscription
    # After a crash, handshakes with what is gone are refused, and frames of others for it; what it had in hand may come
    # too late, and it cannot be linked.  Else messages never are.
    gone = ("handshake", "group", "not handed on: no link", "relayed events of a tree that was left", "cannot link")
    harmless = (*harmless, *gone)
    refused = [reason for reason in statistics.refusals if not any(known in reason for known in harmless)]
    assert not refused, statistics.refusals


@asynccontextmanager
async def open_stage(
    *, seed: int = 3, latency: tuple[float, float] = (0.0001, 0.0005), loss: float = 0.0
) -> AsyncIterator[Stage]:
    """Open a network; in the end, the counters of all its nodes are checked."""
    async with iris.testing.open_network(seed=seed, latency=latency, loss=loss) as network, AsyncExitStack() as stack:
        stage = Stage(network, stack)
        yield stage
        await trio.sleep(IN_FLIGHT)
        stage.check_accounts()
