"""Iris through ``iris.aio``, at both ends: asyncio, as most of its users write it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from time import perf_counter
from typing import Any

import trio

import iris
import iris.aio
from benchmarks.system import Roles, System, Task
from benchmarks.systems.iris_life import (
    CLUSTER,
    FIRST_LINKS,
    LINKS,
    LOOPBACK,
    SUBSCRIPTIONS,
    links_source,
    resident,
    start_nodes,
    tcp_address,
)
from benchmarks.systems.iris_mesh import TCP, TOPIC
from iris.bench.workload import (
    MARK_SIZE,
    Ages,
    Latencies,
    count_events,
    echo,
    finish_stream,
    publish_events,
    send_paced,
    send_stream,
)


def _open(cluster: str | None = None, *, seeds: Sequence[str] = ()) -> AbstractAsyncContextManager[iris.aio.Node]:
    return iris.aio.open_node(cluster, listen=LOOPBACK, seeds=seeds, environment=TCP)


async def _stream_sink(task: Task) -> None:
    async with _open() as node:
        await count_events(node, TOPIC, task, lambda: task.ready(tcp_address(node)))


async def _stream_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await publish_events(node, TOPIC, task)
        await asyncio.Event().wait()  # the sinks end the trial


async def _request_sink(task: Task) -> None:
    service = iris.Service(CLUSTER)
    service.request(echo)
    limits = iris.Limits(concurrency=task.case.concurrency)
    async with _open(CLUSTER) as node, node.join(CLUSTER, service, limits=limits):
        task.ready(tcp_address(node))
        await asyncio.Event().wait()


async def request_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await node.wait_for(CLUSTER)
        latencies = Latencies(task)

        async def ask(payload: bytes) -> object:
            return await node.request(CLUSTER, payload)

        await asyncio.gather(*(latencies.client(ask) for _ in range(task.case.concurrency)))
        latencies.finish()


async def _paced_sink(task: Task) -> None:
    ages = Ages()
    async with _open() as node, node.subscribe(TOPIC) as events:
        task.ready(tcp_address(node))
        async for event in events:
            if len(event.payload) == MARK_SIZE:
                ages.finish(task, event.payload)
                return
            ages.note(event.payload)


async def _paced_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await send_paced(task, lambda payload: node.publish(TOPIC, payload), asyncio.sleep)
        await asyncio.Event().wait()


async def _tunnel_sink(task: Task) -> None:
    service = iris.aio.Service(CLUSTER)

    @service.tunnel
    async def receive(tunnel: iris.aio.Tunnel) -> None:
        await tunnel.receive()
        received = 1
        started = perf_counter()
        async for payload in tunnel:
            if len(payload) == MARK_SIZE:
                finish_stream(task, received, started, payload)
                return
            received += 1

    async with _open(CLUSTER) as node, node.join(CLUSTER, service):
        task.ready(tcp_address(node))
        await asyncio.Event().wait()


async def _tunnel_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await node.wait_for(CLUSTER)
        async with node.open_tunnel(CLUSTER) as tunnel:
            await send_stream(task, tunnel.send)
            await tunnel.send_eof()


async def _broadcast_sink(task: Task) -> None:
    service = iris.aio.Service(CLUSTER)
    received = 0
    started = 0.0
    ended = asyncio.Event()

    @service.broadcast
    async def receive(message: iris.Message) -> None:
        nonlocal received, started
        if len(message.payload) == MARK_SIZE:
            finish_stream(task, received, started, message.payload)
            ended.set()
        elif not received:
            started = perf_counter()
        received += 1

    async with _open(CLUSTER) as node, node.join(CLUSTER, service):
        task.ready(tcp_address(node))
        await ended.wait()


async def _broadcast_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await node.wait_for(CLUSTER, members=len(task.addresses))
        await send_stream(task, lambda payload: node.broadcast(CLUSTER, payload))
        await asyncio.Event().wait()


async def _member(task: Task) -> None:
    async with iris.aio.open_node(CLUSTER, listen=LOOPBACK) as node, node.join(CLUSTER, iris.aio.Service(CLUSTER)):
        task.ready(tcp_address(node))
        await asyncio.Event().wait()


_STARTING = """
from time import perf_counter
begin = perf_counter()
import asyncio
import sys
import iris.aio
imported = perf_counter()

async def main() -> None:
    async with iris.aio.open_node(seeds=sys.argv[1:]) as node:
        await node.wait_for("benchmark")
        joined = perf_counter()
        print((joined - imported) * 1000, (joined - begin) * 1000)

asyncio.run(main())
"""


async def _subscriptions(task: Task) -> None:
    async with iris.aio.open_node() as node, AsyncExitStack() as stack:
        await stack.enter_async_context(node.subscribe("benchmark.first"))
        before = resident()
        for number in range(SUBSCRIPTIONS):
            await stack.enter_async_context(node.subscribe(f"benchmark.{number}"))
        task.finish(memory=(resident() - before) / SUBSCRIPTIONS / 1024)


async def _links_sink(task: Task) -> None:
    async with iris.aio.open_node(CLUSTER, listen=LOOPBACK) as node:
        task.ready(tcp_address(node))
        await _linked(node, FIRST_LINKS)
        before, had = resident(), len(node.statistics().links)
        await _linked(node, FIRST_LINKS + LINKS)
        await asyncio.sleep(task.seconds)
        task.finish(memory=(resident() - before) / (len(node.statistics().links) - had) / 1024)


async def _linked(node: iris.aio.Node, links: int) -> None:
    while len(node.statistics().links) < links:  # noqa: ASYNC110 - statistics wake nobody
        await asyncio.sleep(0.02)


def _program(work: Callable[[Task], Coroutine[Any, Any, None]]) -> Callable[[Task], None]:
    return lambda task: asyncio.run(work(task))


SYSTEM = System(
    name="iris.aio",
    package="iris-mesh",
    encrypted=True,
    module="iris",
    roles={
        "stream": Roles(sink=_program(_stream_sink), source=_program(_stream_source)),
        "paced": Roles(sink=_program(_paced_sink), source=_program(_paced_source)),
        "request": Roles(sink=_program(_request_sink), source=_program(request_source)),
        "tunnel": Roles(sink=_program(_tunnel_sink), source=_program(_tunnel_source)),
        "broadcast": Roles(sink=_program(_broadcast_sink), source=_program(_broadcast_source)),
        "links": Roles(sink=_program(_links_sink), source=lambda task: trio.run(links_source, task)),
        "start": Roles(sink=_program(_member), source=partial(start_nodes, program=_STARTING)),
        "subscriptions": Roles(sink=_program(_subscriptions), source=_program(_subscriptions)),
    },
    quick=True,
)
