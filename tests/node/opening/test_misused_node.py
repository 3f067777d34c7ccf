"""A node that is closed, and one that is used from elsewhere: each call says what is wrong and what to do."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- what is not to be used is used here
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from tests.support.stages import open_stage


def echo() -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def answer(request: iris.Request) -> object:
        return request.payload

    @service.request("wait")
    async def wait(request: iris.Request) -> object:
        await trio.sleep_forever()

    return service


async def enter(block: Any) -> None:
    async with block:
        pass


async def call(verb: Callable[[], Any]) -> None:
    await verb()


CALLS: dict[str, Callable[[iris.Node], Awaitable[object]]] = {
    "request": lambda node: node.request("store", 1),
    "broadcast": lambda node: node.broadcast("store", 1),
    "survey": lambda node: enter(node.survey("store", 1)),
    "publish": lambda node: node.publish("orders.new", b"1"),
    "publish_confirmed": lambda node: node.publish_confirmed("orders.new", 1),
    "confirming": lambda node: enter(node.confirming()),
    "subscribe": lambda node: enter(node.subscribe("orders.>")),
    "forget a subscriber": lambda node: node.forget_subscriber("bridge"),
    "tunnel": lambda node: enter(node.open_tunnel("store")),
    "join": lambda node: enter(node.join("store", echo())),
    "wait for": lambda node: node.wait_for("store"),
    "watch": lambda node: enter(node.watch("store")),
    "revoke": lambda node: node.revoke(b""),
    "state": lambda node: enter(node.state("prices")),
    "bridge lease": lambda node: enter(node.bridge().lease("scheduler")),
    "bridge saga": lambda node: enter(node.bridge().saga("order")),
    "bridge queue": lambda node: enter(node.bridge().queue("jobs")),
    "retain": lambda node: node.retain("orders.new", 1),
    "retain_confirmed": lambda node: node.retain_confirmed("orders.new", 1),
    "subscribe_durable": lambda node: enter(node.subscribe_durable("orders.>")),
    "books": lambda node: node.books(),
    "losses": lambda node: anext(node.watch_losses()),
    "bridge consume": lambda node: enter(node.bridge().consume("orders.>", group="reports")),
}


def test_every_call_of_a_node_is_here() -> None:
    plain = {"clusters", "members", "nodes", "statistics", "durable_subscribers", "forget_retained", "raise_for_losses"}
    longer = {
        "forget": "forget_subscriber", "tunnel": "open_tunnel", "losses": "watch_losses",
        "wait": "wait_for",
    }  # fmt: skip
    named = {longer.get(name.split()[0], name.split()[0]) for name in CALLS}
    assert named | plain == {name for name, of in vars(iris.Node).items() if callable(of) and not name.startswith("_")}


@pytest.mark.parametrize("name", CALLS)
async def test_a_node_that_is_closed_says_so(autojump_clock: MockClock, name: str) -> None:
    async with iris.testing.open_network() as network:
        async with network.open_node("shop") as shop:
            pass
        with pytest.raises(trio.ClosedResourceError, match="this node is closed: the block of its open_node has ended"):
            await CALLS[name](shop)
        with pytest.raises(trio.ClosedResourceError):
            shop.forget_retained("orders.new")
        assert shop.statistics().requests.sent == 0
        assert (*shop.members("store"), *shop.clusters()) == ()


async def test_a_request_to_a_nodes_own_cluster_ends_when_the_node_is_closed(autojump_clock: MockClock) -> None:
    ended: list[str] = []

    async def ask(shop: iris.Node) -> None:
        with pytest.raises(iris.Unknown):
            await shop.request("shop", operation="wait", timeout=math.inf)
        ended.append("asked")

    async with iris.testing.open_network() as network, trio.open_nursery() as nursery:
        with trio.fail_after(60):
            async with network.open_node("shop") as shop, shop.join("shop", echo()):
                nursery.start_soon(ask, shop)
                await trio.sleep(1)
                assert ended == []
            await trio.sleep(1)
            assert ended == ["asked"]


async def test_a_node_of_another_run_says_so(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, network.open_node("shop") as shop:

        def elsewhere() -> dict[str, str]:
            said: dict[str, str] = {}

            async def main() -> None:
                for name, work in CALLS.items():
                    with pytest.raises(RuntimeError) as caught:
                        await work(shop)
                    said[name] = str(caught.value)

            trio.run(main)
            return said

        said = await trio.to_thread.run_sync(elsewhere)
        assert said == dict.fromkeys(
            CALLS, "this node belongs to another trio run: open a node with iris.open_node in this one"
        )


async def test_a_node_that_is_used_from_a_thread_or_from_asyncio_says_what_to_do(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, network.open_node("shop") as shop:

        async def main() -> dict[str, str]:
            said: dict[str, str] = {}
            for name, work in CALLS.items():
                with pytest.raises(RuntimeError) as caught:
                    await work(shop)
                said[name] = str(caught.value)
            return said

        def plainly() -> dict[str, str]:
            coroutine = main()
            with pytest.raises(StopIteration) as ended:
                coroutine.send(None)
            found: dict[str, str] = ended.value.value
            return found

        told = await trio.to_thread.run_sync(plainly)
        assert set(told) == set(CALLS)
        for text in told.values():
            assert text.startswith(
                "this node belongs to a trio run in another thread: call it from here with trio.from_thread"
            )
        told = await trio.to_thread.run_sync(lambda: asyncio.run(main()))
        assert set(told) == set(CALLS)
        for text in told.values():
            assert text.startswith(
                "this node belongs to a trio run, and this is asyncio: import iris.aio and use iris.aio.open_node; or "
                "run the program with trio.run(main)"
            )


async def test_what_the_error_tells_to_do_works(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(echo())
        token = trio.lowlevel.current_trio_token()
        answers: list[object] = []

        def ask() -> None:
            answers.append(trio.from_thread.run(shop.request, "store", 7, trio_token=token))

        thread = threading.Thread(target=ask)
        thread.start()
        while thread.is_alive():
            await trio.to_thread.run_sync(thread.join, 0.01)
        assert answers == [7]


def test_a_node_cannot_be_opened_under_asyncio() -> None:
    async def main() -> None:
        async with iris.open_node():
            raise AssertionError("it opened")

    with pytest.raises(
        RuntimeError, match=r"^iris.open_node is for trio, and this is asyncio: import iris.aio and use"
    ):
        asyncio.run(main())
    with pytest.raises(
        RuntimeError, match=r"^iris.open_node is for trio, and no trio run is in progress here: run the program"
    ):
        main().send(None)
