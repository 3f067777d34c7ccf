"""The event loop waits for trio's input and output itself: no thread, no descriptor kept, no wait that is none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import uvloop

import iris.aio
from iris.aio import guest as guests
from iris.aio.guest import enter_guest
from tests.support.aio import RUNNERS, Runner
from tests.support.async_tests import on_asyncio

TOGETHER = 0.02
"""Seconds between the ends of waits that a machine which is late ends at one time."""


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Runner:
    chosen: Runner = request.param
    return chosen


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def exchange(ours: trio.SocketStream, theirs: trio.SocketStream) -> bytes:
    await ours.send_all(b"there")
    await theirs.receive_some()
    await theirs.send_all(b"back")
    return bytes(await ours.receive_some())


async def wait_for_nothing() -> None:
    with trio.move_on_after(0.1):
        await trio.sleep_forever()


@on_asyncio("run")
async def test_no_thread_is_started_for_a_wait() -> None:
    guest = await enter_guest()
    before = set(threading.enumerate())
    try:
        for _ in range(20):
            await guest.call(partial(trio.sleep, 0.001))
        await guest.call(wait_for_nothing)
        assert set(threading.enumerate()) == before
    finally:
        await guest.leave()


@on_asyncio("run")
async def test_what_a_socket_brings_wakes_trio() -> None:
    guest = await enter_guest()
    listeners = await guest.call(partial(trio.open_tcp_listeners, 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    ours = await guest.call(partial(trio.open_tcp_stream, "127.0.0.1", port))
    theirs = await guest.call(listeners[0].accept)
    try:
        assert [await guest.call(partial(exchange, ours, theirs)) for _ in range(50)] == [b"back"] * 50
    finally:
        for stream in (ours, theirs, *listeners):
            await guest.call(stream.aclose)
        await guest.leave()


@on_asyncio("run")
async def test_a_call_from_a_thread_wakes_trio() -> None:
    guest = await enter_guest()
    try:
        assert await guest.call(partial(trio.to_thread.run_sync, threading.get_ident)) != threading.get_ident()
    finally:
        await guest.leave()


@on_asyncio("run")
async def test_a_wait_ends_neither_early_nor_late() -> None:
    """Also one that begins while the timer of a longer, and of a shorter one, is set."""
    guest = await enter_guest()
    took: dict[float, float] = {}

    async def sleep(seconds: float) -> None:
        begun = trio.current_time()
        await trio.sleep(seconds)
        took[seconds] = trio.current_time() - begun

    try:
        async with asyncio.TaskGroup() as group:
            for seconds in (0.2, 0.05, 0.1):
                group.create_task(guest.call(partial(sleep, seconds)))
    finally:
        await guest.leave()
    assert all(seconds <= took[seconds] for seconds in took)
    # Where the machine lets this thread run late, several are due at one time, and end in any order.
    assert took[0.05] < took[0.1] + TOGETHER
    assert took[0.1] < took[0.2] + TOGETHER


@on_asyncio("run")
async def test_nothing_to_do_costs_no_time() -> None:
    guest = await enter_guest()
    try:
        await guest.call(wait_for_nothing)  # what is imported late
        begun = time.thread_time()
        await guest.call(partial(trio.sleep, 0.5))
        assert time.thread_time() - begun < 0.1
    finally:
        await guest.leave()


@on_asyncio("run")
async def test_no_descriptor_is_kept() -> None:
    async def come_and_go() -> None:
        guest = await enter_guest()
        await guest.call(trio.lowlevel.checkpoint)
        await guest.leave()

    await come_and_go()
    before = descriptors()
    for _ in range(20):
        await come_and_go()
    assert descriptors() == before


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_descriptor_is_kept_of_a_loop_that_was_closed_too_early(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    def begin() -> None:
        loop = make()
        loop.run_until_complete(enter_guest())
        loop.close()

    def end() -> None:
        loop = make()
        guest = loop.run_until_complete(enter_guest())
        loop.run_until_complete(guest.leave())
        loop.close()

    begin()
    end()
    before = descriptors()
    begin()
    end()
    assert descriptors() == before


def test_a_trio_that_is_made_otherwise_waits_by_its_thread(
    run: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise AttributeError("_epoll")

    monkeypatch.setattr(guests, "Polling", refuse)
    monkeypatch.setenv("IRIS_HOME", str(tmp_path))
    service = iris.Service("shop")

    @service.request
    async def echo(request: iris.Request) -> object:
        await asyncio.sleep(0)
        return request.payload

    async def main() -> None:
        async with iris.aio.open_node() as node, iris.aio.open_node() as other, other.join("shop", service):
            await node.wait_for("shop")
            assert await node.request("shop", "one") == "one"

    run(main())


def test_a_descriptor_that_the_loop_does_not_take_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that has no ``add_reader``."""

    async def main() -> None:
        before = descriptors()
        guest = await enter_guest()
        assert guest._polling is None
        await guest.call(partial(trio.sleep, 0.01))
        await guest.leave()
        assert descriptors() == before

    def refuse(*_: object) -> None:
        raise NotImplementedError

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        monkeypatch.setattr(runner.get_loop(), "add_reader", refuse)
        runner.run(main())
