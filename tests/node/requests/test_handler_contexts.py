"""Every handler begins with the context of who joined the cluster: what others set is not seen, nor is the asker's."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import IN_FLIGHT, open_stage

user: ContextVar[str] = ContextVar("user", default="nobody")


def make_store(seen: list[str]) -> iris.Service:
    """A service that notes the user that it begins with, and then sets another one, before and after a wait."""
    store = iris.Service("store")

    @store.request
    async def at_once(request: iris.Request) -> str:
        return note(request.payload)

    @store.request("waits")
    async def waits(request: iris.Request) -> str:
        token = user.set("for a moment")
        await trio.sleep(0.01)
        assert user.get() == "for a moment"
        user.reset(token)
        before = note(request.payload)
        await trio.lowlevel.checkpoint()
        assert user.get() == request.payload
        return before

    @store.request("fails")
    async def fails(request: iris.Request) -> str:
        raise ValueError(note(request.payload))

    @store.request("hangs")
    async def hangs(request: iris.Request) -> None:
        note(request.payload)
        await trio.sleep_forever()

    @store.request("plain")
    def plain(request: iris.Request) -> str:
        return note(request.payload)

    @store.broadcast
    def hear(message: iris.Message) -> None:
        note(message.payload)

    @store.broadcast
    async def hear_slowly(message: iris.Message) -> None:
        note(message.payload)
        await trio.sleep(0.01)
        assert user.get() == message.payload

    @store.tunnel
    async def talk(tunnel: iris.Tunnel) -> None:
        note(await tunnel.receive())

    def note(name: str) -> str:
        seen.append(user.get())
        user.set(name)
        return seen[-1]

    return store


@pytest.mark.parametrize("operation", [None, "waits", "plain"])
async def test_what_one_handler_sets_is_not_seen_by_the_next_one_of_its_worker(
    autojump_clock: MockClock, operation: str | None
) -> None:
    seen: list[str] = []
    async with open_stage() as stage:
        _, shop = await stage.pair(make_store(seen), limits=iris.Limits(concurrency=1))
        for number in range(3):
            await shop.request("store", f"one {number}", operation=operation)
        async with trio.open_nursery() as nursery:  # they wait for the worker: it goes from one to the next
            for number in range(5):
                nursery.start_soon(partial(shop.request, "store", f"many {number}", operation=operation))
        with pytest.raises(iris.RemoteError, match="ValueError: nobody"):
            await shop.request("store", "failed", operation="fails")
        with pytest.raises(iris.RequestTimeout):
            await shop.request("store", "cut off", operation="hangs", timeout=0.1)
        assert await shop.request("store", "last") == "nobody"
    assert set(seen) == {"nobody"}


async def test_broadcast_and_tunnel_handlers_begin_afresh_too(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    async with open_stage() as stage:
        member, shop = await stage.pair(make_store(seen))
        for number in range(3):
            await shop.broadcast("store", f"broadcast {number}")
        await trio.sleep(IN_FLIGHT)
        assert len(seen) == 6
        token = user.set("asker")
        for node in (shop, member):
            async with node.open_tunnel("store") as tunnel:
                await tunnel.send("talker")
        user.reset(token)
        assert len(seen) == 8
    assert set(seen) == {"nobody"}


async def test_a_handler_begins_with_what_held_where_its_cluster_was_joined(autojump_clock: MockClock) -> None:
    """Not with what the asker has set, though a node that asks itself begins a worker from within the asking task."""
    seen: list[str] = []
    async with open_stage() as stage:
        token = user.set("who joined")
        node = await stage.member(make_store(seen))
        user.set("who asks")
        for operation in (None, "waits", "plain"):
            assert await node.request("store", "handler", operation=operation) == "who joined"
        assert user.get() == "who asks"
        user.reset(token)


async def test_a_thread_and_the_tasks_of_a_handler_see_what_it_has_set() -> None:
    """In real time: a virtual clock would run on while the thread is at work."""
    store = iris.Service("store")

    @store.request
    async def begin(request: iris.Request) -> list[str]:
        names: list[str] = []
        user.set(request.payload)

        async def note() -> None:
            names.append(user.get())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note)
        names.append(await trio.to_thread.run_sync(user.get))
        return names

    @store.request("thread", thread=True)
    def in_thread(request: iris.Request) -> str:
        before = user.get()
        user.set(request.payload)
        return before

    async with open_stage() as stage:
        _, shop = await stage.pair(store, limits=iris.Limits(concurrency=1))
        for name in ("a", "b"):
            assert await shop.request("store", name) == [name, name]
            assert await shop.request("store", name, operation="thread") == "nobody"
