"""Every public async operation lets other tasks run, also when it fails: no loop that tries again stops its node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import assert_checkpoints

import iris
from iris.kernel.errors import ConfigError, DeliveryError, IrisError, NoSuchCluster
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.support.async_operations import async_operations

NO_OPERATIONS: Final = {
    # They return what they are called on.
    "Job.__aenter__", "LogBatch.__aenter__", "Tunnel.__aenter__", "TunnelStream.__aenter__",
    # They report what has become of it, wait for nothing, and raise nothing; those of a batch and a tunnel are others.
    "Job.__aexit__", "LogBatch.__aexit__", "Tunnel.__aexit__", "TunnelStream.__aexit__",
    # They are the tasks of the block.
    "ConfirmedEvents.follow", "ConfirmedEvents.post_soon",
}  # fmt: skip

Case = tuple[Callable[[], Awaitable[object]], type[BaseException] | None]


async def enter(block: Callable[[], AbstractAsyncContextManager[object]]) -> None:
    async with block():
        pass


async def check(operation: str, call: Callable[[], Awaitable[object]], error: type[BaseException] | None) -> None:
    __tracebackhide__ = True
    try:
        with assert_checkpoints(), trio.fail_after(20):
            if error is None:
                await call()
            else:
                with pytest.raises(error):
                    await call()
    except AssertionError as failed:
        raise AssertionError(f"{operation} of {call} comes back and has let nobody run") from failed


async def test_every_operation_that_fails_or_waits_for_nothing_is_a_checkpoint(tmp_path: Path) -> None:
    service = iris.Service("worker")

    @service.tunnel("echo")
    async def echo(tunnel: iris.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    cases: list[tuple[str, Case]] = []
    async with (  # noqa: SIM117 -- the node is closed before the others
        open_network() as network,
        network.open_node("bridge") as serving,
        open_bridge(serving, topics=["jobs", "log"], directory=tmp_path / "log"),
        network.open_node("worker") as worker,
        worker.join("worker", service),
    ):
        async with network.open_node("desk") as node:
            bridge, nobody = node.bridge(), node.bridge("nobody")
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
                streamed = await enters(node.open_tunnel("worker", operation="echo"))
                watch = await enters(node.watch("worker"))
                state = await enters(node.state("document"))
                answers = await enters(node.survey("worker", b"", operation="none"))
                state_watch = state.watch()
                losses = node.watch_losses(every=0.1)
                worker_of_jobs = queue.receive()
                await queue.put(b"job", timeout=60)
                job = await anext(worker_of_jobs)
                job.release()
                await node.publish_confirmed("log", b"event", timeout=60)
                batch = await anext(consumer)
                stream = streamed.as_stream()
                while_open: list[tuple[str, Case]] = [
                    ("Node.request", (partial(node.request, "nobody"), NoSuchCluster)),
                    ("Node.request", (partial(node.request, "nobody", fallback=b""), None)),
                    ("Node.request", (partial(node.request, "worker", operation="!"), ConfigError)),
                    ("Node.request", (partial(node.request, "worker", object()), iris.LocalProtocolError)),
                    ("Node.broadcast", (partial(node.broadcast, "nobody", b""), NoSuchCluster)),
                    ("Node.broadcast", (partial(node.broadcast, "!", b""), ConfigError)),
                    ("Node.survey", (partial(enter, partial(node.survey, "nobody", b"")), NoSuchCluster)),
                    ("Node.open_tunnel", (partial(enter, partial(node.open_tunnel, "nobody")), NoSuchCluster)),
                    ("Node.publish", (partial(node.publish, "", b""), ConfigError)),
                    ("Node.publish", (partial(node.publish, "a", object()), iris.LocalProtocolError)),
                    ("Node.publish_confirmed", (partial(node.publish_confirmed, "b", b""), DeliveryError)),
                    ("Node.publish_confirmed", (partial(node.publish_confirmed, "", b""), ConfigError)),
                    ("Node.retain", (partial(node.retain, "", b""), ConfigError)),
                    ("Node.retain_confirmed", (partial(node.retain_confirmed, "", b""), ConfigError)),
                    ("Node.forget_subscriber", (partial(node.forget_subscriber, "nobody"), ConfigError)),
                    ("Node.wait_for", (partial(node.wait_for, "worker"), None)),
                    ("Node.wait_for", (partial(node.wait_for, "!"), ConfigError)),
                    ("Node.revoke", (partial(node.revoke, b"none"), IrisError)),
                    ("Node.books", (partial(node.books, settle=0.0), None)),
                    ("Node.books", (partial(node.books, ""), ConfigError)),
                    ("Node.join", (partial(enter, partial(node.join, "!", service)), ConfigError)),
                    ("Node.state", (partial(enter, partial(node.state, "!")), ConfigError)),
                    ("Node.confirming", (partial(enter, node.confirming), None)),
                    ("Node.subscribe", (partial(enter, partial(node.subscribe, "c")), None)),
                    (
                        "Node.subscribe_durable",
                        (partial(enter, partial(node.subscribe_durable, "c", name="name")), None),
                    ),
                    ("Node.watch", (partial(enter, partial(node.watch, "worker")), None)),
                    ("Bridge.lease", (partial(enter, partial(nobody.lease, "lease")), NoSuchCluster)),
                    ("Bridge.saga", (partial(enter, partial(nobody.saga, "saga")), NoSuchCluster)),
                    ("Bridge.queue", (partial(enter, partial(nobody.queue, "jobs")), None)),
                    ("Bridge.consume", (partial(enter, partial(nobody.consume, "log")), None)),
                    ("Bridge.drop_group", (partial(nobody.drop_group, "group"), NoSuchCluster)),
                    ("Bridge.drop_group", (partial(bridge.drop_group, ""), ConfigError)),
                    ("WorkQueue.put", (partial(queue.put, b"", priority=10), ConfigError)),
                    ("Job.commit", (job.commit, trio.ClosedResourceError)),
                    ("ConfirmedEvents.publish", (partial(confirming.publish, "", b""), ConfigError)),
                    ("ConfirmedEvents.wait_confirmed", (confirming.wait_confirmed, None)),
                    ("Tunnel.send", (partial(tunnel.send, object()), iris.LocalProtocolError)),
                    ("Tunnel.send_file", (partial(tunnel.send_file, "/nowhere/file"), FileNotFoundError)),
                    ("Tunnel.aclose", (tunnel.aclose, None)),
                    ("Tunnel.send", (partial(tunnel.send, b""), trio.ClosedResourceError)),
                    ("Tunnel.send_eof", (tunnel.send_eof, trio.ClosedResourceError)),
                    ("Tunnel.receive", (tunnel.receive, trio.ClosedResourceError)),
                    ("Tunnel.receive_file", (partial(tunnel.receive_file, tmp_path / "no"), trio.ClosedResourceError)),
                    ("Tunnel.__anext__", (tunnel.__anext__, trio.ClosedResourceError)),
                    ("TunnelStream.receive_some", (partial(stream.receive_some, 0), ValueError)),
                    ("TunnelStream.aclose", (stream.aclose, None)),
                    ("TunnelStream.send_all", (partial(stream.send_all, b""), trio.ClosedResourceError)),
                    ("TunnelStream.send_eof", (stream.send_eof, trio.ClosedResourceError)),
                    ("TunnelStream.receive_some", (stream.receive_some, trio.ClosedResourceError)),
                    ("TunnelStream.__anext__", (stream.__anext__, trio.ClosedResourceError)),
                    (
                        "TunnelStream.wait_send_all_might_not_block",
                        (stream.wait_send_all_might_not_block, trio.ClosedResourceError),
                    ),
                    ("Subscription.receive_batch", (partial(subscription.receive_batch, 0), ConfigError)),
                    ("Subscription.confirm", (partial(subscription.confirm, ()), None)),
                    ("SharedState.settled", (partial(state.settled, timeout=-1), ConfigError)),
                    ("open_node", (partial(enter, partial(iris.open_node, "!")), IrisError)),
                ]
                for operation, case in while_open:
                    await check(operation, *case)
                cases += while_open
            after: list[tuple[str, Case]] = [
                ("Answers.__anext__", (answers.__anext__, StopAsyncIteration)),
                ("Watch.__anext__", (partial(_last, watch), StopAsyncIteration)),
                ("StateWatch.__anext__", (state_watch.__anext__, StopAsyncIteration)),
                ("Subscription.__anext__", (subscription.__anext__, StopAsyncIteration)),
                ("Subscription.receive_batch", (subscription.receive_batch, trio.EndOfChannel)),
                ("Consumer.__anext__", (consumer.__anext__, trio.ClosedResourceError)),
                ("JobWorker.__anext__", (worker_of_jobs.__anext__, StopAsyncIteration)),
                ("LogBatch.commit", (batch.commit, trio.ClosedResourceError)),
                ("Saga.request", (partial(saga.request, "worker"), trio.ClosedResourceError)),
                ("SharedState.settled", (state.settled, trio.ClosedResourceError)),
                ("ConfirmedEvents.publish", (partial(confirming.publish, "a", b""), trio.ClosedResourceError)),
            ]
            for operation, case in after:
                await check(operation, *case)
            cases += after
    closed: list[tuple[str, Case]] = [
        ("Node.request", (partial(node.request, "worker"), trio.ClosedResourceError)),
        ("Node.broadcast", (partial(node.broadcast, "worker", b""), trio.ClosedResourceError)),
        ("Node.publish", (partial(node.publish, "a", b""), trio.ClosedResourceError)),
        ("Node.publish_confirmed", (partial(node.publish_confirmed, "a", b""), trio.ClosedResourceError)),
        ("Node.retain", (partial(node.retain, "a", b""), trio.ClosedResourceError)),
        ("Node.retain_confirmed", (partial(node.retain_confirmed, "a", b""), trio.ClosedResourceError)),
        ("Node.wait_for", (partial(node.wait_for, "worker"), trio.ClosedResourceError)),
        ("Node.forget_subscriber", (partial(node.forget_subscriber, "name"), trio.ClosedResourceError)),
        ("Node.books", (node.books, trio.ClosedResourceError)),
        ("Node.revoke", (partial(node.revoke, b""), trio.ClosedResourceError)),
        ("Node.join", (partial(enter, partial(node.join, "worker", service)), trio.ClosedResourceError)),
        ("Node.state", (partial(enter, partial(node.state, "document")), trio.ClosedResourceError)),
        ("Bridge.drop_group", (partial(bridge.drop_group, "group"), trio.ClosedResourceError)),
        ("LossWatch.__anext__", (partial(_last, losses), StopAsyncIteration)),
    ]
    for operation, case in closed:
        await check(operation, *case)
    checked = {operation for operation, _ in (*cases, *closed)}
    assert checked == set(async_operations(iris)) - NO_OPERATIONS


async def _last(source: Any) -> None:
    while True:
        await source.__anext__()


async def test_a_task_that_asks_nobody_again_and_again_stops_no_other_and_can_be_cancelled() -> None:
    async with open_network() as network, network.open_node("desk") as node:
        with trio.move_on_after(0.1) as scope:
            while True:
                with pytest.raises(NoSuchCluster):
                    await node.request("nobody")
        assert scope.cancelled_caught
