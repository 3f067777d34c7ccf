"""Nodes for tests of ``iris.aio``: whole networks in memory, in the trio run of an event loop, on a virtual clock."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
import trio
import uvloop
from trio.testing import MockClock

import iris
import iris.aio
from iris.aio.crossing import Block
from iris.aio.guest import Guest, enter_guest
from tests.support.operations import Cast, open_cast
from tests.support.stages import Stage, open_stage

Runner = Callable[[Coroutine[Any, Any, None]], None]


def run_eagerly(main: Coroutine[Any, Any, None]) -> None:
    """Run it in an event loop whose tasks begin as they are made, not in the loop's next turn."""
    factory: Any = vars(asyncio)["eager_task_factory"]  # there since Python 3.12
    with asyncio.Runner() as runner:
        runner.get_loop().set_task_factory(factory)
        runner.run(main)


RUNNERS: Final = (
    pytest.param(asyncio.run, id="asyncio"),
    pytest.param(uvloop.run, id="uvloop"),
    pytest.param(
        run_eagerly,
        id="eager",
        marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks that begin at once came with Python 3.12"),
    ),
)
"""Ways to run a program for asyncio."""


def use_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have guests that begin from now on run on a clock that jumps over what nobody is busy in."""
    start: Callable[..., None] = trio.lowlevel.start_guest_run

    def start_jumping(*args: Any, **options: Any) -> None:
        start(*args, **{**options, "clock": MockClock(autojump_threshold=0)})

    monkeypatch.setattr(trio.lowlevel, "start_guest_run", start_jumping)


class AsyncioCast(Cast):
    """The cast of the shared operations, as asyncio has it."""

    def __init__(self, cast: Cast, guest: Guest) -> None:
        shop, store = (iris.aio.Node(node, guest) for node in cast.nodes)
        super().__init__(shop, store, cast.nodes, cast.bridge, cast.network, cast.revocations)
        self.guest = guest

    async def serve_here(self, request: iris.Request) -> object:
        self.running += 1
        try:
            await self.sleep(0.001)
            return request.payload
        finally:
            self.running -= 1

    async def sleep(self, seconds: float) -> None:
        await self.guest.call(partial(trio.sleep, seconds))

    async def give_up_after(self, seconds: float, function: Callable[[], Awaitable[object]]) -> None:
        waiting = asyncio.ensure_future(function())
        try:
            await self.sleep(seconds)
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])

    def open_third(self) -> AbstractAsyncContextManager[Any]:
        return Block(self.guest, partial(self.network.open_node, "third", host="third"), iris.aio.Node)


@asynccontextmanager
async def open_guest_cast() -> AsyncIterator[tuple[Stage, AsyncioCast]]:
    """Open the cast of the shared operations in this event loop."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Stage, Cast]]:
        async with open_stage() as stage, open_cast(stage) as cast:
            yield stage, cast

    guest = await enter_guest()
    try:
        async with Block(guest, opened, lambda both, _: both) as (stage, cast):
            yield stage, AsyncioCast(cast, guest)
    finally:
        await guest.leave()


@asynccontextmanager
async def open_pair(service: iris.Service) -> AsyncIterator[tuple[iris.aio.Node, iris.aio.Node]]:
    """Open a member of a service's cluster, and a client."""
    async with (
        iris.aio.open_node("member") as member,
        member.join(service.name, service),
        iris.aio.open_node("client") as client,
    ):
        await client.wait_for(service.name)
        yield member, client
