"""docs/explanation/architecture.md follows messages: here they are sent and compared with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.spark_bridge.server.bridge import open_bridge
from tests.support.walks import Calls, check, documented

T = TypeVar("T")


async def request(near: iris.Node, far: iris.Node, calls: Calls, _: Path) -> None:
    service = iris.Service("far")

    @service.request
    async def answer(question: iris.Request) -> object:  # pyright: ignore[reportUnusedFunction]
        return question.payload

    async with far.join("far", service):
        await near.wait_for("far", timeout=5)
        assert await near.request("far", b"first") == b"first"
        await trio.sleep(1)
        with calls.noted():
            assert await near.request("far", b"second") == b"second"


async def event(near: iris.Node, far: iris.Node, calls: Calls, _: Path) -> None:
    async with far.subscribe("news") as subscription:
        await near.publish("news", b"first")
        await anext(subscription)
        await trio.sleep(1)
        with calls.noted():
            await near.publish("news", b"second")
            assert (await anext(subscription)).payload == b"second"


async def confirmed_event(near: iris.Node, far: iris.Node, calls: Calls, directory: Path) -> None:
    async with open_bridge(far, topics=["news"], directory=directory, name="far"):
        await near.publish_confirmed("news", b"first")
        await trio.sleep(1)
        with calls.noted():
            await near.publish_confirmed("news", b"second")


async def job(near: iris.Node, far: iris.Node, calls: Calls, directory: Path) -> None:
    async with (
        open_bridge(far, topics=["news"], directory=directory, name="far"),
        near.bridge("far").queue("news") as queue,
    ):
        worker = queue.receive()
        await queue.put("first")
        await (await anext(worker)).commit()
        await trio.sleep(1)
        with calls.noted():
            await queue.put("second")
            await trio.sleep(1)
            received = await anext(worker)
            await trio.sleep(1)
            await received.commit()


async def run_here(call: Callable[[], T], **_: object) -> T:
    """Run a call as ``trio.to_thread.run_sync`` does, but in this thread: what others call is not noted."""
    await trio.lowlevel.checkpoint()
    return call()


@pytest.mark.parametrize(
    ("heading", "send"),
    [
        ("The walk of a request", request),
        ("The walk of an event", event),
        ("The walk of a confirmed event", confirmed_event),
        ("The walk of a job", job),
    ],
)
async def test_the_documented_walk_is_the_way_that_a_message_takes(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    heading: str,
    send: Callable[[iris.Node, iris.Node, Calls, Path], Awaitable[None]],
) -> None:
    steps = documented(heading)
    calls = Calls()
    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)
    async with (
        iris.testing.open_network() as network,
        network.open_node("near") as near,
        network.open_node("far") as far,
    ):
        await send(near, far, calls, tmp_path)
    check(steps, calls)
