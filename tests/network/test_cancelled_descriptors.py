"""A cancelled operation on the real network leaves no file descriptor open."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import iris
from iris.node.environment import Environment
from iris.node.open import open_node
from iris.security.identity import Credential
from tests.support.federations import echo
from tests.support.tunnel_store import make_credentials

HERE = "tcp://127.0.0.1:0"
ALONE = Environment(directory=None, lan=None)
STRIDE = 7
"""Steps between two that are cancelled at: each of them is, on the network in memory, in tests/node."""


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of any task."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope = scope
        self.left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Pair:
    """A node that asks, one that answers, and the credential of a third one."""

    def __init__(self, third: Credential, shop: iris.Node, store: iris.Node) -> None:
        self._third = third
        self.shop = shop
        self.store = store

    @asynccontextmanager
    async def third(self) -> AsyncIterator[iris.Node]:
        seeds = list(self.store.addresses)
        async with open_node(credential=self._third, listen=[HERE], seeds=seeds, environment=ALONE) as node:
            yield node


async def request(pair: Pair) -> None:
    assert await pair.shop.request("store", b"x", timeout=60, options=iris.RequestOptions(idempotent=True)) == b"x"


async def survey(pair: Pair) -> None:
    async with pair.shop.survey("store", b"x", timeout=60) as answers:
        assert [answer.payload async for answer in answers] == [b"x"]


async def tunnel(pair: Pair) -> None:
    async with pair.shop.open_tunnel("store", timeout=60) as tunnel:
        await tunnel.send(b"x")
        assert await tunnel.receive() == b"x"


async def subscribe(pair: Pair) -> None:
    async with pair.shop.subscribe("a.*") as events:
        await pair.store.publish("a.b", b"x")
        assert (await anext(events)).payload == b"x"


async def open_a_node(pair: Pair) -> None:
    async with pair.third() as third:
        await third.wait_for("store", timeout=60)
        assert await third.request("store", b"x", timeout=60) == b"x"


@pytest.mark.parametrize(
    "operation", [request, survey, tunnel, subscribe, open_a_node], ids=lambda operation: operation.__name__
)
async def test_an_operation_that_is_cancelled_leaves_no_descriptor(
    operation: Callable[[Pair], Awaitable[None]],
) -> None:
    of_store, of_shop, of_third = make_credentials("store", "shop", "third")
    with trio.fail_after(120):
        async with (
            open_node(credential=of_store, listen=[HERE], environment=ALONE) as store,
            open_node(credential=of_shop, listen=[HERE], seeds=list(store.addresses), environment=ALONE) as shop,
            store.join("store", echo("store")),
        ):
            await shop.wait_for("store", timeout=60)
            pair = Pair(of_third, shop, store)
            for _ in range(2):  # what is made once and kept is there before they are counted
                await operation(pair)
            before = descriptors()
            cancelled = 0
            for step in itertools.count(1, STRIDE):
                scope = trio.CancelScope()
                instrument = CancelAt(scope, step)
                with scope:
                    trio.lowlevel.add_instrument(instrument)
                    try:
                        await operation(pair)
                    finally:
                        trio.lowlevel.remove_instrument(instrument)
                cancelled += scope.cancelled_caught
                if instrument.left > 0:
                    break
            await operation(pair)
            assert cancelled > 0
            while descriptors() > before:  # noqa: ASYNC110 -- nng closes them in threads of its own, without an event
                await trio.sleep(0.01)
