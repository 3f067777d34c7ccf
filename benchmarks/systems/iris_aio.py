"""Iris through ``iris.aio``, at both ends: asyncio, as most of its users write it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import iris
import iris.aio
from benchmarks.system import Roles, System, Task
from benchmarks.systems.iris_life import CLUSTER, LOOPBACK, tcp_address
from benchmarks.systems.iris_mesh import TCP, TOPIC
from iris.bench.workload import Latencies, count_events, echo, publish_events


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


SYSTEM = System(
    name="iris.aio",
    package="iris-mesh",
    encrypted=True,
    module="iris",
    roles={
        "stream": Roles(
            sink=lambda task: asyncio.run(_stream_sink(task)),
            source=lambda task: asyncio.run(_stream_source(task)),
        ),
        "request": Roles(
            sink=lambda task: asyncio.run(_request_sink(task)),
            source=lambda task: asyncio.run(request_source(task)),
        ),
    },
    quick=True,
)
