"""The real network: connections that others open, and processes."""

from __future__ import annotations

import contextlib
import signal
from contextlib import AsyncExitStack

import pynng
import pytest
import trio

from iris.kernel.config import KIB
from iris.kernel.transport.port import Refused
from tests.support.remote_listener import open_far_listener
from tests.support.transports import SCHEMES, Notified, check_idle, fill, ignore, open_transports, receive, waiting


class Log:
    """Records the reports of a transport on the connections to it."""

    def __init__(self) -> None:
        self.open: dict[int, str | None] = {}
        self.seen: list[int] = []
        self.closed: list[int] = []
        self.refused = 0
        self._changed = trio.lowlevel.ParkingLot()

    def connection_opened(self, connection: int, address: str | None) -> None:
        self.seen.append(connection)
        self.open[connection] = address
        self._changed.unpark_all()

    def connection_closed(self, connection: int) -> None:
        del self.open[connection]
        self.closed.append(connection)
        self._changed.unpark_all()

    def connections_refused(self, count: int) -> None:
        self.refused += count
        self._changed.unpark_all()

    async def wait_news(self) -> None:
        await self._changed.park()

    async def wait_open(self, count: int) -> None:
        while len(self.open) != count:
            await self._changed.park()


# -- connections that others open --------------------------------------------------------------------------


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_it_tells_which_connection_a_frame_came_by_and_from_where(url: str) -> None:
    async with open_transports(3) as (one, other, far):
        (bound,) = await far.listen([url])
        first = await one.dial(bound, ignore)
        log = Log()
        far.observe(log)
        second = await other.dial(bound, ignore)
        sources: dict[bytes, int] = {}
        for way, frame in ((first, b"1"), (second, b"2"), (first, b"1"), (second, b"2")):
            way.send_nowait(frame)
            assert await receive(far) == frame
            assert sources.setdefault(frame, far.source()) == far.source()
        assert sorted(sources.values()) == sorted(log.open) == sorted(log.seen)
        assert set(log.open.values()) == {None if url.startswith("ipc") else "127.0.0.1"}
        second.close()
        async with waiting(far):
            await log.wait_open(1)
        assert log.closed == [sources[b"2"]]
        first.close()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_a_connection_is_told_of_before_its_first_frame(url: str) -> None:
    """It is so however late the scheduler is notified."""
    async with open_transports(2) as (near, far):
        log = Log()
        far.observe(log)
        (bound,) = await far.listen([url])
        for _ in range(20):
            way = await near.dial(bound, ignore)
            way.send_nowait(b"x")
            while far.receive_nowait() is None:
                pass  # nothing else may run
            assert far.source() in log.open
            way.close()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_hanging_up_ends_one_connection_and_is_seen_at_its_other_end(url: str) -> None:
    async with open_transports(2) as (near, far):
        log = Log()
        far.observe(log)
        (bound,) = await far.listen([url])
        broken = trio.Event()
        guilty = await near.dial(bound, Notified(broken.set))
        await log.wait_open(1)
        innocent = await near.dial(bound, Notified(lambda: pytest.fail("the wrong connection broke")))
        await log.wait_open(2)
        far.hang_up(log.seen[0])
        async with waiting(near):
            await broken.wait()
        await log.wait_open(1)
        far.hang_up(log.seen[0])
        far.hang_up(12345)
        innocent.send_nowait(b"still here")
        assert await receive(far) == b"still here"
        assert far.source() == log.seen[1]
        innocent.close()
        guilty.close()


async def test_connections_that_come_faster_than_they_are_looked_at_are_turned_away() -> None:
    """Of one address the newest stay; more of it in ``test_listener.py``."""
    async with open_transports() as (far,), AsyncExitStack() as stack:
        log = Log()
        far.observe(log)
        (bound,) = await far.listen(["ws://127.0.0.1:0/here"])
        for _ in range(60):
            socket = stack.enter_context(pynng.Push0(recv_max_size=1000))
            with contextlib.suppress(pynng.NNGException):
                socket.dial(bound, block=True)  # and this task does not give others a turn
        with trio.fail_after(60):
            while log.refused + len(log.seen) < 60:
                await log.wait_news()
        assert log.refused > 30


@pytest.mark.parametrize("url", ["tcp", "ws"], indirect=True)
async def test_connections_hung_up_at_once_are_all_told_and_hurt_nobody(url: str) -> None:
    """PUSH of nng 1.11 uses memory that is freed if it may send by a connection that ends while it begins."""

    class Doorkeeper(Log):
        def connection_opened(self, connection: int, address: str | None) -> None:
            super().connection_opened(connection, address)
            far.hang_up(connection)

    async def knock() -> None:
        for _ in range(100):
            broken = trio.Event()
            way = await near.dial(bound, Notified(broken.set))
            while not broken.is_set():
                way.send_nowait(bytes(100))
                await trio.lowlevel.checkpoint()
            assert not way.send_nowait(b"x")
            way.close()

    async with open_transports(2) as (near, far):
        log = Doorkeeper()
        far.observe(log)
        (bound,) = await far.listen([url])
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(knock)
        await log.wait_open(0)
        assert sorted(log.seen) == sorted(log.closed)
        assert len(log.seen) == 400
        check_idle(far)


# -- between processes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["tcp", "ipc"], indirect=True)
async def test_a_process_that_is_killed_is_noticed_and_refuses_from_then_on(url: str) -> None:
    async with open_far_listener(url) as (process, far), open_transports() as (transport,):
        broken = trio.Event()
        way = await transport.dial(far, Notified(broken.set))
        process.send_signal(signal.SIGKILL)
        with trio.fail_after(60):
            async with waiting(transport):
                await broken.wait()
        way.close()
        await process.wait()  # the connections of a process that dies end before its listening does
        with pytest.raises(Refused):
            await transport.dial(far, ignore)
        assert await transport.listen([far]) == (far,)  # and what it left lying about is in nobody's way


async def test_a_process_that_is_stopped_is_felt_and_goes_on_where_it_was(url: str) -> None:
    async with open_far_listener(url) as (process, far), open_transports() as (transport,):
        (back,) = await transport.listen([url])
        way = await transport.dial(far, Notified(lambda: pytest.fail("a stopped process does not hang up")))
        way.send_nowait(back.encode())
        way.send_nowait(b"begin")
        assert await receive(transport) == b"begin"
        process.send_signal(signal.SIGSTOP)
        taken = await fill(way)
        assert taken < 500
        process.send_signal(signal.SIGCONT)
        for _ in range(taken):
            assert len(await receive(transport)) == 64 * KIB
        way.close()
