"""What handlers get besides what callers send: their own node, and what the lifespan of their service holds open."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Annotated

import pytest
import trio

import iris
import iris.aio
import iris.sync
from iris.kernel.names import NodeId
from iris.testing import open_network


@dataclass
class Stock:
    """What the services of these tests hold open."""

    items: dict[str, int]
    is_open: bool = True


@contextlib.asynccontextmanager
async def stock_opened(_: iris.Node) -> AsyncIterator[Stock]:
    stock = Stock({"tea": 3})
    try:
        yield stock
    finally:
        stock.is_open = False


@contextlib.asynccontextmanager
async def two_opened(_: iris.Node) -> AsyncIterator[dict[str, object]]:
    yield {"stock": Stock({"milk": 5}), "limit": 2}


def names_service() -> iris.Service:
    names = iris.Service("names")

    @names.request
    def full(name: str) -> str:
        return f"fine {name}"

    return names


async def test_a_handler_asks_others_and_publishes_by_the_node_of_its_request(autojump_clock: object) -> None:
    shop = iris.Service("shop")

    @shop.request
    async def buy(request: iris.Request) -> object:
        name = await request.node.request("names", request.payload)
        await request.node.publish("orders.placed", name)
        return [name, request.node.name]

    async with (
        open_network() as network,
        network.open_node("shop") as seller,
        network.open_node("names") as other,
        network.open_node("desk") as caller,
        other.join("names", names_service()),
        seller.join("shop", shop),
        caller.subscribe("orders.>") as orders,
    ):
        assert await caller.request("shop", "tea", wait=5) == ["fine tea", "shop"]
        assert (await anext(orders)).payload == "fine tea"


async def test_typed_handlers_get_their_node_and_the_callers_do_not_see_it(autojump_clock: object) -> None:
    shop = iris.Service("shop")

    @shop.request("after")
    async def after(item: str, count: int, node: iris.Node) -> object:
        return [item, count, node.name]

    @shop.request("before")
    async def before(node: iris.Node, item: str) -> object:
        return [item, node.name]

    @shop.request("between")
    async def between(item: str, node: iris.Node, request: iris.Request) -> object:
        return [item, node is request.node]

    @shop.request("with_request")
    async def with_request(node: iris.Node, request: iris.Request) -> object:
        return [request.payload, node is request.node]

    @shop.request("alone")
    def alone(node: iris.Node) -> object:
        return node.name

    described = {name: one["signature"] for name, one in shop.describe()["operations"].items()}
    assert described == {
        "after": "(item: str, count: int) -> object",
        "before": "(item: str) -> object",
        "between": "(item: str) -> object",
        "with_request": "(payload) -> object",
        "alone": "() -> object",
    }
    async with (
        open_network() as network,
        network.open_node("shop") as seller,
        network.open_node("desk") as caller,
        seller.join("shop", shop),
    ):
        await caller.wait_for("shop")
        assert await caller.request("shop", {"item": "tea", "count": 2}, operation="after") == ["tea", 2, "shop"]
        assert await caller.request("shop", "tea", operation="before") == ["tea", "shop"]
        assert await caller.request("shop", "tea", operation="between") == ["tea", True]
        assert await caller.request("shop", "tea", operation="with_request") == ["tea", True]
        assert await caller.request("shop", None, operation="alone") == "shop"
        with pytest.raises(iris.RemoteError, match="expected a map of item, count"):
            await caller.request("shop", "tea", operation="after")


async def test_operations_of_a_class_get_what_they_need_and_their_client_does_not_give_it(
    autojump_clock: object,
) -> None:
    class Shop(iris.Service, cluster="shop"):
        @contextlib.asynccontextmanager
        async def lifespan(self, node: iris.Node) -> AsyncIterator[Stock]:
            yield Stock({"tea": len(node.name)})

        @iris.operation
        async def left(self, item: str, stock: iris.FromLifespan[Stock], node: iris.Node) -> list[str]:
            return [item, str(stock.items[item]), node.name]

    async with (
        open_network() as network,
        network.open_node("shop") as seller,
        network.open_node("desk") as caller,
        seller.join("shop", Shop()),
    ):
        client = Shop.client(caller, wait=5)
        ask = client.left  # type checkers ask for the stock, which only members have
        assert await ask("tea") == ["tea", "4", "shop"]  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match=r"left\(item: str\)"):
            await ask("tea", Stock({}))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def test_a_lifespan_is_entered_before_the_service_joins_and_left_after_it_has_drained(
    autojump_clock: object,
) -> None:
    noted: list[str] = []
    working = trio.Event()

    @contextlib.asynccontextmanager
    async def life(node: iris.Node) -> AsyncIterator[Stock]:
        noted.append(f"entered, members: {len(node.members('shop'))}")
        yield Stock({"tea": 3})
        noted.append("left")

    shop = iris.Service("shop", lifespan=life)

    @shop.request
    async def slow(item: str, stock: iris.FromLifespan[Stock]) -> int:
        working.set()
        await trio.sleep(2)
        noted.append("answered")
        return stock.items[item]

    async def ask(node: iris.Node) -> None:
        assert await node.request("shop", "tea") == 3

    async with (
        open_network() as network,
        network.open_node("shop") as seller,
        network.open_node("desk") as caller,
        trio.open_nursery() as nursery,
    ):
        async with seller.join("shop", shop):
            await caller.wait_for("shop")
            nursery.start_soon(ask, caller)
            await working.wait()
        assert noted == ["entered, members: 0", "answered", "left"]


async def test_a_dict_of_a_lifespan_gives_its_values_by_name_and_a_default_stands_in(autojump_clock: object) -> None:
    shop = iris.Service("shop", lifespan=two_opened)

    @shop.request
    def left(
        item: str,
        stock: Annotated[iris.FromLifespan[Stock], "of the shop"],
        limit: iris.FromLifespan[int],
        colour: iris.FromLifespan[str] = "green",
    ) -> object:
        return [min(limit, stock.items[item]), colour]

    sends, heard = trio.open_memory_channel[object](1)

    @shop.broadcast
    async def hear(message: iris.Message, limit: iris.FromLifespan[int], node: iris.Node) -> None:
        await sends.send([message.payload, limit, node.name])

    @shop.tunnel
    async def talk(tunnel: iris.Tunnel, node: iris.Node, stock: iris.FromLifespan[Stock]) -> None:
        await tunnel.send([node.name, stock.items["milk"]])

    async with (
        open_network() as network,
        network.open_node("shop") as seller,
        network.open_node("desk") as caller,
        seller.join("shop", shop),
    ):
        assert await caller.request("shop", "milk", wait=5) == [2, "green"]
        await caller.broadcast("shop", "open")
        async with caller.open_tunnel("shop") as tunnel:
            assert await tunnel.receive() == ["shop", 5]
        assert await heard.receive() == ["open", 2, "shop"]


async def test_worker_threads_have_a_node_of_their_own_kind() -> None:  # threads know no virtual time
    shop = iris.Service("shop")

    @shop.request("by_parameter", thread=True)
    def by_parameter(name: str, node: iris.sync.Node) -> object:
        return [node.request("names", name), node.name, threading.current_thread() is threading.main_thread()]

    @shop.request("by_request", thread=True)
    def by_request(request: iris.sync.Request) -> object:
        return request.node.request("names", request.payload)

    @shop.request("other", thread=True)
    def other(request: iris.Request) -> object:
        return request.node.publish("a", 1).send(None)

    async with (
        open_network() as network,
        network.open_node("shop") as seller,
        network.open_node("names") as named,
        network.open_node("desk") as caller,
        named.join("names", names_service()),
        seller.join("shop", shop),
    ):
        await caller.wait_for("shop")
        assert await caller.request("shop", "tea", operation="by_parameter") == ["fine tea", "shop", False]
        assert await caller.request("shop", "tea", operation="by_request") == "fine tea"
        with pytest.raises(iris.RemoteError, match=r"iris\.sync\.Request"):
            await caller.request("shop", "tea", operation="other")


async def test_what_a_thread_asks_has_no_more_time_than_its_handler(autojump_clock: object) -> None:
    ended: SimpleQueue[str] = SimpleQueue()
    shop, deaf = iris.Service("shop"), iris.Service("deaf")

    @shop.request(thread=True)
    def ask(node: iris.sync.Node) -> None:
        try:
            node.request("deaf", timeout=60)
        except iris.RequestTimeout as error:
            ended.put(str(error))

    @deaf.request
    async def never(_: iris.Request) -> None:
        await trio.sleep_forever()

    async with (
        open_network() as network,
        network.open_node("shop") as seller,
        network.open_node("deaf") as other,
        network.open_node("desk") as caller,
        other.join("deaf", deaf),
        seller.join("shop", shop),
    ):
        await caller.wait_for("shop")
        with contextlib.suppress(iris.RequestTimeout):  # its thread may end in the same moment
            await caller.request("shop", timeout=0.2)
        assert await trio.to_thread.run_sync(ended.get)


@contextlib.asynccontextmanager
async def broken(_: iris.Node) -> AsyncIterator[None]:
    raise OSError("no database")
    yield


async def yields(_: iris.Node) -> AsyncIterator[None]:
    yield


async def test_a_lifespan_that_fails_ends_the_join_with_its_error(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("shop") as seller:
        with pytest.raises(OSError, match="no database") as raised:
            async with seller.join("shop", iris.Service("shop", lifespan=broken)):
                pass
        assert raised.value.__notes__ == ["raised in the lifespan of service 'shop'"]
        with pytest.raises(iris.ConfigError, match=r"decorate it with contextlib\.asynccontextmanager"):
            async with seller.join("shop", iris.Service("shop", lifespan=yields)):  # type: ignore[arg-type]
                pass
        with pytest.raises(iris.ConfigError, match="returns Stock, and not an asynchronous context manager"):
            async with seller.join("shop", iris.Service("shop", lifespan=lambda _: Stock({}))):  # type: ignore[arg-type,return-value]
                pass
        async with seller.join("shop", iris.Service("shop", lifespan=stock_opened)):
            assert seller.clusters() == ("shop",)


@pytest.mark.parametrize("lifespan", [None, two_opened])
async def test_what_a_handler_needs_and_nobody_gives_is_said_before_the_service_joins(
    lifespan: object, autojump_clock: object
) -> None:
    shop = iris.Service("shop", lifespan=lifespan)  # type: ignore[arg-type]

    @shop.request
    def count(item: str, pool: iris.FromLifespan[Stock]) -> int:
        return pool.items[item]

    complaint = (
        "pool comes from the lifespan, and service 'shop' has none"
        if lifespan is None
        else ("pool comes from the lifespan, and that of service 'shop' gives stock, limit")
    )
    async with open_network() as network, network.open_node("shop") as seller:
        with pytest.raises(iris.ConfigError, match=complaint):
            async with seller.join("shop", shop):
                pass
        assert seller.clusters() == ()


async def test_a_handler_that_wants_the_node_of_another_kind_of_program_says_which_is_there(
    autojump_clock: object,
) -> None:
    by_parameter, by_request = iris.Service("shop"), iris.Service("shop")

    @by_parameter.request
    async def ask(item: str, node: iris.aio.Node) -> str:
        return item + node.name

    @by_request.request
    async def ask_too(request: iris.aio.Request) -> str:
        return request.node.name

    async with open_network() as network, network.open_node("shop") as seller:
        for service in (by_parameter, by_request):
            with pytest.raises(
                iris.ConfigError, match=r"wants an iris\.aio\.Node, and service 'shop' is joined at an iris\.Node"
            ):
                async with seller.join("shop", service):
                    pass
        with pytest.raises(iris.ConfigError, match=r"serve it with 'iris run', or join it at a node of iris\.aio"):
            async with seller.join("shop", iris.aio.Service("shop")):
                pass


def test_a_request_that_was_made_by_hand_has_no_node() -> None:
    sender = iris.Sender("desk", NodeId("0" * 32))
    request = iris.Request(payload=1, sender=sender, headers={}, deadline=0.0, cluster="shop", operation=None)
    with pytest.raises(RuntimeError, match="made by hand"):
        _ = request.node
