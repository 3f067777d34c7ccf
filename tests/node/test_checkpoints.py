"""Every public async operation lets other tasks run, also when it fails: no loop that tries again stops its node."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import assert_checkpoints

import iris
from iris.kernel.errors import NoSuchCluster
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.support.async_operations import async_operations
from tests.support.failing_operations import CLOSED, Case, Handles, echo_service, enter, open_handles

NO_OPERATIONS: Final = {
    # They return what they are called on.
    "Job.__aenter__", "LogBatch.__aenter__", "Tunnel.__aenter__", "TunnelStream.__aenter__",
    # They report what has become of it, wait for nothing, and raise nothing; those of a batch and a tunnel are others.
    "Job.__aexit__", "LogBatch.__aexit__", "Tunnel.__aexit__", "TunnelStream.__aexit__",
    # They are the tasks of the block.
    "ConfirmedEvents.follow", "ConfirmedEvents.post_soon",
}  # fmt: skip


async def check_all(cases: list[Case]) -> set[str]:
    __tracebackhide__ = True
    for operation, call, error in cases:
        try:
            with assert_checkpoints(), trio.fail_after(20), nullcontext() if error is None else pytest.raises(error):
                await call()
        except AssertionError as failed:
            raise AssertionError(f"{operation} of {call} comes back and has let nobody run") from failed
    return {operation for operation, _, _ in cases}


async def test_every_operation_that_fails_or_waits_for_nothing_is_a_checkpoint(tmp_path: Path) -> None:
    service = echo_service()
    async with (  # noqa: SIM117 -- the node is closed before the others
        open_network() as network,
        network.open_node("bridge") as serving,
        open_bridge(serving, topics=["jobs", "log"], directory=tmp_path / "log"),
        network.open_node("worker") as worker,
        worker.join("worker", service),
    ):
        async with network.open_node("desk") as node:
            async with open_handles(iris, node, service, tmp_path) as handles:
                checked = await check_all([*handles.while_open(), *wait_for_nothing(handles)])
                checked |= await check_all(handles.of_a_closed_tunnel())
                async with node.open_tunnel("worker", operation="echo") as streamed:
                    checked |= await check_all(fail_as_a_stream(streamed.as_stream()))
            checked |= await check_all([
                *handles.behind_their_blocks(),
                ("SharedState.settled", handles.state.settled, CLOSED),
            ])  # fmt: skip
    checked |= await check_all(handles.of_a_closed_node())
    assert checked == set(async_operations(iris)) - NO_OPERATIONS


def wait_for_nothing(handles: Handles) -> list[Case]:
    node, nobody = handles.node, handles.node.bridge("nobody")
    return [
        ("Node.request", partial(node.request, "nobody", fallback=b""), None),
        ("Node.wait_for", partial(node.wait_for, "worker"), None),
        ("Node.books", partial(node.books, settle=0.0), None),
        ("Node.confirming", partial(enter, node.confirming), None),
        ("Node.subscribe", partial(enter, partial(node.subscribe, "c")), None),
        ("Node.subscribe_durable", partial(enter, partial(node.subscribe_durable, "c", name="name")), None),
        ("Node.watch", partial(enter, partial(node.watch, "worker")), None),
        ("Bridge.queue", partial(enter, partial(nobody.queue, "jobs")), None),
        ("Bridge.consume", partial(enter, partial(nobody.consume, "log")), None),
        ("ConfirmedEvents.wait_confirmed", handles.confirming.wait_confirmed, None),
        ("Subscription.confirm", partial(handles.subscription.confirm, ()), None),
        ("Tunnel.aclose", handles.tunnel.aclose, None),
    ]


def fail_as_a_stream(stream: iris.TunnelStream) -> list[Case]:
    wait_send = stream.wait_send_all_might_not_block
    return [
        ("TunnelStream.receive_some", partial(stream.receive_some, 0), ValueError),
        ("TunnelStream.aclose", stream.aclose, None),
        ("TunnelStream.send_all", partial(stream.send_all, b""), CLOSED),
        ("TunnelStream.send_eof", stream.send_eof, CLOSED),
        ("TunnelStream.receive_some", stream.receive_some, CLOSED),
        ("TunnelStream.__anext__", stream.__anext__, CLOSED),
        ("TunnelStream.wait_send_all_might_not_block", wait_send, CLOSED),
    ]


async def test_a_task_that_asks_nobody_again_and_again_stops_no_other_and_can_be_cancelled() -> None:
    async with open_network() as network, network.open_node("desk") as node:
        with trio.move_on_after(0.1) as scope:
            while True:
                with pytest.raises(NoSuchCluster):
                    await node.request("nobody")
        assert scope.cancelled_caught
