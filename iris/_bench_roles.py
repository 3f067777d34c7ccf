"""Iris's part in each measurement, for nodes that are up already.

``iris bench`` measures a user's network with it, and ``make bench`` this machine, beside other systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import final

import trio

import iris
from iris._bench_meter import MARK_SIZE, Ages, Latencies, Task, finish_stream, send_paced, send_stream
from iris.kernel.ids import NodeId


async def count_events(node: iris.Node, topic: str, task: Task, ready: Callable[[], None]) -> None:
    """Count events until the end mark; ``ready`` is called when none will be missed."""
    async with node.subscribe(topic, overflow="wait") as events:
        ready()
        received = 0
        started = 0.0
        async for event in events:
            if len(event.payload) == MARK_SIZE:
                finish_stream(task, received, started, event.payload)
                return
            if not received:
                started = perf_counter()
            received += 1


async def publish_events(node: iris.Node, topic: str, task: Task) -> None:
    """Publish as fast as it goes."""
    await send_stream(task, lambda payload: node.publish(topic, payload))


async def age_events(node: iris.Node, topic: str, task: Task, ready: Callable[[], None]) -> None:
    """Note how old events are, until the end mark."""
    ages = Ages()
    async with node.subscribe(topic) as events:
        ready()
        async for event in events:
            if len(event.payload) == MARK_SIZE:
                ages.finish(task, event.payload)
                return
            ages.note(event.payload)


async def publish_paced(node: iris.Node, topic: str, task: Task) -> None:
    """Publish at the pace of the case."""
    await send_paced(task, lambda payload: node.publish(topic, payload), trio.sleep)


async def echo(request: iris.Request) -> object:
    """Answer with the payload."""
    return request.payload


async def ask(node: iris.Node, cluster: str, task: Task, *, prefer: str | None = None) -> None:
    """Ask with as many requests under way as the case says."""
    latencies = Latencies(task)
    member = None if prefer is None else NodeId(prefer)

    async def request(payload: bytes) -> object:
        return await node.request(cluster, payload, prefer=member)

    async with trio.open_nursery() as nursery:
        for _ in range(task.case.concurrency):
            nursery.start_soon(latencies.client, request)
    latencies.finish()


async def receive_bulk(tunnel: iris.Tunnel, task: Task) -> None:
    """Take pieces until the end mark."""
    await tunnel.receive()
    received = 1
    started = perf_counter()
    async for payload in tunnel:
        if len(payload) == MARK_SIZE:
            finish_stream(task, received, started, payload)
            return
        received += 1


@final
class BroadcastCount:
    """Counts broadcasts until the end mark."""

    def __init__(self, task: Task) -> None:
        self.ended = trio.Event()
        self._task = task
        self._received = 0
        self._started = 0.0

    def note(self, payload: bytes) -> None:
        """Take one broadcast."""
        if len(payload) == MARK_SIZE:
            finish_stream(self._task, self._received, self._started, payload)
            self.ended.set()
        elif not self._received:
            self._started = perf_counter()
        self._received += 1


async def broadcast(node: iris.Node, cluster: str, task: Task) -> None:
    """Broadcast as fast as it goes."""
    await send_stream(task, lambda payload: node.broadcast(cluster, payload))


async def shake_hands(node: iris.Node, addresses: Sequence[str], task: Task) -> None:
    """Connect as nodes do when a connection broke: TCP, a full handshake, the first word under the new session."""
    latencies = Latencies(task)
    mesh = node._parts.mesh

    async def connect(_: bytes) -> None:
        peer = await mesh.connect(addresses)
        await mesh.barrier(peer.node)  # its answer shows that the other end has finished, too

    async with trio.open_nursery() as nursery:
        for _ in range(task.case.concurrency):
            nursery.start_soon(latencies.client, connect)
    latencies.finish()


UNLIMITED = iris.Config(handshake_rate=1e6, handshake_burst=1_000_000, half_open_per_address=1024)
"""For a node that all come to from one address: such a one may otherwise begin 50 handshakes a second."""
