"""Calls of the public async operations that fail, whichever kind of node they are those of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import trio

import iris
from iris.kernel.errors import ConfigError, DeliveryError, IrisError, LocalProtocolError, NoSuchCluster

Case = tuple[str, Callable[[], Awaitable[object]], type[BaseException] | None]
"""An operation, a call of it, and its error.  None: it succeeds, and waits for nothing."""


CLOSED: Final = trio.ClosedResourceError
"""Those of ``iris.aio`` are trio's."""


async def enter(block: Callable[[], AbstractAsyncContextManager[object]]) -> None:
    async with block():
        pass


async def last(source: Any) -> None:
    while True:
        await source.__anext__()


def echo_service() -> iris.Service:
    """Return a service of the cluster ``worker``, whose tunnels ``echo`` send back what comes."""
    service = iris.Service("worker")

    @service.tunnel("echo")
    async def echo(tunnel: Any) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    return service


@dataclass(frozen=True)
class Handles:
    """A node, a handle of each kind on it, and calls of them that fail."""

    front: ModuleType
    directory: Path
    service: iris.Service
    node: Any
    bridge: Any
    queue: Any
    consumer: Any
    saga: Any
    subscription: Any
    confirming: Any
    tunnel: Any
    watch: Any
    state: Any
    answers: Any
    state_watch: Any
    losses: Any
    jobs: Any
    job: Any
    batch: Any

    def while_open(self) -> list[Case]:
        node, bridge, nobody = self.node, self.bridge, self.node.bridge("nobody")
        return [
            ("Node.request", partial(node.request, "nobody"), NoSuchCluster),
            ("Node.request", partial(node.request, "worker", operation="!"), ConfigError),
            ("Node.request", partial(node.request, "worker", object()), LocalProtocolError),
            ("Node.broadcast", partial(node.broadcast, "nobody", b""), NoSuchCluster),
            ("Node.broadcast", partial(node.broadcast, "!", b""), ConfigError),
            ("Node.survey", partial(enter, partial(node.survey, "nobody", b"")), NoSuchCluster),
            ("Node.open_tunnel", partial(enter, partial(node.open_tunnel, "nobody")), NoSuchCluster),
            ("Node.publish", partial(node.publish, "", b""), ConfigError),
            ("Node.publish", partial(node.publish, "a", object()), LocalProtocolError),
            ("Node.publish_confirmed", partial(node.publish_confirmed, "b", b""), DeliveryError),
            ("Node.publish_confirmed", partial(node.publish_confirmed, "", b""), ConfigError),
            ("Node.retain", partial(node.retain, "", b""), ConfigError),
            ("Node.retain_confirmed", partial(node.retain_confirmed, "", b""), ConfigError),
            ("Node.forget_subscriber", partial(node.forget_subscriber, "nobody"), ConfigError),
            ("Node.wait_for", partial(node.wait_for, "!"), ConfigError),
            ("Node.revoke", partial(node.revoke, b"none"), IrisError),
            ("Node.books", partial(node.books, ""), ConfigError),
            ("Node.join", partial(enter, partial(node.join, "!", self.service)), ConfigError),
            ("Node.state", partial(enter, partial(node.state, "!")), ConfigError),
            ("Bridge.lease", partial(enter, partial(nobody.lease, "lease")), NoSuchCluster),
            ("Bridge.saga", partial(enter, partial(nobody.saga, "saga")), NoSuchCluster),
            ("Bridge.drop_group", partial(nobody.drop_group, "group"), NoSuchCluster),
            ("Bridge.drop_group", partial(bridge.drop_group, ""), ConfigError),
            ("WorkQueue.put", partial(self.queue.put, b"", priority=10), ConfigError),
            ("Job.commit", self.job.commit, CLOSED),
            ("ConfirmedEvents.publish", partial(self.confirming.publish, "", b""), ConfigError),
            ("Tunnel.send", partial(self.tunnel.send, object()), LocalProtocolError),
            ("Tunnel.send_file", partial(self.tunnel.send_file, "/nowhere/file"), FileNotFoundError),
            ("Subscription.receive_batch", partial(self.subscription.receive_batch, 0), ConfigError),
            ("SharedState.settled", partial(self.state.settled, timeout=-1), ConfigError),
            ("open_node", partial(enter, partial(self.front.open_node, "!")), IrisError),
        ]

    def of_a_closed_tunnel(self) -> list[Case]:
        return [
            ("Tunnel.send", partial(self.tunnel.send, b""), CLOSED),
            ("Tunnel.send_eof", self.tunnel.send_eof, CLOSED),
            ("Tunnel.receive", self.tunnel.receive, CLOSED),
            ("Tunnel.receive_file", partial(self.tunnel.receive_file, self.directory / "no"), CLOSED),
            ("Tunnel.__anext__", self.tunnel.__anext__, CLOSED),
        ]

    def behind_their_blocks(self) -> list[Case]:
        return [
            ("Answers.__anext__", partial(last, self.answers), StopAsyncIteration),
            ("Watch.__anext__", partial(last, self.watch), StopAsyncIteration),
            ("StateWatch.__anext__", partial(last, self.state_watch), StopAsyncIteration),
            ("Subscription.__anext__", self.subscription.__anext__, StopAsyncIteration),
            ("Subscription.receive_batch", self.subscription.receive_batch, trio.EndOfChannel),
            ("Consumer.__anext__", self.consumer.__anext__, CLOSED),
            ("JobWorker.__anext__", partial(last, self.jobs), StopAsyncIteration),
            ("LogBatch.commit", self.batch.commit, CLOSED),
            ("Saga.request", partial(self.saga.request, "worker"), CLOSED),
            ("ConfirmedEvents.publish", partial(self.confirming.publish, "a", b""), CLOSED),
        ]

    def of_a_closed_node(self) -> list[Case]:
        node, bridge = self.node, self.bridge
        return [
            ("Node.request", partial(node.request, "worker"), CLOSED),
            ("Node.broadcast", partial(node.broadcast, "worker", b""), CLOSED),
            ("Node.publish", partial(node.publish, "a", b""), CLOSED),
            ("Node.publish_confirmed", partial(node.publish_confirmed, "a", b""), CLOSED),
            ("Node.retain", partial(node.retain, "a", b""), CLOSED),
            ("Node.retain_confirmed", partial(node.retain_confirmed, "a", b""), CLOSED),
            ("Node.wait_for", partial(node.wait_for, "worker"), CLOSED),
            ("Node.forget_subscriber", partial(node.forget_subscriber, "name"), CLOSED),
            ("Node.books", node.books, CLOSED),
            ("Node.revoke", partial(node.revoke, b""), CLOSED),
            ("Node.join", partial(enter, partial(node.join, "worker", self.service)), CLOSED),
            ("Node.state", partial(enter, partial(node.state, "document")), CLOSED),
            ("Bridge.drop_group", partial(bridge.drop_group, "group"), CLOSED),
            ("LossWatch.__anext__", partial(last, self.losses), StopAsyncIteration),
        ]


@asynccontextmanager
async def open_handles(front: ModuleType, node: Any, service: iris.Service, directory: Path) -> AsyncGenerator[Handles]:
    """Open handles on a node that finds a bridge with the topics ``jobs`` and ``log``, and a member of ``worker``."""
    bridge = node.bridge()
    for cluster in ("worker", "bridge"):
        await node.wait_for(cluster, timeout=60)
    async with AsyncExitStack() as stack:
        enters = stack.enter_async_context
        queue = await enters(bridge.queue("jobs"))
        consumer = await enters(bridge.consume("log", group="readers"))
        saga = await enters(bridge.saga("saga"))
        subscription = await enters(node.subscribe("a"))
        confirming = await enters(node.confirming())
        tunnel = await enters(node.open_tunnel("worker", operation="echo"))
        watch = await enters(node.watch("worker"))
        state = await enters(node.state("document"))
        answers = await enters(node.survey("worker", b"", operation="none"))
        jobs = queue.receive()
        await queue.put(b"job", timeout=60)
        job = await anext(jobs)
        job.release()
        await node.publish_confirmed("log", b"event", timeout=60)
        batch = await anext(consumer)
        yield Handles(
            front, directory, service, node, bridge, queue, consumer, saga, subscription, confirming, tunnel, watch,
            state, answers, state.watch(), node.watch_losses(every=0.1), jobs, job, batch,
        )  # fmt: skip
