"""``python -m benchmarks.subscribers [SUBSCRIBERS] [EVENTS]``: one publisher to many subscribers, over real sockets.

Each subscriber is a node of its own with a link of its own to the publisher; they run in four processes.  Membership is
left out, and the publisher sends to each directly: no trees.  To compare two checkouts, run it by turns with
``PYTHONPATH`` at the one and the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, time
from typing import Final, cast

import trio

from iris.cluster.membership import Membership
from iris.cluster.mesh.mesh import Mesh
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.transport.network import NetworkTransport
from iris.node.build import Patterns, build_patterns
from iris.node.environment import Environment
from iris.patterns.service.worker_pool import WorkerPools
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.files import load_credential, save_credential
from iris.security.identity.credential import Credential
from tests.support.admission import open_reading_mesh
from tests.support.meshes import StaticDirectory

CONFIG: Final = Config(
    relay_above=10_000, handshake_timeout=60.0, session_lifetime=3600.0, session_rejected=7200.0
)  # fmt: skip

PROCESSES: Final = 4
TOPIC: Final = "benchmark"
PAYLOAD: Final = bytes(100)
WARM_UP: Final = 100
"""Events before those that count."""


@asynccontextmanager
async def _open(credential: Credential) -> AsyncIterator[tuple[Mesh, Patterns]]:
    transport = NetworkTransport(CONFIG)
    listening = await transport.listen(["tcp://127.0.0.1:0"])
    identity = credential.new_identity(os.urandom, time())
    async with (
        open_reading_mesh(
            identity, transport, listening, config=CONFIG, entropy=os.urandom, wall_clock=time
        ) as mesh,
        trio.open_nursery() as nursery,
    ):  # fmt: skip
        directory = StaticDirectory()
        patterns = build_patterns(
            mesh,
            cast("Membership", directory),
            WorkerPools(),
            reach=directory,
            elsewhere=None,
            lookups=None,
            environment=Environment(),
            tracing=None,
        )
        mesh.observe(*patterns.observers)
        nursery.start_soon(patterns.pubsub.run)
        nursery.start_soon(patterns.books.run)
        yield mesh, patterns
        nursery.cancel_scope.cancel()


async def _subscribe(credential: Credential, events: int, task_status: trio.TaskStatus[Mesh]) -> None:
    async with _open(credential) as (mesh, patterns), patterns.pubsub.subscribe(TOPIC) as subscription:
        task_status.started(mesh)
        for count in (WARM_UP, events):
            for _ in range(count):
                await anext(subscription)
            sys.stdout.write("done\n")
            sys.stdout.flush()
        await trio.sleep_forever()


async def _subscribe_all(credential: Credential, subscribers: int, events: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(subscribers):
            mesh = await nursery.start(_subscribe, credential, events)
            sys.stdout.write(f"{mesh.node} {mesh.listening[0]}\n")
        sys.stdout.flush()


async def _measure(credential: Credential, file: str, subscribers: int, events: int) -> None:
    async with AsyncExitStack() as stack:
        mesh, patterns = await stack.enter_async_context(_open(credential))
        shares = [len(range(number, subscribers, PROCESSES)) for number in range(PROCESSES)]
        children: list[trio.Process] = []
        nursery = await stack.enter_async_context(trio.open_nursery())
        for share in shares:
            command = [sys.executable, "-m", "benchmarks.subscribers", str(share), str(events), file]
            children.append(
                await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, capture_stdout=False))
            )
        lines = [_lines(child) for child in children]
        for share, of in zip(shares, lines, strict=True):
            for _ in range(share):
                node, url = (await anext(of)).split()
                await mesh.connect([url], expected=NodeId(node))
        publishing = patterns.pubsub.publishing
        while len(publishing.resolve(TOPIC).links) < subscribers:  # noqa: ASYNC110 -- nothing tells when interest is known
            await trio.sleep(0.05)
        took = worked = 0.0
        for count in (WARM_UP, events):
            began, worked = perf_counter(), process_time()
            for _ in range(count):
                await publishing.publish(TOPIC, PAYLOAD)
            for share, of in zip(shares, lines, strict=True):
                for _ in range(share):
                    await anext(of)
            took, worked = perf_counter() - began, process_time() - worked
        copies = subscribers * events
        books = await patterns.books.settled(TOPIC.__eq__, 10.0)
        print(
            f"{subscribers} subscribers: {events / took:,.0f} events/s, {copies / took:,.0f} copies/s; publisher "
            f"{worked / copies * 1e6:.2f} us of processor for a copy; books: {books.sent:,} sent, "
            f"{books.received:,} received, difference {books.difference}"
        )
        nursery.cancel_scope.cancel()


async def _lines(child: trio.Process) -> AsyncIterator[str]:
    assert child.stdout is not None
    rest = ""
    async for chunk in child.stdout:
        *whole, rest = (rest + bytes(chunk).decode()).split("\n")
        for line in whole:
            yield line


def main(subscribers: int = 1_000, events: int = 5_000, file: str = "") -> None:
    """Measure, or be one of the processes with subscribers."""
    if file:
        trio.run(_subscribe_all, load_credential(file), subscribers, events)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "benchmark.iris"))
        _, credential = issue_cluster(create_realm(os.urandom), TOPIC, entropy=os.urandom, wall_now=time())
        save_credential(file, credential)
        trio.run(_measure, credential, file, subscribers, events)


if __name__ == "__main__":
    subscribers, events, *files = sys.argv[1:]
    main(int(subscribers), int(events), *files)
