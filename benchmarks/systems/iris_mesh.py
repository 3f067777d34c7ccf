"""Iris through its public names, as its users write it; everything is sealed.

The nodes are in a local realm of their own, which needs no set-up, and talk over loopback TCP as the peers do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import trio

import iris
from benchmarks.system import Roles, System, Task
from benchmarks.systems.iris_life import (
    CLUSTER,
    LOOPBACK,
    broadcast_sink,
    broadcast_source,
    handshake_sink,
    handshake_source,
    links_sink,
    links_source,
    member,
    start_nodes,
    subscriptions,
    tcp_address,
)
from benchmarks.systems.iris_members import members
from iris.bench.cases import Kind
from iris.bench.workload import (
    age_events,
    ask,
    count_events,
    echo,
    publish_events,
    publish_paced,
    receive_bulk,
    send_stream,
)

TOPIC = "benchmark"

TCP = iris.Environment(directory=None, lan=None)
"""Nodes of one machine that find each other there talk over Unix sockets."""


def _open(cluster: str | None = None, *, seeds: Sequence[str] = ()) -> AbstractAsyncContextManager[iris.Node]:
    return iris.open_node(cluster, listen=LOOPBACK, seeds=seeds, environment=TCP)


async def stream_sink(task: Task) -> None:
    async with _open() as node:
        await count_events(node, TOPIC, task, lambda: task.ready(tcp_address(node)))


async def _stream_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await publish_events(node, TOPIC, task)
        await trio.sleep_forever()  # the sinks end the trial


async def _paced_sink(task: Task) -> None:
    async with _open() as node:
        await age_events(node, TOPIC, task, lambda: task.ready(tcp_address(node)))


async def _paced_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await publish_paced(node, TOPIC, task)
        await trio.sleep_forever()


async def request_sink(task: Task) -> None:
    service = iris.Service(CLUSTER)
    service.request(echo)
    limits = iris.Limits(concurrency=task.case.concurrency)
    async with _open(CLUSTER) as node, node.join(CLUSTER, service, limits=limits):
        task.ready(tcp_address(node))
        await trio.sleep_forever()


async def _request_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await node.wait_for(CLUSTER)
        await ask(node, CLUSTER, task)


async def _tunnel_sink(task: Task) -> None:
    service = iris.Service(CLUSTER)

    @service.tunnel
    async def receive(tunnel: iris.Tunnel) -> None:
        await receive_bulk(tunnel, task)

    async with _open(CLUSTER) as node, node.join(CLUSTER, service):
        task.ready(tcp_address(node))
        await trio.sleep_forever()


async def _tunnel_source(task: Task) -> None:
    async with _open(seeds=task.addresses) as node:
        await node.wait_for(CLUSTER)
        async with node.open_tunnel(CLUSTER) as tunnel:
            await send_stream(task, tunnel.send)
            await tunnel.send_eof()


def _program(work: Callable[[Task], Awaitable[None]]) -> Callable[[Task], None]:
    return lambda task: trio.run(work, task)


def _roles() -> dict[Kind, Roles]:
    return {
        "stream": Roles(sink=_program(stream_sink), source=_program(_stream_source)),
        "paced": Roles(sink=_program(_paced_sink), source=_program(_paced_source)),
        "request": Roles(sink=_program(request_sink), source=_program(_request_source)),
        "tunnel": Roles(sink=_program(_tunnel_sink), source=_program(_tunnel_source)),
        "broadcast": Roles(sink=_program(broadcast_sink), source=_program(broadcast_source)),
        "handshake": Roles(sink=_program(handshake_sink), source=_program(handshake_source)),
        "start": Roles(sink=_program(member), source=start_nodes),
        "links": Roles(sink=_program(links_sink), source=_program(links_source)),
        "subscriptions": Roles(sink=_program(subscriptions), source=_program(subscriptions)),
        "members": Roles(sink=_program(members), source=_program(members)),
    }


SYSTEM = System(
    name="iris",
    package="iris-mesh",
    encrypted=True,
    module="iris",
    roles=_roles(),
    quick=True,
)
