"""Event loops and handlers that are not as usual: uvloop, gevent, handlers that close, cancel, hold up or end oddly."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- what is tried
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import trio
import uvloop

import iris
import iris.aio
import iris.sync

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.mark.parametrize("module", ["threading", "select"])
@pytest.mark.parametrize("front", ["sync", "aio"])
def test_where_gevent_has_replaced_what_a_node_needs_opening_one_says_so(
    monkeypatch: pytest.MonkeyPatch, module: str, front: str
) -> None:
    monkey = ModuleType("gevent.monkey")
    monkeypatch.setattr(monkey, "is_module_patched", module.__eq__, raising=False)
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)

    async def main() -> None:
        async with iris.aio.open_node("a"):
            pass

    with pytest.raises(RuntimeError, match="gevent has replaced"):  # noqa: PT012
        if front == "aio":
            asyncio.run(main())
        else:
            iris.sync.open_node("a").__enter__()
    monkeypatch.setattr(monkey, "is_module_patched", {"socket"}.__contains__)
    with iris.sync.open_node("a") as node:
        assert node.clusters() is not None


class _Loud(Exception):
    def __str__(self) -> str:
        raise self


def raises(error: BaseException) -> Callable[[Any], Any]:
    async def handler(_: iris.Request) -> None:
        raise error

    return handler


def deep(_: Any) -> int:
    return deep(_) + 1


async def recurses(_: iris.Request) -> int:
    return deep(_)


ODD: dict[str, Callable[[Any], Any]] = {
    "memory": raises(MemoryError()),
    "recursion": recurses,
    "stop": raises(StopAsyncIteration()),
    "group": raises(BaseExceptionGroup("both", [GeneratorExit(), ValueError("x")])),
    "deep group": raises(
        BaseExceptionGroup("a", [BaseExceptionGroup("b", [BaseExceptionGroup("c", [GeneratorExit()])])])
    ),
    "loud": raises(_Loud()),
    "timeout": raises(TimeoutError("mine")),
    "closed": raises(trio.ClosedResourceError("mine")),
    "cancelled": raises(trio.TooSlowError()),
    "keyerror": raises(KeyError("k" * 100_000)),
}


def odd_service(**more: Callable[[Any], Any]) -> iris.Service:
    service = iris.Service("shop")

    @service.request
    async def reply(request: iris.Request) -> object:
        return request.payload

    for name, handler in {**ODD, **more}.items():
        service.request(name.replace(" ", "_"))(handler)
    return service


async def ask_all(node: Any, names: list[str]) -> None:
    for name in names:
        with pytest.raises((iris.RemoteError, iris.MemberLost, iris.RequestTimeout)):
            await node.request("shop", operation=name.replace(" ", "_"), timeout=5)
        assert await node.request("shop", 1, timeout=5) == 1


async def in_asyncio() -> None:
    async def cancels(_: iris.Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async def cancels_twice(_: iris.Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.sleep(1)

    async def cancelled(_: iris.Request) -> None:
        raise asyncio.CancelledError

    more = {"cancels": cancels, "twice": cancels_twice, "raises": cancelled}
    async with (
        iris.aio.open_node("shop") as shop,
        shop.join("shop", odd_service(**more)),
        iris.aio.open_node("desk") as desk,
    ):
        await desk.wait_for("shop")
        await ask_all(desk, [*ODD, *more])


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def eager(make: Callable[[], asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    loop = make()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


if hasattr(asyncio, "eager_task_factory"):
    LOOPS["eager asyncio"] = partial(eager, asyncio.new_event_loop)


def run(main: Coroutine[Any, Any, None], loop: str) -> None:
    failed: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        async with asyncio.timeout(60):
            await main

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(watched())
    assert not failed


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_a_handler_of_asyncio_that_ends_oddly_costs_its_caller_one_answer(loop: str) -> None:
    run(in_asyncio(), loop)


@pytest.mark.long
async def test_a_handler_of_trio_that_ends_oddly_costs_its_caller_one_answer() -> None:
    async def cancels(_: iris.Request) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep(1)
        raise ValueError("cancelled itself")

    async with (
        iris.open_node("shop") as shop,
        shop.join("shop", odd_service(cancels=cancels)),
        iris.open_node("desk") as desk,
    ):
        await desk.wait_for("shop")
        await ask_all(desk, [*ODD, "cancels"])


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_handlers_and_callers_that_use_anyio_see_asyncio(loop: str) -> None:
    import anyio

    async def main() -> None:
        service = iris.Service("shop")

        @service.request
        async def reply(request: iris.Request) -> object:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0.01)
            with anyio.move_on_after(0.01):
                await anyio.sleep(5)
            return await anyio.to_thread.run_sync(lambda: request.payload)

        @service.tunnel
        async def mirror(tunnel: iris.Tunnel) -> None:
            async for payload in tunnel:
                await anyio.sleep(0.001)
                await tunnel.send(payload)

        async with (
            iris.aio.open_node("shop") as shop,
            shop.join("shop", service),
            iris.aio.open_node("desk") as desk,
            desk.subscribe("news") as events,
        ):
            await desk.wait_for("shop")
            answers: list[object] = []

            async def ask(number: int) -> None:
                answers.append(await desk.request("shop", number, timeout=20))

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(ask, number)
            assert sorted(answers, key=str) == sorted(range(20), key=str)
            async with desk.open_tunnel("shop") as tunnel:
                await tunnel.send("a")
                with anyio.fail_after(10):
                    assert await tunnel.receive() == "a"
            await shop.publish("news", "it rains")
            with anyio.fail_after(10):
                assert (await anext(events)).payload == "it rains"
            with anyio.move_on_after(0.1):
                await anext(events)

    run(main(), loop)


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_a_handler_that_closes_its_own_node_or_joins_and_leaves_ends(loop: str) -> None:
    async def main() -> None:
        block = iris.aio.open_node("shop")
        shop = await block.__aenter__()
        closed = asyncio.Event()

        async def close(_: iris.Request) -> None:
            try:
                await block.__aexit__(None, None, None)
            finally:
                closed.set()

        async def nested(_: iris.Request) -> object:
            async with iris.aio.open_node("inner") as inner:
                return await inner.request("shop", 7, timeout=5)

        async with iris.aio.open_node("desk") as desk:
            membership = shop.join("shop", odd_service(close=close, nested=nested))
            await membership.__aenter__()
            await desk.wait_for("shop")
            assert await desk.request("shop", operation="nested", timeout=10) == 7
            with pytest.raises(iris.IrisError):
                await desk.request("shop", operation="close", timeout=10)
            await closed.wait()
            with pytest.raises(iris.NoSuchCluster):
                await desk.request("shop", 1)

    run(main(), loop)


@pytest.mark.long
def test_a_handler_that_never_yields_costs_its_own_node_its_links_and_others_go_on() -> None:
    def block(_: iris.Request) -> None:
        time.sleep(8)  # in the only thread of its node

    service = iris.Service("stuck")
    service.request(block)

    with iris.sync.open_node("desk") as desk:
        done: list[str] = []

        def member() -> None:
            async def main() -> None:
                async with iris.open_node("stuck") as stuck, stuck.join("stuck", service):
                    await trio.sleep(14)
                    done.append("ended")

            trio.run(main)

        import threading

        thread = threading.Thread(target=member)
        thread.start()
        desk.wait_for("stuck", timeout=20)
        began = time.monotonic()
        with pytest.raises((iris.RequestTimeout, iris.MemberLost)):
            desk.request("stuck", 1, timeout=3)
        assert time.monotonic() - began < 5
        with desk.subscribe("news") as events:
            desk.publish("news", "it rains")
            assert next(iter(events)).payload == "it rains"
        desk.wait_for("stuck", timeout=30)
        thread.join(40)
        assert done == ["ended"]
