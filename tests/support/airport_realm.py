"""A realm of real processes for operators to look at: two sites with their gateways, a bridge, callers, publishers.

Each role is a process of ``python -m tests.support.airport_realm ROLE``; gateways and the bridge are the commands.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, final

import trio

import iris
from tests.support.command import Terminal
from tests.support.federations import free_gateway_url

ROOT: Final = Path(__file__).resolve().parents[2]

SITE: Final = "airport"

MEMBERS: Final = {
    # cluster: members, seconds of a handler, handlers at a time, what it asks itself
    "flights": (3, 0.008, 8, "weather"),
    "gates": (2, 0.03, 2, None),
    "weather": (2, 0.002, 8, None),
    "tower": (1, 0.12, 1, None),
}

CALLERS: Final = {
    # name: (whom it asks, how often a second, with which timeout)
    "boards": (("flights", 24.0, 2.0), ("gates", 9.0, 2.0), ("ferries", 4.0, 2.0)),
    "planes": (("gates", 12.0, 2.0), ("tower", 7.0, 0.6)),
}


@final
class Airport:
    """The processes, by role."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}

    def start(self, stack: ExitStack, role: str) -> None:
        """Start one more process of a role."""
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.airport_realm", role],
                cwd=ROOT,
                env=self.terminal.environment,
                stdout=subprocess.PIPE,
            )
        )
        stack.callback(process.kill)
        self.processes.setdefault(role, []).append(process)

    def wait_up(self) -> None:
        """Wait until every one has said that it is up."""
        for process in (one for several in self.processes.values() for one in several):
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"


@contextmanager
def open_airport(terminal: Terminal, *, whole: bool = True, few: bool = False) -> Generator[Airport]:
    """Run it for the length of the block; not ``whole``: one site, no bridge; ``few``: one member of each cluster."""
    airport = Airport(terminal)
    with ExitStack() as stack:
        if whole:
            here, there = free_gateway_url(), free_gateway_url()
            options = ("--export", ">", "--export-topic", ">")
            for site, url, more in (("airport", here, ()), ("harbour", there, ("--peer", here))):
                gateway = ("gateway", "--site", site, "--listen", url, *more, *options)
                stack.enter_context(terminal.started(*gateway, announces="is a gateway"))
            bridge = ("bridge", "--topic", "planes.>", "--data", "log", "--site", SITE)
            stack.enter_context(terminal.started(*bridge, announces="serves bridge"))
            for role in ("ferries", "reader"):
                airport.start(stack, role)
        for cluster, (members, *_) in MEMBERS.items():
            for _ in range(1 if few else members):
                airport.start(stack, cluster)
        for caller in CALLERS:
            airport.start(stack, caller)
        airport.wait_up()
        yield airport


async def _serve(cluster: str, seconds: float, at_once: int, asks: str | None, site: str) -> None:
    service, rng = iris.Service(cluster), random.Random(os.getpid())
    async with iris.open_node(cluster, site=site) as node:

        @service.request("look_up")
        async def look_up(request: iris.Request) -> object:
            await trio.sleep(seconds * rng.uniform(0.4, 2.2))
            if asks and rng.random() < 0.5:
                with suppress(iris.DeliveryError):
                    await node.request(asks, request.payload, operation="look_up")
            if rng.random() < 0.002:
                raise ValueError("no such flight")
            return request.payload

        limits = iris.Limits(concurrency=at_once, queue=64)
        async with node.join(cluster, service, limits=limits):
            sys.stdout.write("up\n")
            sys.stdout.flush()
            await trio.sleep_forever()


async def _call(name: str) -> None:
    """Ask and publish until SIGUSR1 comes."""
    rng = random.Random(os.getpid())

    async def ask(node: iris.Node, cluster: str, timeout: float) -> None:
        with suppress(iris.DeliveryError):
            await node.request(
                cluster, b"x" * 200, operation="look_up", timeout=timeout, options=iris.RequestOptions(idempotent=True)
            )

    async def keep_asking(node: iris.Node, cluster: str, often: float, timeout: float) -> None:
        while True:
            wave = 1 + 0.45 * random.Random(int(time.monotonic() / 4)).uniform(-1, 1)
            await trio.sleep(rng.expovariate(often * wave))
            asking.start_soon(ask, node, cluster, timeout)

    async def keep_publishing(node: iris.Node) -> None:
        while True:
            await trio.sleep(rng.expovariate(20.0))
            await node.publish(f"{name}.position", b"y" * 100)

    async with iris.open_node(name, site=SITE) as node:
        sys.stdout.write("up\n")
        sys.stdout.flush()
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            async with trio.open_nursery() as asking:
                for cluster, often, timeout in CALLERS[name]:
                    asking.start_soon(keep_asking, node, cluster, often, timeout)
                asking.start_soon(keep_publishing, node)
                await anext(signals)
                asking.cancel_scope.cancel()
            await trio.sleep_forever()


async def _read() -> None:
    """Be a group of readers of the bridge that has read nothing yet."""
    from iris.spark_bridge.client import BridgeClient

    async with iris.open_node("reader", site=SITE) as node:
        await node.wait_for("bridge", timeout=60)
        client = BridgeClient(node, "bridge", patience=30)
        (shard,) = await client.shards()
        await client.pin("bridge", "delays", {shard.id: 0})
        sys.stdout.write("up\n")
        sys.stdout.flush()
        await trio.sleep_forever()


async def _main(role: str) -> None:
    if role in CALLERS:
        await _call(role)
    elif role == "reader":
        await _read()
    elif role == "ferries":
        await _serve(role, 0.01, 4, None, "harbour")
    else:
        _, seconds, at_once, asks = MEMBERS[role]
        await _serve(role, seconds, at_once, asks, SITE)


if __name__ == "__main__":
    trio.run(_main, sys.argv[1])
