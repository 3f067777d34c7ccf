"""Every async operation lets others of the event loop run, also when it fails: see tests/node/test_checkpoints.py."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import iris.aio
from iris.kernel.errors import ConfigError, NoSuchCluster
from tests.support.async_operations import async_operations
from tests.support.async_tests import on_asyncio
from tests.support.bridges import open_aio_bridge
from tests.support.failing_operations import CLOSED, Case, echo_service, enter, open_handles

NO_OPERATIONS: Final = {
    # They return what they are called on.
    "Job.__aenter__", "LogBatch.__aenter__", "Tunnel.__aenter__",
    # They report what has become of it, wait for nothing, and raise nothing; those of a batch and a tunnel are others.
    "Job.__aexit__", "LogBatch.__aexit__", "Tunnel.__aexit__",
    # They do what they do at once, 64 of them without a turn; entering those blocks raises what their calls raise.
    "Bridge.consume", "Bridge.queue", "Node.confirming", "Node.subscribe", "Node.subscribe_durable",
    "Subscription.confirm", "ConfirmedEvents.wait_confirmed", "Tunnel.aclose",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("own_home")


async def check_all(cases: list[Case]) -> set[str]:
    """Check that the loop has a turn before each error; at most 64 things are done without one."""
    for operation, call, error in cases:
        assert error is not None
        turns: list[None] = []
        asyncio.get_running_loop().call_soon(turns.append, None)
        async with asyncio.timeout(30):
            with pytest.raises(error):
                await call()
        assert turns, f"{operation} of {call} comes back and has let nobody run"
    return {operation for operation, _, _ in cases}


@on_asyncio()
async def test_every_operation_that_fails_gives_the_loop_a_turn(tmp_path: Path) -> None:
    service = echo_service()
    async with (
        iris.aio.open_node("bridge") as serving,
        open_aio_bridge(serving, topics=["jobs", "log"], directory=tmp_path / "log"),
        iris.aio.open_node("worker") as worker,
        worker.join("worker", service),
    ):
        async with iris.aio.open_node("desk") as node:
            async with open_handles(iris.aio, node, service, tmp_path) as handles:
                checked = await check_all(
                    [*handles.while_open(), ("Node.watch", partial(enter, partial(node.watch, "!")), ConfigError)]
                )
                await handles.tunnel.aclose()
                checked |= await check_all(handles.of_a_closed_tunnel())
            checked |= await check_all(handles.behind_their_blocks())
        checked |= await check_all([
            *handles.of_a_closed_node(),
            ("Node.open_tunnel", partial(enter, partial(node.open_tunnel, "worker")), CLOSED),
            ("Node.survey", partial(enter, partial(node.survey, "worker", b"")), CLOSED),
            ("Bridge.lease", partial(enter, partial(handles.bridge.lease, "lease")), CLOSED),
        ])  # fmt: skip
    # The run that they were in has ended, too.
    await check_all([
        ("Node.request", partial(node.request, "worker"), CLOSED),
        ("Node.publish", partial(node.publish, "a", b""), CLOSED),
        ("Node.books", node.books, CLOSED),
        ("Node.watch", partial(enter, partial(node.watch, "worker")), CLOSED),
        ("Subscription.__anext__", handles.subscription.__anext__, StopAsyncIteration),
    ])  # fmt: skip
    assert checked == set(async_operations(iris.aio)) - NO_OPERATIONS


@on_asyncio()
async def test_a_task_that_asks_nobody_again_and_again_stops_no_other() -> None:
    async def ask(node: iris.aio.Node) -> None:
        while True:
            with pytest.raises(NoSuchCluster):
                await node.request("nobody")

    async with iris.aio.open_node("desk") as node:
        asking = asyncio.create_task(ask(node))
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
