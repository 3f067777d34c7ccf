"""Iris through its public names, as its users write it; everything is sealed.

The nodes are in a local realm of their own, which needs no set-up, and meet over loopback TCP as the peers do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter

import trio

import iris
from benchmarks.case import Kind
from benchmarks.meter import MARK_SIZE, Ages, Latencies, finish_stream, send_paced, send_stream
from benchmarks.system import Roles, System, Task
from benchmarks.systems.iris_life import (
    CLUSTER,
    LOOPBACK,
    broadcast_sink,
    broadcast_source,
    links_sink,
    links_source,
    member,
    start_nodes,
    subscriptions,
    tcp_address,
)

TOPIC = "benchmark"


async def _stream_sink(task: Task) -> None:
    async with iris.open_node(listen=LOOPBACK) as node, node.subscribe(TOPIC, overflow="wait") as events:
        task.ready(tcp_address(node))
        received = 0
        started = 0.0
        async for event in events:
            if len(event.payload) == MARK_SIZE:
                finish_stream(task, received, started, event.payload)
                return
            if not received:
                started = perf_counter()
            received += 1


async def _stream_source(task: Task) -> None:
    async with iris.open_node(listen=LOOPBACK, seeds=task.addresses) as node:
        await send_stream(task, lambda payload: node.publish(TOPIC, payload))
        await trio.sleep_forever()  # the sinks end the trial


async def _paced_sink(task: Task) -> None:
    ages = Ages()
    async with iris.open_node(listen=LOOPBACK) as node, node.subscribe(TOPIC) as events:
        task.ready(tcp_address(node))
        async for event in events:
            if len(event.payload) == MARK_SIZE:
                ages.finish(task, event.payload)
                return
            ages.note(event.payload)


async def _paced_source(task: Task) -> None:
    async with iris.open_node(listen=LOOPBACK, seeds=task.addresses) as node:
        await send_paced(task, lambda payload: node.publish(TOPIC, payload), trio.sleep)
        await trio.sleep_forever()


async def _request_sink(task: Task) -> None:
    service = iris.Service(CLUSTER)

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    limits = iris.Limits(concurrency=task.case.concurrency)
    async with iris.open_node(CLUSTER, listen=LOOPBACK) as node, node.join(CLUSTER, service, limits=limits):
        task.ready(tcp_address(node))
        await trio.sleep_forever()


async def _request_source(task: Task) -> None:
    latencies = Latencies(task)
    async with iris.open_node(listen=LOOPBACK, seeds=task.addresses) as node:
        await node.wait_for(CLUSTER)

        async def ask(payload: bytes) -> object:
            return await node.request(CLUSTER, payload)

        async with trio.open_nursery() as nursery:
            for _ in range(task.case.concurrency):
                nursery.start_soon(latencies.client, ask)
        latencies.finish()


async def _tunnel_sink(task: Task) -> None:
    service = iris.Service(CLUSTER)

    @service.tunnel
    async def receive(tunnel: iris.Tunnel) -> None:
        await tunnel.receive()
        received = 1
        started = perf_counter()
        async for payload in tunnel:
            if len(payload) == MARK_SIZE:
                finish_stream(task, received, started, payload)
            received += 1

    async with iris.open_node(CLUSTER, listen=LOOPBACK) as node, node.join(CLUSTER, service):
        task.ready(tcp_address(node))
        await trio.sleep_forever()


async def _tunnel_source(task: Task) -> None:
    async with iris.open_node(listen=LOOPBACK, seeds=task.addresses) as node:
        await node.wait_for(CLUSTER)
        async with node.open_tunnel(CLUSTER) as tunnel:
            await send_stream(task, tunnel.send)
            await tunnel.send_eof()


def _program(work: Callable[[Task], Awaitable[None]]) -> Callable[[Task], None]:
    return lambda task: trio.run(work, task)


def _roles() -> dict[Kind, Roles]:
    return {
        "stream": Roles(sink=_program(_stream_sink), source=_program(_stream_source)),
        "paced": Roles(sink=_program(_paced_sink), source=_program(_paced_source)),
        "request": Roles(sink=_program(_request_sink), source=_program(_request_source)),
        "tunnel": Roles(sink=_program(_tunnel_sink), source=_program(_tunnel_source)),
        "broadcast": Roles(sink=_program(broadcast_sink), source=_program(broadcast_source)),
        "start": Roles(sink=_program(member), source=start_nodes),
        "links": Roles(sink=_program(links_sink), source=_program(links_source)),
        "subscriptions": Roles(sink=_program(subscriptions), source=_program(subscriptions)),
    }


SYSTEM = System(
    name="iris",
    package="iris-mesh",
    encrypted=True,
    module="iris",
    roles=_roles(),
    quick=True,
)
