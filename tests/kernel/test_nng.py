"""The real network, on loopback and the real clock."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.nng import NngOutgoing, NngTransport, check_url
from iris.kernel.transport import Refused
from iris.kernel.wire import FRAME_OVERHEAD
from tests.support.far_listener import open_far_listener

SCHEMES = ["tcp", "ipc", "ws"]


@asynccontextmanager
async def open_transports(count: int = 1, config: Config | None = None) -> AsyncIterator[list[NngTransport]]:
    """So many transports, and ten seconds for all that is done with them."""
    transports = [NngTransport(config or Config()) for _ in range(count)]
    try:
        with trio.fail_after(10):
            yield transports
    finally:
        for transport in transports:
            transport.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL to listen at, of the scheme that the test is parametrized with."""
    scheme = getattr(request, "param", "tcp")
    return {"tcp": "tcp://127.0.0.1:0", "ws": "ws://127.0.0.1:0/iris", "ipc": f"ipc://{tmp_path}/s"}[scheme]


async def receive(transport: NngTransport) -> bytes:
    while (frame := transport.receive_nowait()) is None:
        await transport.wait_readable()
    return frame


def ignore() -> None:
    """For ways whose end does not matter."""


# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "good",
    ["tcp://127.0.0.1:0", "tcp://[::1]:65535", "tcp://*:80", "ws://host:1/path", "ws://host:1", "ipc:///" + "x" * 106],
)
def test_addresses(good: str) -> None:
    assert check_url(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "host:80",
        "http://host:80",
        "mem://x",
        "tcp://host",
        "tcp://host:",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:12ab",
        "ws://host/path",
        "ipc:///" + "x" * 107,
        "ipc:///" + "ä" * 60,
    ],
)
async def test_what_is_no_address_is_refused_before_anything_is_done(bad: str) -> None:
    with pytest.raises(ConfigError):
        check_url(bad)
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError):
            await transport.listen([bad])
        with pytest.raises(ConfigError):
            await transport.dial(bad, ignore)


# -- listening ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_it_listens_where_it_says(url: str) -> None:
    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        assert ":0" not in bound
        way = await near.dial(bound, ignore)
        assert way.send_nowait(b"hello")
        assert await receive(far) == b"hello"
        way.close()


async def test_it_listens_at_several_addresses_at_once(tmp_path: Path) -> None:
    async with open_transports(2) as (near, far):
        bound = await far.listen(["tcp://127.0.0.1:0", f"ipc://{tmp_path}/s", "tcp://127.0.0.1:0"])
        assert len(set(bound)) == 3
        for number, url in enumerate(bound):
            way = await near.dial(url, ignore)
            way.send_nowait(b"%d" % number)
            assert await receive(far) == b"%d" % number
            way.close()


@pytest.mark.parametrize("url", ["tcp", "ipc"], indirect=True)
async def test_an_address_that_is_taken_is_named(url: str) -> None:
    async with open_transports(2) as (one, two):
        (bound,) = await one.listen([url])
        with pytest.raises(ConfigError, match=f"{bound}.* in use"):
            await two.listen([bound])


async def test_an_address_that_is_not_ours_is_named() -> None:
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError, match=r"tcp://192\.0\.2\.1:5000"):
            await transport.listen(["tcp://192.0.2.1:5000"])


async def test_an_ipc_socket_is_for_its_user_only_and_goes_with_the_transport(tmp_path: Path) -> None:
    async with open_transports() as (transport,):
        await transport.listen([f"ipc://{tmp_path}/s"])
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    assert not (tmp_path / "s").exists()


async def test_a_directory_that_is_not_there_is_an_error_of_the_caller(tmp_path: Path) -> None:
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError, match="cannot listen"):
            await transport.listen([f"ipc://{tmp_path}/missing/s"])


# -- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [Config(), Config(max_payload=1000, batch_bytes=2000), Config(max_payload=2 * MIB)], ids=["", "s", "l"]
)
async def test_every_socket_has_a_receive_limit(config: Config, url: str) -> None:
    expected = max(config.max_payload, config.batch_bytes) + FRAME_OVERHEAD
    async with open_transports(config=config) as (transport,):
        (bound,) = await transport.listen([url])
        way = await transport.dial(bound, ignore)
        assert transport._pull.recv_max_size == way._socket.recv_max_size == expected
        largest = bytes(expected)
        assert way.send_nowait(largest)
        assert await receive(transport) == largest
        way.close()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_an_oversize_frame_ends_its_own_connection_and_nothing_else(url: str) -> None:
    async with open_transports(3) as (good, bad, far):
        (bound,) = await far.listen([url])
        broken = trio.Event()
        innocent = await good.dial(bound, lambda: pytest.fail("the wrong connection broke"))
        guilty = await bad.dial(bound, broken.set)
        guilty.send_nowait(bytes(2 * MIB))
        await broken.wait()
        innocent.send_nowait(b"still here")
        assert await receive(far) == b"still here"
        innocent.close()
        guilty.close()


async def test_a_claimed_length_costs_no_memory_and_ends_the_connection() -> None:
    async with open_transports(2) as (near, far):
        (bound,) = await far.listen(["tcp://127.0.0.1:0"])
        way = await near.dial(bound, lambda: pytest.fail("the wrong connection broke"))
        before = resident()
        with socket.create_connection(("127.0.0.1", int(bound.rsplit(":", 1)[1])), timeout=5) as raw:
            raw.sendall(b"\0SP\0\0\x50\0\0")  # a PUSH says hello
            assert raw.recv(8) == b"\0SP\0\0\x51\0\0"
            raw.sendall(struct.pack(">Q", 8 << 30) + bytes(64 * KIB))
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(100) == b""
        assert resident() - before < 8 * MIB
        way.send_nowait(b"still here")
        assert await receive(far) == b"still here"
        way.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    """Bytes of memory that this process really holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# -- dialling ----------------------------------------------------------------------------------------------


async def test_nobody_listening_is_a_refusal_at_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with open_transports() as (transport,):
        for url in (f"tcp://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/x", f"ipc://{tmp_path}/nobody"):
            with pytest.raises(Refused, match=f"cannot connect to {url}"):
                await transport.dial(url, ignore)


async def test_a_host_that_does_not_exist_is_no_refusal() -> None:
    async with open_transports() as (transport,):
        with pytest.raises(NotSent, match=r"nosuch\.invalid") as caught:
            await transport.dial("tcp://nosuch.invalid:5000", ignore)
        assert not isinstance(caught.value, Refused)


async def test_a_dial_that_is_cancelled_leaves_no_thread_and_no_socket_behind() -> None:
    with socket.socket() as silent:  # accepts, and never says hello
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        port = silent.getsockname()[1]
        async with open_transports() as (transport,):
            descriptors: list[int] = []
            threads = trio.to_thread.current_default_thread_limiter()
            for _ in range(3):
                for _ in range(5):
                    with trio.move_on_after(0.02) as scope:
                        await transport.dial(f"tcp://127.0.0.1:{port}", ignore)
                    assert scope.cancelled_caught
                while threads.borrowed_tokens:  # noqa: ASYNC110 -- threads that were left behind tell nobody
                    await trio.sleep(0.01)
                descriptors.append(open_descriptors())
            assert descriptors[2] <= descriptors[1]


# -- frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_frames_arrive_in_order_under_backpressure(url: str) -> None:
    frames = 2000

    async def send(way: NngOutgoing) -> None:
        for number in range(frames):
            frame = struct.pack(">I", number) + bytes(number % 3000)
            while not way.send_nowait(frame):
                await way.wait_writable()

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, ignore)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, way)
            for number in range(frames):
                frame = await receive(far)
                assert struct.unpack_from(">I", frame) == (number,)
                assert len(frame) == 4 + number % 3000
        way.close()


async def fill(way: NngOutgoing) -> int:
    """Send until nothing more is taken for a while; return how many frames were."""
    taken = 0
    while True:
        while way.send_nowait(bytes(64 * KIB)):
            taken += 1
        with trio.move_on_after(0.05) as scope:
            await way.wait_writable()
        if scope.cancelled_caught:
            return taken


@pytest.mark.parametrize("url", ["tcp", "ipc"], indirect=True)
async def test_a_reader_that_does_not_read_is_felt_by_every_task_that_writes(url: str) -> None:
    written = 0

    async def write() -> None:
        nonlocal written
        while not way.send_nowait(b"x"):
            await way.wait_writable()
        written += 1

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, ignore)
        taken = await fill(way)
        assert taken < 500
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(write)
            await wait_all_tasks_blocked(0.02)
            assert written == 0
            for _ in range(taken + 3):
                await receive(far)
        assert written == 3
        way.close()


async def test_a_task_that_stops_waiting_lets_the_next_one_watch(url: str) -> None:
    async def watch(scope: trio.CancelScope) -> None:
        with scope:
            await way.wait_writable()

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, ignore)
        taken = await fill(way)
        first = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, first)
            await wait_all_tasks_blocked()

            async def write() -> None:
                while not way.send_nowait(b"x"):
                    await way.wait_writable()

            nursery.start_soon(write)
            await wait_all_tasks_blocked()
            first.cancel()
            for _ in range(taken + 1):
                await receive(far)
        way.close()


# -- closing -----------------------------------------------------------------------------------------------


async def test_closing_a_way_ends_every_wait_on_it_and_is_told_to_nobody(url: str) -> None:
    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await way.wait_writable()

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, lambda: pytest.fail("it was closed on purpose"))
        await fill(way)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            way.close()
        way.close()
        with pytest.raises(trio.ClosedResourceError):
            way.send_nowait(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await way.wait_writable()
        await wait_all_tasks_blocked(0.02)


async def test_closing_a_transport_ends_its_readers_wait(url: str) -> None:
    async with open_transports() as (transport,):
        await transport.listen([url])

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await transport.wait_readable()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            transport.close()
        transport.close()
        with pytest.raises(trio.ClosedResourceError):
            transport.receive_nowait()
        with pytest.raises(trio.ClosedResourceError):
            await transport.wait_readable()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_a_listener_that_closes_breaks_the_ways_to_it_once(url: str) -> None:
    told = 0
    news = trio.Event()

    def note() -> None:
        nonlocal told
        told += 1
        news.set()

    async with open_transports(3) as (near, far, second):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, note)
        far.close()
        await news.wait()
        await second.listen([bound])
        assert not way.send_nowait(b"x")  # and nng does not dial again by itself
        also_broken = trio.Event()
        witness = await near.dial(bound, also_broken.set)
        witness.send_nowait(b"y")
        assert await receive(second) == b"y"
        second.close()
        await also_broken.wait()
        await wait_all_tasks_blocked(0.02)
        assert told == 1
        way.close()
        witness.close()


class Log:
    """What a transport tells of the connections to it."""

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
        await log.wait_open(1)
        assert log.closed == [sources[b"2"]]
        first.close()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_a_connection_is_told_of_before_its_first_frame(url: str) -> None:
    """However late the scheduler gets to hear of it."""
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
        guilty = await near.dial(bound, broken.set)
        await log.wait_open(1)
        innocent = await near.dial(bound, lambda: pytest.fail("the wrong connection broke"))
        await log.wait_open(2)
        far.hang_up(log.seen[0])
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
    async with open_transports() as (far,):
        log = Log()
        far.observe(log)
        (bound,) = await far.listen(["tcp://127.0.0.1:0"])
        address = ("127.0.0.1", int(bound.rsplit(":", 1)[1]))
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(60)]
            turned_away = 0
            for one in crowd:
                one.sendall(b"\0SP\0\0\x50\0\0")
                assert one.recv(8) == b"\0SP\0\0\x51\0\0"
            for one in crowd:  # and this task has not given others a turn
                one.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    turned_away += one.recv(1) == b""
            await log.wait_open(60 - turned_away)
            assert log.refused == turned_away > 30
        await log.wait_open(0)


async def test_connections_hung_up_at_once_are_all_told_and_hurt_nobody(url: str) -> None:
    """PUSH of nng 1.11 uses memory that is freed if it may send by a connection that ends while it begins."""

    class Doorkeeper(Log):
        def connection_opened(self, connection: int, address: str | None) -> None:
            super().connection_opened(connection, address)
            far.hang_up(connection)

    async def knock() -> None:
        for _ in range(100):
            broken = trio.Event()
            way = await near.dial(bound, broken.set)
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
        assert far._pipes == {}


# -- between processes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["tcp", "ipc"], indirect=True)
async def test_frames_go_there_and_back_between_processes(url: str, tmp_path: Path) -> None:
    own = f"ipc://{tmp_path}/own" if url.startswith("ipc") else url
    async with open_far_listener(url) as (_, far), open_transports() as (transport,):
        (back,) = await transport.listen([own])
        way = await transport.dial(far, ignore)
        way.send_nowait(back.encode())

        async def send() -> None:
            for number in range(500):
                while not way.send_nowait(struct.pack(">I", number) + bytes(5000)):
                    await way.wait_writable()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for number in range(500):
                assert struct.unpack_from(">I", await receive(transport)) == (number,)
        way.close()


@pytest.mark.parametrize("url", ["tcp", "ipc"], indirect=True)
async def test_a_process_that_is_killed_is_noticed_and_refuses_from_then_on(url: str) -> None:
    async with open_far_listener(url) as (process, far), open_transports() as (transport,):
        broken = trio.Event()
        way = await transport.dial(far, broken.set)
        process.send_signal(signal.SIGKILL)
        with trio.fail_after(2):
            await broken.wait()
        way.close()
        await process.wait()  # the connections of a process that dies end before its listening does
        with pytest.raises(Refused):
            await transport.dial(far, ignore)
        assert await transport.listen([far]) == (far,)  # and what it left lying about is in nobody's way


async def test_a_process_that_is_stopped_is_felt_and_goes_on_where_it_was(url: str) -> None:
    async with open_far_listener(url) as (process, far), open_transports() as (transport,):
        (back,) = await transport.listen([url])
        way = await transport.dial(far, lambda: pytest.fail("a stopped process does not hang up"))
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
