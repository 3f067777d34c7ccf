"""Callers with one request at a time, and members that answer at once, read frames themselves: others miss none."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import Stage, open_stage


async def warm_up(shop: iris.Node) -> None:
    """Have the asking task and the worker of the store read, instead of the tasks of their meshes."""
    for number in range(3):
        assert await shop.request("store", number) == number


def make_store() -> tuple[iris.Service, trio.Event]:
    store = iris.Service("store")
    opened = trio.Event()

    @store.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @store.request("wait")
    async def wait(request: iris.Request) -> object:
        await opened.wait()
        return request.payload

    @store.request("open")
    def open_it(request: iris.Request) -> None:
        opened.set()

    @store.request("hang")
    async def hang(request: iris.Request) -> None:
        await trio.sleep_forever()

    @store.request("again")
    async def again(request: iris.Request) -> object:
        return [await shops[0].request("store", number) for number in range(request.payload)]

    return store, opened


shops: list[iris.Node] = []


async def bring_up(stage: Stage, concurrency: int = 8) -> tuple[iris.Node, iris.Node]:
    store, _ = make_store()
    member, shop = await stage.pair(store, limits=iris.Limits(concurrency=concurrency))
    shops[:] = [member]
    await warm_up(shop)
    return member, shop


async def test_readers_are_those_who_wait(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member, shop = await bring_up(stage)
        assert repr(stage.parts[member.id].mesh.reading) == "<InboxReader by a follower>"
        await trio.sleep(1)
        assert repr(stage.parts[shop.id].mesh.reading) == "<InboxReader by the mesh>"
        assert repr(stage.parts[member.id].mesh.reading) == "<InboxReader by a follower>"


async def test_a_handler_that_waits_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        _, shop = await bring_up(stage)
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await shop.request("store", "late", operation="wait"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            assert answers == []
            await shop.request("store", operation="open")
        assert answers == ["late"]
        await warm_up(shop)


async def test_a_caller_that_waits_in_vain_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        _, shop = await bring_up(stage)
        async with trio.open_nursery() as nursery:

            async def wait_in_vain() -> None:
                await warm_up(shop)
                with pytest.raises(iris.RequestTimeout):
                    await shop.request("store", operation="hang", timeout=3)

            nursery.start_soon(wait_in_vain)
            await trio.sleep(1)
            await warm_up(shop)
            async with trio.open_nursery() as many:
                for number in range(20):
                    many.start_soon(shop.request, "store", number)
            await trio.sleep(5)
        await warm_up(shop)


async def test_the_time_of_a_caller_that_reads_ends_as_it_should(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        _, shop = await bring_up(stage)
        began = trio.current_time()
        with pytest.raises(iris.RequestTimeout):
            await shop.request("store", operation="hang", timeout=2)
        assert trio.current_time() - began == pytest.approx(2)
        await warm_up(shop)
        began = trio.current_time()
        with trio.move_on_after(1):
            await shop.request("store", operation="hang")
        assert trio.current_time() - began == pytest.approx(1)
        await warm_up(shop)


async def test_a_handler_may_ask_others_and_its_own_node(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member, shop = await bring_up(stage)
        for _ in range(3):
            assert await shop.request("store", 3, operation="again") == [0, 1, 2]
        shops[:] = [shop]
        assert await shop.request("store", 3, operation="again") == [0, 1, 2]
        assert await member.request("store", "own") == "own"
        await warm_up(shop)


async def test_one_place_for_handlers_is_enough(autojump_clock: MockClock) -> None:
    answers: list[object] = []

    async def ask(node: iris.Node, number: int) -> None:
        answers.append(await node.request("store", number) == number)

    async with open_stage() as stage:
        member, shop = await bring_up(stage, concurrency=1)
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, shop, number)
                nursery.start_soon(ask, member, number)
        assert answers == [True] * 100
        await warm_up(shop)


async def test_a_member_that_leaves_lets_its_node_read_on(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await stage.node("shop")
        store, _ = make_store()
        member = await stage.node("store")
        async with member.join("store", store):
            await shop.wait_for("store")
            await warm_up(shop)
        assert repr(stage.parts[member.id].mesh.reading) == "<InboxReader by the mesh>"
        other = iris.Service("other")
        other.request(echo_back)
        async with member.join("other", other):
            await shop.wait_for("other")
            assert await shop.request("other", 1) == 1


async def test_a_caller_whose_member_dies_while_it_reads_is_told(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        _, shop = await bring_up(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash_soon, stage)
            with pytest.raises((iris.Unknown, iris.RequestTimeout)):
                await shop.request("store", operation="hang", timeout=60)
        await trio.sleep(30)


async def test_a_caller_that_reads_is_told_when_its_own_node_is_closed(autojump_clock: MockClock) -> None:
    """Its member says no goodbye: it is gone, and the report of that comes together with the end of the transport."""
    async with open_stage() as stage:
        store, _ = make_store()
        await stage.member(store)
        told: list[float] = []

        async def ask(shop: iris.Node) -> None:
            await warm_up(shop)
            with pytest.raises(iris.Unknown):
                await shop.request("store", operation="hang", timeout=1000)
            told.append(trio.current_time())

        async with trio.open_nursery() as nursery, stage.network.open_parts("shop", host="shop") as (shop, parts):
            await shop.wait_for("store")
            nursery.start_soon(ask, shop)
            await trio.sleep(1)
            assert repr(parts.mesh.reading) == "<InboxReader by a follower>"
            stage.crash("store")
            closed = trio.current_time()
        assert told == [pytest.approx(closed, abs=0.01)]


async def echo_back(request: iris.Request) -> object:
    return request.payload


async def crash_soon(stage: Stage) -> None:
    await trio.sleep(0.5)
    stage.crash("store")
