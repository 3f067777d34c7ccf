"""Every public operation, cancelled at each step of the scheduler in turn: it can be repeated and leaves nothing."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import IN_FLIGHT, Stage, check_accounts, open_stage

STEPS = (*range(1, 41), *range(44, 200, 4))
"""Steps of all tasks together, counted from the beginning of the operation; the longest ones take more than 100."""


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of any task."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope = scope
        self._left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


@dataclass
class Cast:
    """The nodes of one test, and what their handlers are at."""

    shop: iris.Node
    store: iris.Node
    bridge: iris.Subscription
    running: int = 0

    async def serve(self, request: iris.Request) -> object:
        self.running += 1
        try:
            await trio.sleep(0.001)
            return request.payload
        finally:
            self.running -= 1

    async def store_events(self) -> None:
        while True:
            await self.bridge.confirm(await self.bridge.receive_batch())


@asynccontextmanager
async def open_cast(stage: Stage) -> AsyncIterator[Cast]:
    """Bring up a shop that asks, and a store that answers, takes tunnels and keeps events."""
    store, shop = await stage.node("store"), await stage.node("shop")
    service = iris.Service("store")
    async with store.subscribe("kept.>", durable=True) as bridge:
        cast = Cast(shop, store, bridge)
        service.request(cast.serve)

        async def note(_: iris.Message) -> None:
            await trio.lowlevel.checkpoint()

        async def echo(tunnel: iris.Tunnel) -> None:
            async for payload in tunnel:
                await tunnel.send(payload)

        service.broadcast(note)
        service.tunnel(echo)
        async with store.join("store", service), trio.open_nursery() as nursery:
            nursery.start_soon(cast.store_events)
            await shop.wait_for("store")
            yield cast
            nursery.cancel_scope.cancel()


async def request(cast: Cast) -> None:
    assert await cast.shop.request("store", 1, timeout=60) == 1


async def idempotent_request(cast: Cast) -> None:
    assert await cast.shop.request("store", 1, timeout=60, idempotent=True) == 1


async def own_request(cast: Cast) -> None:
    assert await cast.store.request("store", 1, timeout=60) == 1


async def broadcast(cast: Cast) -> None:
    await cast.shop.broadcast("store", b"flush")


async def survey(cast: Cast) -> None:
    async with cast.shop.survey("store", 2, timeout=60) as answers:
        assert [answer.payload async for answer in answers] == [2]


async def publish(cast: Cast) -> None:
    for _ in range(1100):  # more than one run
        await cast.shop.publish("kept.a", b"x")


async def publish_confirmed(cast: Cast) -> None:
    await cast.shop.publish("kept.a", b"x", confirm=True, timeout=60)


async def subscribe(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*") as events:
        await cast.store.publish("back.a", 3)
        assert (await anext(events)).payload == 3


async def subscribe_in_group(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*", group="g", overflow="wait") as events:
        await cast.store.publish("back.a", 3, key="k")
        assert (await anext(events)).payload == 3


async def tunnel(cast: Cast) -> None:
    async with cast.shop.open_tunnel("store", timeout=60) as tunnel:
        await tunnel.send(b"there")
        assert await tunnel.receive() == b"there"


async def join(cast: Cast) -> None:
    service = iris.Service("more")
    service.request(cast.serve)
    async with cast.shop.join("more", service):
        await cast.store.wait_for("more", timeout=60)
        assert await cast.store.request("more", 4, timeout=60) == 4
    await trio.sleep(0.5)


async def wait_for(cast: Cast) -> None:
    await cast.shop.wait_for("store", timeout=60)
    with pytest.raises(iris.RequestTimeout):
        await cast.shop.wait_for("store", members=2, timeout=0.01)


async def watch(cast: Cast) -> None:
    async with cast.shop.watch("store") as changes:
        assert (await anext(changes)).kind == "joined"
        with trio.move_on_after(0.01):
            await anext(changes)


OPERATIONS = (
    request, idempotent_request, own_request, broadcast, survey, publish, publish_confirmed, subscribe,
    subscribe_in_group, tunnel, join, wait_for, watch,
)  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_an_operation_cancelled_at_any_step_leaves_nothing_behind(
    autojump_clock: MockClock, operation: Callable[[Cast], Awaitable[None]]
) -> None:
    async with open_stage() as stage, open_cast(stage) as cast:
        for _ in range(2):  # what is made once and kept, such as workers, is there before tasks are counted
            await operation(cast)
        await trio.sleep(1)
        cancelled = 0
        tasks = trio.lowlevel.current_statistics().tasks_living
        for step in STEPS:
            with trio.CancelScope() as scope:
                instrument = CancelAt(scope, step)
                trio.lowlevel.add_instrument(instrument)
                try:
                    await operation(cast)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            cancelled += scope.cancelled_caught
            await trio.sleep(IN_FLIGHT)
            assert cast.running == 0, step
            for node in (cast.shop, cast.store):
                check_accounts(node)
                assert node.statistics().tunnels.open == 0, step
            assert not cast.shop.statistics().subscriptions, step
            assert not cast.shop.statistics().services, step
        with trio.fail_after(30):
            await operation(cast)
        await trio.sleep(1)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert cancelled > 0


def test_every_operation_says_what_cancelling_it_leaves_behind() -> None:
    """Those that can be waited for: coroutines, and blocks that are entered and left."""
    waiting = {
        name: function
        for name, function in vars(iris.Node).items()
        if not name.startswith("_")
        and callable(function)
        and (
            inspect.iscoroutinefunction(function)
            or "ContextManager" in str(inspect.signature(function).return_annotation)
            or "AsyncIterator" in str(inspect.signature(function).return_annotation)
        )
    }
    assert {
        "request",
        "broadcast",
        "survey",
        "publish",
        "subscribe",
        "open_tunnel",
        "join",
        "wait_for",
    } <= waiting.keys()
    for own in ("run", "wait_ready"):  # what open_node calls
        del waiting[own]
    documented = {**waiting, "open_node": iris.open_node}
    silent = [name for name, function in documented.items() if "ancel" not in (inspect.getdoc(function) or "")]
    assert silent == []
