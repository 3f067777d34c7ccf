"""Frames are read by the task that waits for what they bring, by one task at a time, and never by nobody."""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from iris.cluster.mesh.reader import InboxReader, InboxWaiter
from iris.kernel.tasks import host_loop
from iris.kernel.transport.memory import MemoryNetwork, MemoryOutgoing, MemoryTransport
from tests.support.transports import ignore

owner: ContextVar[str] = ContextVar("owner", default="nobody")

WAKE = b"wake"
"""The frame that the followers of these tests wait for."""


class Desk:
    """A reading, what came, and by whom and in whose context it was read."""

    def __init__(self, network: MemoryNetwork, way: MemoryOutgoing, transport: MemoryTransport) -> None:
        self.network = network
        self.way = way
        self.transport = transport
        self.reading = InboxReader(transport, self)
        self.follower = InboxWaiter(self.reading)
        self.follower.keen = True
        self.frames: list[bytes] = []
        self.readers: list[str] = []
        self.contexts: set[str] = set()
        self.on_frame: list[Callable[[], None]] = []

    def receive_frame(self, frame: bytes | memoryview) -> None:
        self.frames.append(bytes(frame))
        self.readers.append(trio.lowlevel.current_task().name.rpartition(".")[2])
        self.contexts.add(owner.get())
        if frame == WAKE:
            self.follower.wake()
        for tell in self.on_frame:
            tell()

    def network_at_once(self) -> None:
        """Have what is sent from now on be there together."""
        self.network.latency = (0.001, 0.001)

    async def send(self, *frames: bytes) -> None:
        """Send, and wait until nothing more happens."""
        for frame in frames:
            assert self.way.send_nowait(frame)
        await trio.sleep(0.1)

    async def follow(self) -> None:
        """Wait for one wake-up after the other."""
        owner.set("follower")
        while True:
            await self.follower.wait()


@asynccontextmanager
async def open_desk() -> AsyncIterator[tuple[Desk, trio.Nursery]]:
    network = MemoryNetwork()
    near, far = network.transport("near"), network.transport("far")
    await far.listen(["mem://far"])
    way = await near.dial("mem://far", ignore)
    owner.set("mesh")
    async with trio.open_nursery() as nursery:
        desk = Desk(network, way, far)
        nursery.start_soon(desk.reading.run)
        yield desk, nursery
        nursery.cancel_scope.cancel()


async def test_the_task_of_the_mesh_reads_while_nobody_follows(autojump_clock: MockClock) -> None:
    async with open_desk() as (desk, _):
        await desk.send(b"1", b"2")
        await desk.send(b"3")
        assert desk.frames == [b"1", b"2", b"3"]
        assert set(desk.readers) == {"run"}
        assert repr(desk.reading) == "<InboxReader by the mesh>"


async def test_who_was_woken_by_a_frame_reads_the_next_ones(autojump_clock: MockClock) -> None:
    async with open_desk() as (desk, nursery):
        nursery.start_soon(desk.follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        assert repr(desk.reading) == "<InboxReader by a follower>"
        await desk.send(b"for others", WAKE)
        await desk.send(WAKE)
        assert desk.readers == ["run", "follow", "follow", "follow"]
        assert desk.contexts == {"mesh"}


async def test_who_is_not_keen_leaves_it_to_the_mesh(autojump_clock: MockClock) -> None:
    async with open_desk() as (desk, nursery):
        desk.follower.keen = False
        nursery.start_soon(desk.follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        await desk.send(WAKE)
        assert desk.readers == ["run", "run"]


@pytest.mark.parametrize("pausing", [InboxWaiter.pause, InboxWaiter.give_back])
async def test_what_is_given_back_is_read_by_the_mesh(
    autojump_clock: MockClock, pausing: Callable[[InboxWaiter], None]
) -> None:

    async def follow() -> None:
        await desk.follower.wait()
        await desk.follower.wait()
        assert desk.follower.leads
        pausing(desk.follower)
        pausing(desk.follower)
        await trio.sleep(10)
        await desk.follower.wait()

    async with open_desk() as (desk, nursery):
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        await desk.send(WAKE)
        await desk.send(b"1")
        assert desk.readers == ["run", "follow", "run"]
        await trio.sleep(10)
        await desk.send(WAKE)
        assert desk.readers == ["run", "follow", "run", "run"]


async def test_who_waits_again_at_once_has_it_again(autojump_clock: MockClock) -> None:
    async def follow() -> None:
        while True:
            await desk.follower.wait()
            desk.follower.give_back()

    async with open_desk() as (desk, nursery):
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        for _ in range(20):
            await desk.send(WAKE)
        assert desk.readers == ["run"] + 19 * ["follow"]


async def test_a_pause_in_order_to_wait_for_frames_is_none(autojump_clock: MockClock) -> None:
    async with open_desk() as (desk, nursery):
        nursery.start_soon(desk.follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        desk.follower.pause()
        assert desk.follower.keen
        await desk.send(WAKE)
        assert desk.readers == ["run", "follow"]


async def test_who_reads_is_woken_by_others_too_and_reads_on(autojump_clock: MockClock) -> None:
    woken = 0

    async def follow() -> None:
        nonlocal woken
        while True:
            await desk.follower.wait()
            woken += 1

    async with open_desk() as (desk, nursery):
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        for expected in (2, 3):
            desk.follower.wake()
            await wait_all_tasks_blocked()
            assert woken == expected
        await desk.send(WAKE)
        assert woken == 4
        assert desk.readers == ["run", "follow"]


@pytest.mark.parametrize("moment", ["waiting", "woken", "lent"])
async def test_cancelled_it_gives_the_reading_back(autojump_clock: MockClock, moment: str) -> None:
    scope = trio.CancelScope()

    async def follow() -> None:
        with scope:
            await desk.follow()

    async with open_desk() as (desk, nursery):
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        if moment == "lent":
            assert desk.way.send_nowait(WAKE)
        else:
            await desk.send(WAKE)
            assert desk.follower.leads
        if moment == "woken":
            desk.follower.wake()
        scope.cancel()
        await desk.send(b"1", b"2")
        assert desk.frames == [WAKE, b"1", b"2"]
        assert desk.readers[1:] == ["run", "run"]
        assert not desk.follower.leads


async def test_a_wake_up_that_came_first_is_not_cancelled_any_more(autojump_clock: MockClock) -> None:
    scope = trio.CancelScope()
    woken = 0

    async def follow() -> None:
        nonlocal woken
        with scope:
            while True:
                await desk.follower.wait()
                woken += 1

    async with open_desk() as (desk, nursery):
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        desk.follower.wake()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert woken == 2


async def test_a_hasty_one_leaves_the_rest_to_the_mesh(autojump_clock: MockClock) -> None:
    async def follow() -> None:
        while True:
            await desk.follower.wait()
            seen.append(len(desk.frames))
            desk.follower.give_back()

    seen: list[int] = []
    async with open_desk() as (desk, nursery):
        desk.network_at_once()
        desk.follower = InboxWaiter(desk.reading, hasty=True)
        desk.follower.keen = True
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        await desk.send(WAKE, b"1", b"2")
        assert seen == [1, 2]
        assert desk.readers == ["run", "follow", "follow", "follow"]
        await desk.send(WAKE)
        assert seen == [1, 2, 5]


async def test_a_hasty_one_that_does_not_come_back_leaves_the_rest_to_the_mesh(autojump_clock: MockClock) -> None:
    async def follow() -> None:
        for _ in range(2):
            await desk.follower.wait()
            desk.follower.give_back()

    async with open_desk() as (desk, nursery):
        desk.network_at_once()
        desk.follower = InboxWaiter(desk.reading, hasty=True)
        desk.follower.keen = True
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        await desk.send(WAKE, b"1", b"2")
        assert desk.frames == [WAKE, WAKE, b"1", b"2"]
        assert desk.readers == ["run", "follow", "run", "run"]


async def test_a_wait_lets_other_tasks_run_although_it_was_over_at_once(autojump_clock: MockClock) -> None:
    """The last reader left the very frame that it waits for."""

    async def follow() -> None:
        for _ in range(3):
            with assert_checkpoints():
                await desk.follower.wait()
            desk.follower.give_back()

    async with open_desk() as (desk, nursery):
        desk.network_at_once()
        desk.follower = InboxWaiter(desk.reading, hasty=True)
        desk.follower.keen = True
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        await desk.send(WAKE, WAKE)
        assert desk.readers == ["run", "follow", "follow"]


async def wait_twice(follower: InboxWaiter, woken: trio.Event) -> None:
    await follower.wait()
    await follower.wait()
    woken.set()


async def test_when_the_transport_is_closed_followers_still_wait_for_others(autojump_clock: MockClock) -> None:
    woken = trio.Event()
    async with open_desk() as (desk, nursery):
        nursery.start_soon(wait_twice, desk.follower, woken)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        assert desk.follower.leads
        desk.transport.close()
        await wait_all_tasks_blocked()
        assert not desk.follower.leads
        desk.follower.wake()
        with trio.fail_after(1):
            await woken.wait()
        assert not desk.reading.reclaim(desk.follower)


async def test_a_wake_up_is_not_lost_when_the_transport_is_closed_right_after_it(autojump_clock: MockClock) -> None:
    woken = trio.Event()
    async with open_desk() as (desk, nursery):
        nursery.start_soon(wait_twice, desk.follower, woken)
        await wait_all_tasks_blocked()
        await desk.send(WAKE)
        assert desk.follower.leads
        desk.follower.wake()
        desk.transport.close()
        with trio.fail_after(1):
            await woken.wait()
        assert not desk.follower.leads


async def test_an_error_of_the_transport_is_not_the_follower_s(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []

    def fail() -> None:
        readers.append(trio.lowlevel.current_task().name.rpartition(".")[2])
        raise ZeroDivisionError

    async def read() -> None:
        async with open_desk() as (desk, nursery):
            desk.readers = readers
            nursery.start_soon(desk.follow)
            await wait_all_tasks_blocked()
            await desk.send(WAKE)
            monkeypatch.setattr(desk.transport, "receive_nowait", fail)
            await desk.send(b"1")

    with pytest.raises(ExceptionGroup) as raised:
        await read()
    (error,) = raised.value.exceptions
    assert isinstance(error, ZeroDivisionError)
    assert readers == ["run", "follow"]
    assert "run" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]


async def test_only_one_follower_has_it(autojump_clock: MockClock) -> None:
    async with open_desk() as (desk, nursery):
        others = [InboxWaiter(desk.reading) for _ in range(3)]
        for other in others:
            other.keen = True
            nursery.start_soon(other.wait)
        nursery.start_soon(desk.follow)
        await wait_all_tasks_blocked()
        desk.on_frame = [other.wake for other in others]
        await desk.send(WAKE)
        assert sum(follower.leads for follower in (desk.follower, *others)) == 1


class FloodedTransport:
    """A transport by which more comes than can be read."""

    def receive_nowait(self) -> bytes:
        time.sleep(0.0001)
        return b"more"

    def receive_in(self, host: CountingHost, readable: Callable[[], None]) -> bool:
        host.watch(0, readable)
        return True


class CountingHost:
    """An event loop that takes one turn when it is told to."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.readable: Callable[[], None] | None = None

    def watch(self, _descriptor: int, readable: Callable[[], None]) -> Callable[[], None]:
        self.readable = readable
        return lambda: None

    def call_soon(self, function: Callable[[], None]) -> None:
        self.due.append(function)

    def turn(self) -> int:
        """Call all that is due, and then what reads; return how many calls are due for the next turn."""
        due, self.due = self.due, []
        assert self.readable is not None
        for function in (*due, self.readable):
            function()
        return len(self.due)


async def test_a_flood_takes_no_more_of_each_turn_of_an_event_loop_the_longer_it_lasts() -> None:
    class Taker:
        def receive_frame(self, frame: bytes | memoryview) -> None:
            """Drop it."""

    host = CountingHost()
    token = host_loop.set(cast("Any", host))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(InboxReader(cast("Any", FloodedTransport()), Taker()).run)
        await let_it_begin()
        assert [host.turn() for _ in range(20)] == [1] * 20
        nursery.cancel_scope.cancel()
    host_loop.reset(token)


async def let_it_begin() -> None:
    """Let the reader begin: it is never blocked, as something can always be read."""
    for _ in range(3):
        await trio.lowlevel.checkpoint()
