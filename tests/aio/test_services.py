"""Services that are written with asyncio: lifespan, own node, typed parameters, and the loop that they are for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio

import iris
import iris.aio
import iris.sync
from tests.support.async_tests import on_asyncio

pytestmark = pytest.mark.usefixtures("own_home")


@dataclass
class Prices:
    by_item: dict[str, int]
    is_open: bool = True


opened: list[Prices] = []


@contextlib.asynccontextmanager
async def prices_opened(node: iris.aio.Node) -> AsyncIterator[Prices]:
    await asyncio.sleep(0)
    opened.append(Prices({"tea": len(node.name)}))
    yield opened[-1]
    await asyncio.sleep(0)
    opened[-1].is_open = False


def shop_service() -> iris.aio.Service:
    shop = iris.aio.Service("shop", lifespan=prices_opened)

    @shop.request
    async def price(item: str, prices: iris.FromLifespan[Prices], node: iris.aio.Node) -> object:
        await asyncio.sleep(0)
        await node.publish("asked", item)
        return prices.by_item[item]

    @shop.request("forward")
    async def forward(request: iris.aio.Request) -> object:
        return await request.node.request("shop", request.payload)

    @shop.request("unannotated")
    async def unannotated(request: Any) -> bool:
        return type(request.node) is iris.aio.Node

    @shop.request("thread", thread=True)
    def in_thread(item: str, node: iris.sync.Node, prices: iris.FromLifespan[Prices]) -> object:
        return [node.request("shop", item), prices.is_open]

    @shop.request("trio")
    async def with_trio(_: iris.Request) -> None:
        await trio.sleep(0.1)

    @shop.broadcast
    async def hear(message: iris.Message, node: iris.aio.Node) -> None:
        await node.publish("heard", message.payload)

    @shop.tunnel
    async def talk(tunnel: iris.aio.Tunnel, prices: iris.FromLifespan[Prices]) -> None:
        await asyncio.sleep(0)
        await tunnel.send(prices.by_item)

    return shop


@on_asyncio()
async def test_handlers_of_asyncio_have_their_node_and_what_their_lifespan_gives() -> None:
    async with iris.aio.open_node("shop") as node, node.subscribe(">") as events:
        async with node.join("shop", shop_service()):
            assert await node.request("shop", "tea") == 4
            assert (await anext(events)).payload == "tea"
            assert await node.request("shop", "tea", operation="forward") == 4
            assert await node.request("shop", "tea", operation="unannotated") is True
            assert await node.request("shop", "tea", operation="thread") == [4, True]
            async with node.open_tunnel("shop") as tunnel:
                assert await tunnel.receive() == {"tea": 4}
            await node.broadcast("shop", "open")
            assert [(await anext(events)).payload for _ in range(3)] == ["tea", "tea", "open"]
            with pytest.raises(iris.RemoteError, match=r"it uses trio, .*: make the service an iris\.Service"):
                await node.request("shop", "tea", operation="trio")
            assert opened[-1].is_open
        assert not opened[-1].is_open


@on_asyncio()
async def test_a_lifespan_of_asyncio_that_fails_ends_the_join_with_its_error() -> None:
    @contextlib.asynccontextmanager
    async def broken(_: iris.aio.Node) -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    async with iris.aio.open_node("shop") as node:
        with pytest.raises(OSError, match="no database") as raised:
            async with node.join("shop", iris.aio.Service("shop", lifespan=broken)):
                pass
        assert raised.value.__notes__ == ["raised in the lifespan of service 'shop'"]
        async with node.join("shop", shop_service()):
            pass


@on_asyncio()
async def test_a_handler_that_wants_the_node_of_trio_says_which_is_there() -> None:
    shop = iris.Service("shop")

    @shop.request
    async def ask(item: str, node: iris.Node) -> str:
        return item + node.name

    async with iris.aio.open_node("shop") as node:
        with pytest.raises(
            iris.ConfigError, match=r"wants an iris\.Node, and service 'shop' is joined at an iris\.aio\.Node"
        ):
            async with node.join("shop", shop):
                pass


@pytest.mark.parametrize("what", ["sleep", "turn", "queue", "future"])
def test_a_handler_of_asyncio_in_trio_gets_an_error_that_says_the_mend(what: str) -> None:
    shop = iris.Service("shop")

    @shop.request
    async def wait(_: iris.Request) -> None:
        match what:
            case "sleep":
                await asyncio.sleep(1)
            case "turn":
                await asyncio.sleep(0)
            case "queue":
                await asyncio.Queue[int]().get()
            case _:
                loop = asyncio.new_event_loop()
                try:
                    await loop.create_future()
                finally:
                    loop.close()

    async def main() -> None:
        async with iris.open_node("shop") as node, node.join("shop", shop):
            with pytest.raises(iris.RemoteError, match=r"make the service an iris\.aio\.Service"):
                await node.request("shop")

    trio.run(main)


@on_asyncio()
async def test_a_block_of_trio_with_a_nursery_that_asyncio_cancels_ends_as_cancelled() -> None:
    """A lifespan of trio has one where it runs a task; several tasks that are cancelled at once come as a group."""

    @contextlib.asynccontextmanager
    async def life(_: iris.Node) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            yield

    shop = iris.Service("shop", lifespan=life)

    async def be_member(node: iris.aio.Node, joined: asyncio.Event) -> None:
        async with node._enter(partial(iris.Node.join, cluster="shop", service=shop)):
            joined.set()
            await asyncio.Event().wait()

    async with iris.aio.open_node("shop") as node:
        joined = asyncio.Event()
        member = asyncio.create_task(be_member(node, joined))
        await joined.wait()
        member.cancel()
        with pytest.raises(asyncio.CancelledError):
            await member
