"""A node of asyncio that is closed while tasks wait in its methods: each ends at once, as with trio."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path

import pytest
import trio.testing

import iris
import iris.aio
from tests.support.closing import Arrivals, each_wait, silent_services


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))


def test_what_waits_ends_when_its_node_is_closed() -> None:
    arrivals = Arrivals()

    async def hang(given: object) -> None:
        arrivals.note_asked(given)
        await asyncio.Event().wait()

    silent, bridge, _ = silent_services(hang)
    waits = each_wait()

    async def main() -> None:
        async with (
            iris.aio.open_node("member") as member,
            member.join("silent", silent),
            member.join("bridge", bridge),
            member.subscribe("held.>", overflow="wait", limits=iris.SubscriptionLimits(events=2)),
            member.subscribe_durable("kept.>"),
        ):
            async with iris.aio.open_node("caller") as node:
                await node.wait_for("bridge")
                tasks = {
                    name: asyncio.ensure_future(arrivals.outcome_of(name, wait, node))
                    for name, (wait, _) in waits.items()
                }
                async with asyncio.timeout(60):
                    while not arrivals.complete:
                        await asyncio.sleep(0.01)
                await node._guest.call(partial(trio.testing.wait_all_tasks_blocked, 0.05))
                assert [name for name, task in tasks.items() if task.done()] == []
            await asyncio.wait(tasks.values(), timeout=5)
            outcomes = {name: task.result() if task.done() else "waits" for name, task in tasks.items()}
            assert outcomes == {name: expected for name, (_, expected) in waits.items()}

    asyncio.run(main())


def test_what_a_closed_node_has_left_is_taken_as_with_trio() -> None:
    async def main() -> None:
        async with iris.aio.open_node("caller") as node:
            losses = node.watch_losses()
            async with (
                node.subscribe("a") as events,
                node.state("document") as state,
                node.watch("caller") as changes,
            ):
                state["a"] = 1
                keys = state.watch()
                await node.publish("a", b"1")
                await node.publish("a", b"2")
        assert [event.payload async for event in events] == [b"1", b"2"]
        assert [change.key async for change in keys] == ["a"]
        assert [change async for change in changes] == []
        assert [(loss.reason, loss.count) async for loss in losses] == [("receiver left", 2)]
        assert [loss async for loss in losses] == []

    asyncio.run(main())


@pytest.mark.parametrize("in_a_task", [False, True])
def test_a_handler_that_closes_its_own_node_ends(in_a_task: bool) -> None:
    service = iris.Service("shop")
    over = asyncio.Event()

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:

            @service.request
            async def close(_: object) -> None:
                try:
                    await (asyncio.ensure_future(stack.aclose()) if in_a_task else stack.aclose())
                finally:
                    over.set()

            config = iris.Config(drain_timeout=0.2)
            member = await stack.enter_async_context(iris.aio.open_node("member", config=config))
            await stack.enter_async_context(member.join("shop", service))
            async with iris.aio.open_node("client") as client:
                await client.wait_for("shop")
                with pytest.raises(iris.IrisError):
                    await client.request("shop", timeout=5)
                await asyncio.wait_for(over.wait(), 5)

    asyncio.run(main())
