"""Every public operation, for tests that cancel it at each step: the same with trio and with asyncio.

Two nodes in a network in memory: a shop that asks, and a store that answers, takes tunnels and keeps events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

import iris
from iris.kernel.transport.memory import MemoryStatistics
from iris.security.identity.revocation import issue_revocations
from iris.testing import Network, inspect
from tests.support.stages import Stage


class CancelAt(trio.abc.Instrument):
    """Calls something after so many steps of any task."""

    def __init__(self, cancel: Callable[[], object], steps: int) -> None:
        self._cancel = cancel
        self._left = steps

    @property
    def came(self) -> bool:
        """True once there were so many steps."""
        return self._left <= 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._cancel()


ENOUGH = 3
"""Runs one after the other that were over before the step came: how many steps one takes also depends on others."""


async def cancelled_at_each_step(work: Callable[[], Awaitable[None]], stride: int = 1) -> AsyncIterator[int]:
    """Do something again and again, cancelled at its first step, its second and so on, and yield the step after each.

    With a ``stride`` above 1 at one step of so many.
    It ends when the work is over before the step comes.  It fails if nothing was ever cancelled.
    """
    cancelled = over = 0
    step = 1 - stride
    while over < ENOUGH:
        step += stride
        scope = trio.CancelScope()
        instrument = CancelAt(scope.cancel, step)
        with scope:
            trio.lowlevel.add_instrument(instrument)
            try:
                await work()
            finally:
                trio.lowlevel.remove_instrument(instrument)
        cancelled += scope.cancelled_caught
        over = 0 if instrument.came else over + 1
        yield step
    assert cancelled > 0


@dataclass
class Cast:
    """The nodes of one test, and what their handlers are at.

    ``shop`` and ``store`` are what the operations use: the nodes themselves, or what asyncio has of them.
    """

    shop: Any
    store: Any
    nodes: tuple[iris.Node, iris.Node]
    bridge: iris.Subscription
    network: Network
    revocations: bytes
    running: int = 0

    async def serve(self, request: iris.Request) -> object:
        self.running += 1
        try:
            await trio.sleep(0.001)
            return request.payload
        finally:
            self.running -= 1

    async def serve_here(self, request: iris.Request) -> object:
        """Serve as ``serve`` does, in the style of what the operations run in."""
        return await self.serve(request)

    async def store_events(self) -> None:
        while True:
            await self.bridge.confirm(await self.bridge.receive_batch())

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def give_up_after(self, seconds: float, function: Callable[[], Awaitable[object]]) -> None:
        with trio.move_on_after(seconds):
            await function()

    def open_third(self) -> AbstractAsyncContextManager[Any]:
        return self.network.open_node("third", host="third")


def waiters(node: iris.Node) -> int:
    """Return the number of entries that a node keeps for callers: requests, handlers, confirmations and the like."""
    return inspect(node).waiting


def connections(network: Network) -> MemoryStatistics:
    """Return counts of what would be descriptors on a real network: sockets, connections, and those being made."""
    return network.memory.statistics()


def revocations_of(network: Network) -> bytes:
    """A list that names nobody."""
    return issue_revocations(network.root, number=1, issued=network.wall_clock(), clusters={}, nodes={}).signed


@asynccontextmanager
async def open_cast(stage: Stage) -> AsyncIterator[Cast]:
    """Bring up a shop that asks, and a store that answers, takes tunnels and keeps events."""
    store, shop = await stage.node("store"), await stage.node("shop")
    service = iris.Service("store")
    async with store.subscribe_durable("kept.>") as bridge:
        cast = Cast(shop, store, (shop, store), bridge, stage.network, revocations_of(stage.network))
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
    assert await cast.shop.request("store", 1, timeout=60, options=iris.RequestOptions(idempotent=True)) == 1


async def own_request(cast: Cast) -> None:
    assert await cast.store.request("store", 1, timeout=60) == 1


async def hedged_request(cast: Cast) -> None:
    assert (
        await cast.shop.request("store", 1, timeout=60, options=iris.RequestOptions(idempotent=True, hedge=0.0005)) == 1
    )


async def broadcast(cast: Cast) -> None:
    await cast.shop.broadcast("store", b"flush")


async def survey(cast: Cast) -> None:
    async with cast.shop.survey("store", 2, timeout=60) as answers:
        assert [answer.payload async for answer in answers] == [2]


async def survey_until_the_first(cast: Cast) -> None:
    async with cast.shop.survey("store", 2, timeout=60, count=1, quiet=1) as answers:
        assert (await anext(answers)).payload == 2


async def publish(cast: Cast) -> None:
    for _ in range(1100):  # more than one run
        await cast.shop.publish("kept.a", b"x")


async def publish_confirmed(cast: Cast) -> None:
    await cast.shop.publish_confirmed("kept.a", b"x", timeout=60)


async def publish_many_confirmed(cast: Cast) -> None:
    async with cast.shop.confirming(timeout=60) as events:
        for number in range(5):
            await events.publish("kept.a", b"x", key=str(number % 2))
        await events.wait_confirmed()
        await events.publish("kept.b", b"x")
    assert events.confirmed == events.published == 6


async def publish_retained(cast: Cast) -> None:
    await cast.shop.retain("state", 4)
    cast.shop.raise_for_losses("state")
    async with cast.store.subscribe("state") as events:
        assert (await anext(events)).payload == 4


async def retain_confirmed(cast: Cast) -> None:
    await cast.shop.retain_confirmed("kept.b", 4, timeout=60)


async def subscribe(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*") as events:
        await cast.store.publish("back.a", 3)
        assert (await anext(events)).payload == 3


async def subscribe_in_group(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*", group="g", overflow="wait") as events:
        await cast.store.publish("back.a", 3, key="k")
        assert (await anext(events)).payload == 3


async def forget_subscriber(cast: Cast) -> None:
    async with cast.shop.subscribe_durable("back.*", name="books"):
        pass
    await cast.shop.forget_subscriber("books")


async def take_in_batches(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*") as events:
        await cast.store.publish("back.a", 3)
        batch = await events.receive_batch()
        await events.confirm(batch)
        assert len(batch) == 1


async def tunnel(cast: Cast) -> None:
    async with cast.shop.open_tunnel("store", timeout=60) as tunnel:
        await tunnel.send(b"there")
        assert await tunnel.receive() == b"there"


async def iterate_over_a_tunnel(cast: Cast) -> None:
    async with cast.shop.open_tunnel("store", timeout=60) as tunnel:
        await tunnel.send([1])
        await tunnel.send_eof()
        assert [payload async for payload in tunnel] == [[1]]


async def join(cast: Cast) -> None:
    service = iris.Service("more")
    service.request(cast.serve_here)
    async with cast.shop.join("more", service):
        await cast.store.wait_for("more", timeout=60)
        assert await cast.store.request("more", 4, timeout=60) == 4
    await cast.sleep(0.5)


async def wait_for(cast: Cast) -> None:
    await cast.shop.wait_for("store", timeout=60)
    with pytest.raises(iris.RequestTimeout):
        await cast.shop.wait_for("store", members=2, timeout=0.01)


async def watch(cast: Cast) -> None:
    async with cast.shop.watch("store") as changes:
        assert (await anext(changes)).kind == "joined"
        await cast.give_up_after(0.01, changes.__anext__)


async def revoke(cast: Cast) -> None:
    await cast.shop.revoke(cast.revocations)


async def state(cast: Cast) -> None:
    async with cast.shop.state("prices", timeout=60) as prices:
        prices["eur"] = 1.07
        await cast.store.wait_for("prices", timeout=60)
        async with cast.store.state("prices", timeout=60) as copy:
            assert copy["eur"] == 1.07
            assert (await anext(copy.watch())).key == "eur"
            copy["eur"] = 1.08
            await copy.settled(timeout=60)
            assert prices["eur"] == 1.08
    await cast.sleep(0.5)


async def keep_books(cast: Cast) -> None:
    losses = cast.shop.watch_losses("store", every=0.05)
    await cast.shop.request("store", 1, timeout=60)
    assert (await cast.shop.books("store", settle=60)).received > 0
    await cast.give_up_after(0.005, lambda: cast.shop.request("store", 1, timeout=60))
    await cast.give_up_after(0.1, losses.__anext__)


async def open_node(cast: Cast) -> None:
    async with cast.open_third() as third:
        await third.wait_for("store", timeout=60)
        assert await third.request("store", 5, timeout=60) == 5


OPERATIONS = (
    request, idempotent_request, hedged_request, own_request, broadcast, survey, survey_until_the_first, publish,
    publish_confirmed, publish_many_confirmed, publish_retained, retain_confirmed, subscribe, subscribe_in_group,
    take_in_batches, tunnel, iterate_over_a_tunnel, join, wait_for, watch, revoke, forget_subscriber, state, keep_books,
    open_node,
)  # fmt: skip
