"""A node of asyncio that is closed while tasks wait in its methods: each ends at once, as with trio."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio.testing
import uvloop

import iris
import iris.aio
from iris.aio.guest import _here
from tests.support.async_tests import on_asyncio
from tests.support.closing import Arrivals, each_wait, silent_services, take_what_is_left

pytestmark = pytest.mark.usefixtures("own_home")


@on_asyncio()
async def test_what_waits_ends_when_its_node_is_closed() -> None:
    arrivals = Arrivals()

    async def hang(given: object) -> None:
        arrivals.note_asked(given)
        await asyncio.Event().wait()

    silent, bridge, _ = silent_services(hang)
    waits = each_wait()
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
                name: asyncio.ensure_future(arrivals.outcome_of(name, wait, node)) for name, (wait, _) in waits.items()
            }
            async with asyncio.timeout(60):
                while not arrivals.complete:
                    await asyncio.sleep(0.01)
            await node._guest.call(partial(trio.testing.wait_all_tasks_blocked, 0.05))
            assert [name for name, task in tasks.items() if task.done()] == []
        await asyncio.wait(tasks.values(), timeout=5)
        outcomes = {name: task.result() if task.done() else "waits" for name, task in tasks.items()}
        assert outcomes == {name: expected for name, (_, expected) in waits.items()}


def test_a_coroutine_that_waits_for_events_is_dropped_after_its_loop_as_any_other() -> None:
    ends: list[str] = []

    async def take(events: iris.aio.Subscription) -> None:
        try:
            await anext(events)
        except BaseException as error:
            ends.append(type(error).__name__)
            raise

    async def main() -> list[object]:
        opening = iris.aio.open_node("reader")
        node = await opening.__aenter__()
        subscribing = node.subscribe("a")
        taking = take(await subscribing.__aenter__())
        taking.send(None)
        return [opening, subscribing, taking]

    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(main())
    loop.close()
    kept.pop().close()  # type: ignore[attr-defined]
    assert ends == ["GeneratorExit"]


@on_asyncio()
async def test_what_a_closed_node_has_left_is_taken_as_with_trio() -> None:
    await take_what_is_left(iris.aio.open_node("caller"))


@pytest.mark.parametrize("in_a_task", [False, True])
@on_asyncio()
async def test_a_handler_that_closes_its_own_node_ends(in_a_task: bool) -> None:
    service = iris.Service("shop")
    over = asyncio.Event()
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


@on_asyncio()
async def test_what_was_cancelled_does_not_look_finished_though_its_handler_went_on() -> None:
    """As libraries do that take a cancellation for the end of what they wait for."""
    service = iris.Service("shop")

    @service.request
    async def reply(_: object) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "half of it"

    @service.tunnel
    async def stream(tunnel: iris.Tunnel) -> None:
        await tunnel.send("half of it")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async with iris.aio.open_node("client") as client:
        config = iris.Config(drain_timeout=0.1)
        async with iris.aio.open_node("member", config=config) as member, member.join("shop", service):
            await client.wait_for("shop")
            asked = asyncio.ensure_future(client.request("shop", timeout=20))
            tunnel = await client.open_tunnel("shop").__aenter__()
            assert await tunnel.receive() == "half of it"
        with pytest.raises(iris.IrisError):
            await asked
        with pytest.raises(iris.TunnelBroken):
            await tunnel.receive()


@contextlib.contextmanager
def onlooking(cluster: str) -> Iterator[queue.SimpleQueue[str]]:
    """Have a node in a thread of its own watch a cluster; yield what becomes of members: "joined", "left", "lost"."""
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()
    began = threading.Event()
    stop: list[Callable[[], None]] = []

    async def watch() -> None:
        with trio.CancelScope() as scope:
            token = trio.lowlevel.current_trio_token()
            stop.append(lambda: token.run_sync_soon(scope.cancel))
            async with iris.open_node("onlooker") as node, node.watch(cluster) as changes:
                began.set()
                async for change in changes:
                    seen.put(change.kind)

    thread = threading.Thread(target=trio.run, args=(watch,))
    thread.start()
    assert began.wait(30)
    try:
        yield seen
    finally:
        stop[0]()
        thread.join()


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_node_says_goodbye_when_its_loop_is_closed(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    service = iris.Service("shop")

    runs = asyncio.Event()

    @service.request
    async def stay(_: iris.Request) -> None:
        runs.set()
        await asyncio.sleep(60)

    async def begin() -> list[object]:
        block = iris.aio.open_node("member")
        node = await block.__aenter__()
        membership = node.join("shop", service)
        await membership.__aenter__()
        asking = asyncio.ensure_future(node.request("shop", timeout=30))
        await runs.wait()
        return [block, membership, asking]

    with onlooking("shop") as seen:
        loop = make()
        blocks = loop.run_until_complete(begin())
        assert seen.get(timeout=30) == "joined"
        loop.close()
        kinds = [seen.get(timeout=1)]
        if kinds == ["draining"]:
            kinds.append(seen.get(timeout=1))
        assert kinds[-1] == "left"
        assert _here.guest is None
    for task in asyncio.all_tasks(loop):  # which nobody can run any more
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()
    del blocks
