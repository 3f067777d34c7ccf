"""Virtual time in an event loop: it jumps over what nobody is busy in, and over nothing that comes from outside."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import pytest
import trio
import uvloop

import iris
import iris.aio
from iris.aio.testing import autojump_clock, open_network
from tests.support.async_tests import on_asyncio


def clock() -> float:
    return asyncio.get_running_loop().time()


def test_hours_pass_at_once_and_in_their_order() -> None:
    came: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        came.append(name)

    async def wait_for_all() -> None:
        async with asyncio.timeout(1800), asyncio.TaskGroup() as tasks:
            tasks.create_task(wait("an hour", 3600))
            tasks.create_task(wait("ten minutes", 600))
            tasks.create_task(wait("a minute", 60))

    async def main() -> float:
        async with autojump_clock():
            began = clock()
            with pytest.raises(TimeoutError):
                await wait_for_all()
            await asyncio.sleep(86_400 * 3)
            assert came == ["a minute", "ten minutes"]
            return clock() - began

    began = time.monotonic()
    assert asyncio.run(main()) == pytest.approx(1800 + 86_400 * 3, abs=1e-3)
    assert time.monotonic() - began < 5


@on_asyncio()
async def test_what_iris_waits_for_is_in_the_same_time() -> None:
    """Trio's deadlines and asyncio's alternate."""
    async with autojump_clock(), open_network() as network, network.open_node("desk") as desk:
        began = clock()
        with pytest.raises(iris.NoSuchCluster):
            await desk.request("store", b"", wait=40.0)
        assert clock() - began == pytest.approx(40, abs=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await desk.request("store", b"", wait=40.0)
        assert clock() - began == pytest.approx(60, abs=1)


async def in_asyncio(work: Callable[[], None]) -> None:
    await asyncio.to_thread(work)


async def in_executor(work: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)


async def in_anyio(work: Callable[[], None]) -> None:
    await anyio.to_thread.run_sync(work)


async def in_handler(work: Callable[[], None]) -> None:
    service = iris.Service("store")

    @service.request(thread=True)
    def answer(_: iris.Request) -> None:
        work()

    async with (
        open_network() as network,
        network.open_node("store") as store,
        network.open_node("desk") as desk,
        store.join("store", service),
    ):
        await desk.wait_for("store")
        await desk.request("store", b"", timeout=3600)


@pytest.mark.parametrize("run", [in_asyncio, in_executor, in_anyio, in_handler])
def test_time_does_not_jump_over_the_work_of_a_thread(run: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
    done: list[float] = []

    async def main() -> None:
        async with autojump_clock():
            other = asyncio.create_task(asyncio.sleep(600))
            await asyncio.sleep(0)

            def work() -> None:
                began = time.monotonic()
                while time.monotonic() < began + 0.05:
                    pass
                done.append(0 if other.done() else 1)

            await run(work)
            assert not other.done()
            await other
            await asyncio.sleep(600)

    asyncio.run(main())
    assert done == [1]


KEPT = {
    # What is not from outside.
    "call_at", "call_exception_handler", "call_later", "call_soon", "call_soon_threadsafe", "close", "create_future",
    "create_task", "default_exception_handler", "get_debug", "get_exception_handler", "get_task_factory", "is_closed",
    "is_running", "run_forever", "run_until_complete", "set_debug", "set_default_executor", "set_exception_handler",
    "set_task_factory", "shutdown_asyncgens", "shutdown_default_executor", "stop", "time",
    # Threads.
    "getaddrinfo", "getnameinfo", "run_in_executor",
    # A signal comes when it comes.
    "add_signal_handler", "remove_signal_handler",
    # Of what was refused.
    "remove_reader", "remove_writer",
}  # fmt: skip


@on_asyncio()
async def test_all_that_comes_from_outside_is_refused_within_and_works_after_it() -> None:
    outside = {name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")} - KEPT
    loop = asyncio.get_running_loop()
    async with autojump_clock():
        for name in outside:
            with pytest.raises(iris.ConfigError, match=rf"^{name}: in autojump_clock time is virtual"):
                getattr(loop, name)(0, print, 0)
        with pytest.raises(iris.ConfigError, match=r"^subprocess_exec: "):
            await asyncio.create_subprocess_exec("true")
        with pytest.raises(iris.ConfigError, match=r"^create_connection: "):
            await asyncio.open_connection("127.0.0.1", 9)
        await asyncio.sleep(3600)
        virtual = clock()
    assert 0 <= clock() - virtual < 5, "time never goes back, and goes on as it really does"
    assert clock() - time.monotonic() > 3000
    near, far = socket.socketpair()
    near.setblocking(False)
    far.send(b"real")
    assert await loop.sock_recv(near, 4) == b"real"
    async with asyncio.timeout(60):
        await asyncio.sleep(0.001)
    near.close()
    far.close()
    async with autojump_clock(), autojump_clock():  # once more; and within itself it is the same one
        await asyncio.sleep(3600)


@on_asyncio()
async def test_a_loop_of_which_a_socket_is_open_is_refused() -> None:
    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    with pytest.raises(iris.ConfigError, match="has a socket, pipe or subprocess open"):
        async with autojump_clock():
            raise AssertionError("it is not entered")
    server.close()
    await server.wait_closed()
    async with autojump_clock():
        await asyncio.sleep(3600)


def test_another_event_loop_is_refused_by_its_name() -> None:
    async def main() -> None:
        with pytest.raises(iris.ConfigError, match=r"asyncio's own event loop on Linux, and this is uvloop\.Loop"):
            async with autojump_clock():
                raise AssertionError("it is not entered")

    uvloop.run(main())


@on_asyncio()
async def test_it_is_entered_before_the_first_node() -> None:
    async with open_network():
        with pytest.raises(RuntimeError, match="enter autojump_clock before it"):
            async with autojump_clock():
                raise AssertionError("it is not entered")


def test_a_node_that_outlives_the_block_goes_on_in_real_time() -> None:
    async def main() -> None:
        async with autojump_clock():
            network = open_network()
            opened = await network.__aenter__()
            node = opened.open_node("desk")
            desk = await node.__aenter__()
        began = time.monotonic()
        with pytest.raises(iris.NoSuchCluster):
            await desk.request("store", b"", wait=0.2)
        assert 0.1 < time.monotonic() - began < 5
        await node.__aexit__(None, None, None)
        await network.__aexit__(None, None, None)

    asyncio.run(main())
    assert not trio.lowlevel.in_trio_run()


def test_first_events_are_heard_where_not_all_are_linked() -> None:
    """A publisher announces what it publishes on, also where several tasks do so at once."""

    async def main() -> None:
        async with autojump_clock(), open_network() as network, AsyncExitStack() as stack:
            nodes: list[iris.aio.Node] = []
            for _ in range(20):
                seeds = ["host-1"] if nodes else []
                nodes.append(await stack.enter_async_context(network.open_node("nodes", seeds=seeds)))
            while any(len(node.nodes()) != 19 for node in nodes):
                await asyncio.sleep(0.1)
            heard = [await stack.enter_async_context(nodes[place].subscribe("news.>")) for place in (3, 12)]
            await asyncio.gather(*(nodes[17].publish("news.a", number) for number in range(5)))
            await nodes[5].publish("news.b", b"another")
            for events in heard:
                async with asyncio.timeout(10.0):
                    got = [(event.topic, event.payload) for event in [await anext(events) for _ in range(6)]]
                assert {payload for topic, payload in got if topic == "news.a"} == {*range(5)}
                assert ("news.b", b"another") in got
            assert max(len(nodes[place].statistics().links) for place in (5, 17)) < 19

    asyncio.run(main())
