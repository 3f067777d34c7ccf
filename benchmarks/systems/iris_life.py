"""Costs of Iris besides messages: starting a node, a handshake, a link that does nothing, a subscription."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import trio

import iris
import iris.aio
from benchmarks.system import Task
from iris.bench.workload import UNLIMITED, BroadcastCount, broadcast, shake_hands

CLUSTER = "benchmark"
LOOPBACK = ("tcp://127.0.0.1:0",)

STARTS = 5
FIRST_LINKS = 5
LINKS = 20
SUBSCRIPTIONS = 1000

_STARTING = """
from time import perf_counter
begin = perf_counter()
import sys
import iris
import trio
imported = perf_counter()

async def main() -> None:
    async with iris.open_node(seeds=sys.argv[1:]) as node:
        await node.wait_for("benchmark")
        joined = perf_counter()
        print((joined - imported) * 1000, (joined - begin) * 1000)

trio.run(main)
"""


def tcp_address(node: iris.Node | iris.aio.Node) -> str:
    """Return the address that others dial.  Nodes of one machine prefer ipc; the peers have TCP."""
    return next(address for address in node.addresses if address.startswith("tcp://"))


async def member(task: Task) -> None:
    """Be a member that others find, until the trial ends."""
    async with iris.open_node(CLUSTER, listen=LOOPBACK) as node, node.join(CLUSTER, iris.Service(CLUSTER)):
        task.ready(tcp_address(node))
        await trio.sleep_forever()


def start_nodes(task: Task, program: str = _STARTING) -> None:
    """Start a few processes, one after the other, each with a node that has joined when it sees the member.

    One comes before those that count: it compiles what has changed since the last run, as an installer would have.
    """
    joins: list[float] = []
    everything: list[float] = []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program, *task.addresses]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    for _ in range(STARTS):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        join, everything_here = map(float, done.stdout.split())
        joins.append(join)
        everything.append(everything_here)
    task.finish(join=statistics.median(joins), start=statistics.median(everything))


async def handshake_sink(task: Task) -> None:
    """Be a node that others connect to."""
    async with iris.open_node(CLUSTER, listen=LOOPBACK, config=UNLIMITED) as node:
        task.ready(tcp_address(node))
        await trio.sleep_forever()


async def handshake_source(task: Task) -> None:
    """Connect again and again."""
    async with iris.open_node(CLUSTER, listen=LOOPBACK, seeds=task.addresses) as node:
        await shake_hands(node, task.addresses, task)


async def broadcast_sink(task: Task) -> None:
    """Count broadcasts."""
    service = iris.Service(CLUSTER)
    count = BroadcastCount(task)

    @service.broadcast
    async def receive(message: iris.Message) -> None:
        count.note(message.payload)

    async with iris.open_node(CLUSTER, listen=LOOPBACK) as node, node.join(CLUSTER, service):
        task.ready(tcp_address(node))
        await count.ended.wait()


async def broadcast_source(task: Task) -> None:
    """Broadcast as fast as it goes."""
    async with iris.open_node(seeds=task.addresses) as node:
        await node.wait_for(CLUSTER, members=len(task.addresses))
        await broadcast(node, CLUSTER, task)
        await trio.sleep_forever()


async def links_sink(task: Task) -> None:
    """Measure what links from many nodes cost the node that they link to: what each after the first few adds."""
    async with iris.open_node(CLUSTER, listen=LOOPBACK) as node:
        task.ready(tcp_address(node))
        await _linked(node, FIRST_LINKS)
        before, had = resident(), len(node.statistics().links)
        await _linked(node, FIRST_LINKS + LINKS)
        await trio.sleep(task.seconds)
        task.finish(memory=(resident() - before) / (len(node.statistics().links) - had) / 1024)


async def _linked(node: iris.Node, links: int) -> None:
    while len(node.statistics().links) < links:  # noqa: ASYNC110 - statistics wake nobody
        await trio.sleep(0.02)


async def links_source(task: Task) -> None:
    """Be many nodes that do nothing, of which the first few come first."""

    async def idle(task_status: trio.TaskStatus[None]) -> None:
        async with iris.open_node(seeds=task.addresses) as node:
            await _linked(node, 1)
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(FIRST_LINKS + LINKS):
            await nursery.start(idle)


async def subscriptions(task: Task) -> None:
    """Measure what many subscriptions of one node cost, without the tasks of those who read them."""
    async with iris.open_node() as node, AsyncExitStack() as stack:
        await stack.enter_async_context(node.subscribe("benchmark.first"))
        before = resident()
        for number in range(SUBSCRIPTIONS):
            await stack.enter_async_context(node.subscribe(f"benchmark.{number}"))
        task.finish(memory=(resident() - before) / SUBSCRIPTIONS / 1024)


def resident() -> int:
    """Return the bytes that this process has in memory."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmRSS")
