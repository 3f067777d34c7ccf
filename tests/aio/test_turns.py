"""Every async operation lets others of the event loop run, also when it fails: see tests/node/test_checkpoints.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import iris.aio
from iris.kernel.errors import ConfigError, DeliveryError, IrisError, NoSuchCluster
from tests.support.async_operations import async_operations
from tests.support.bridges import open_aio_bridge

NO_OPERATIONS: Final = {
    # They return what they are called on.
    "Job.__aenter__", "LogBatch.__aenter__", "Tunnel.__aenter__",
    # They report what has become of it, wait for nothing, and raise nothing; those of a batch and a tunnel are others.
    "Job.__aexit__", "LogBatch.__aexit__", "Tunnel.__aexit__",
    # They do what they do at once, 64 of them without a turn; entering those blocks raises what their calls raise.
    "Bridge.consume", "Bridge.queue", "Node.confirming", "Node.subscribe", "Node.subscribe_durable",
    "Subscription.confirm", "ConfirmedEvents.wait_confirmed", "Tunnel.aclose",
}  # fmt: skip

Closed: Final = iris.aio.ClosedResourceError
Case = tuple[str, Callable[[], Awaitable[object]], type[BaseException]]

pytestmark = pytest.mark.usefixtures("own_home")


async def enter(block: Callable[[], AbstractAsyncContextManager[object]]) -> None:
    async with block():
        pass


async def last(source: Any) -> None:
    while True:
        await source.__anext__()


async def check(operation: str, call: Callable[[], Awaitable[object]], error: type[BaseException]) -> None:
    """Check that the loop has a turn before the error; at most 64 things are done without one."""
    turns: list[None] = []
    asyncio.get_running_loop().call_soon(turns.append, None)
    async with asyncio.timeout(30):
        with pytest.raises(error):
            await call()
    assert turns, f"{operation} of {call} comes back and has let nobody run"


def test_every_operation_that_fails_gives_the_loop_a_turn(tmp_path: Path) -> None:
    service = iris.aio.Service("worker")

    @service.tunnel("echo")
    async def echo(tunnel: iris.aio.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    async def main() -> None:
        cases: list[Case] = []

        async def check_all(*more: Case) -> None:
            for case in more:
                await check(*case)
            cases.extend(more)

        async with (
            iris.aio.open_node("bridge") as serving,
            open_aio_bridge(serving, topics=["jobs", "log"], directory=tmp_path / "log"),
            iris.aio.open_node("worker") as worker,
            worker.join("worker", service),
        ):
            async with iris.aio.open_node("desk") as node:
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
                    watch = await enters(node.watch("worker"))
                    state = await enters(node.state("document"))
                    answers = await enters(node.survey("worker", b"", operation="none"))
                    state_watch = state.watch()
                    losses = node.watch_losses(every=0.1)
                    jobs = queue.receive()
                    await queue.put(b"job", timeout=60)
                    job = await anext(jobs)
                    job.release()
                    await node.publish_confirmed("log", b"event", timeout=60)
                    batch = await anext(consumer)
                    await check_all(
                        ("Node.request", partial(node.request, "nobody"), NoSuchCluster),
                        ("Node.request", partial(node.request, "worker", operation="!"), ConfigError),
                        ("Node.request", partial(node.request, "worker", object()), iris.LocalProtocolError),
                        ("Node.broadcast", partial(node.broadcast, "nobody", b""), NoSuchCluster),
                        ("Node.broadcast", partial(node.broadcast, "!", b""), ConfigError),
                        ("Node.survey", partial(enter, partial(node.survey, "nobody", b"")), NoSuchCluster),
                        ("Node.open_tunnel", partial(enter, partial(node.open_tunnel, "nobody")), NoSuchCluster),
                        ("Node.publish", partial(node.publish, "", b""), ConfigError),
                        ("Node.publish_confirmed", partial(node.publish_confirmed, "b", b""), DeliveryError),
                        ("Node.publish_confirmed", partial(node.publish_confirmed, "", b""), ConfigError),
                        ("Node.retain", partial(node.retain, "", b""), ConfigError),
                        ("Node.retain_confirmed", partial(node.retain_confirmed, "", b""), ConfigError),
                        ("Node.forget_subscriber", partial(node.forget_subscriber, "nobody"), ConfigError),
                        ("Node.wait_for", partial(node.wait_for, "!"), ConfigError),
                        ("Node.watch", partial(enter, partial(node.watch, "!")), ConfigError),
                        ("Node.revoke", partial(node.revoke, b"none"), IrisError),
                        ("Node.books", partial(node.books, ""), ConfigError),
                        ("Node.join", partial(enter, partial(node.join, "!", service)), ConfigError),
                        ("Node.state", partial(enter, partial(node.state, "!")), ConfigError),
                        ("Bridge.lease", partial(enter, partial(nobody.lease, "lease")), NoSuchCluster),
                        ("Bridge.saga", partial(enter, partial(nobody.saga, "saga")), NoSuchCluster),
                        ("Bridge.drop_group", partial(nobody.drop_group, "group"), NoSuchCluster),
                        ("WorkQueue.put", partial(queue.put, b"", priority=10), ConfigError),
                        ("Job.commit", job.commit, Closed),
                        ("ConfirmedEvents.publish", partial(confirming.publish, "", b""), ConfigError),
                        ("Tunnel.send", partial(tunnel.send, object()), iris.LocalProtocolError),
                        ("Tunnel.send_file", partial(tunnel.send_file, "/nowhere/file"), FileNotFoundError),
                    )
                    await tunnel.aclose()
                    await check_all(
                        ("Tunnel.send", partial(tunnel.send, b""), Closed),
                        ("Tunnel.send_eof", tunnel.send_eof, Closed),
                        ("Tunnel.receive", tunnel.receive, Closed),
                        ("Tunnel.receive_file", partial(tunnel.receive_file, tmp_path / "no"), Closed),
                        ("Tunnel.__anext__", tunnel.__anext__, Closed),
                        ("Subscription.receive_batch", partial(subscription.receive_batch, 0), ConfigError),
                        ("SharedState.settled", partial(state.settled, timeout=-1), ConfigError),
                        ("open_node", partial(enter, partial(iris.aio.open_node, "!")), IrisError),
                    )
                await check_all(
                    ("Answers.__anext__", partial(last, answers), StopAsyncIteration),
                    ("Watch.__anext__", partial(last, watch), StopAsyncIteration),
                    ("StateWatch.__anext__", partial(last, state_watch), StopAsyncIteration),
                    ("Subscription.__anext__", subscription.__anext__, StopAsyncIteration),
                    ("Subscription.receive_batch", subscription.receive_batch, iris.aio.EndOfChannel),
                    ("Consumer.__anext__", consumer.__anext__, Closed),
                    ("JobWorker.__anext__", partial(last, jobs), StopAsyncIteration),
                    ("LogBatch.commit", batch.commit, Closed),
                    ("Saga.request", partial(saga.request, "worker"), Closed),
                    ("ConfirmedEvents.publish", partial(confirming.publish, "a", b""), Closed),
                )
            await check_all(
                ("Node.request", partial(node.request, "worker"), Closed),
                ("Node.broadcast", partial(node.broadcast, "worker", b""), Closed),
                ("Node.publish", partial(node.publish, "a", b""), Closed),
                ("Node.publish_confirmed", partial(node.publish_confirmed, "a", b""), Closed),
                ("Node.retain", partial(node.retain, "a", b""), Closed),
                ("Node.wait_for", partial(node.wait_for, "worker"), Closed),
                ("Node.open_tunnel", partial(enter, partial(node.open_tunnel, "worker")), Closed),
                ("Node.survey", partial(enter, partial(node.survey, "worker", b"")), Closed),
                ("Bridge.lease", partial(enter, partial(bridge.lease, "lease")), Closed),
                ("LossWatch.__anext__", partial(last, losses), StopAsyncIteration),
            )
        # The run that they were in has ended, too.
        await check_all(
            ("Node.request", partial(node.request, "worker"), Closed),
            ("Node.publish", partial(node.publish, "a", b""), Closed),
            ("Node.books", node.books, Closed),
            ("Node.watch", partial(enter, partial(node.watch, "worker")), Closed),
            ("Subscription.__anext__", subscription.__anext__, StopAsyncIteration),
        )
        assert {operation for operation, _, _ in cases} == set(async_operations(iris.aio)) - NO_OPERATIONS

    asyncio.run(main())


def test_a_task_that_asks_nobody_again_and_again_stops_no_other() -> None:
    async def ask(node: iris.aio.Node) -> None:
        while True:
            with pytest.raises(NoSuchCluster):
                await node.request("nobody")

    async def main() -> None:
        async with iris.aio.open_node("desk") as node:
            asking = asyncio.create_task(ask(node))
            await asyncio.sleep(0.1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())
