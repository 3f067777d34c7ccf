"""Reverse connections: a node that cannot be dialled dials both directions.  In memory and over the real network."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel.config import MIB
from iris.kernel.errors import NotSent
from iris.kernel.transport.dialer import prepare_to_send
from iris.kernel.transport.memory import MemoryNetwork
from iris.kernel.transport.port import ConnectionUser, IncomingConnection, OutgoingConnection, Transport
from iris.kernel.transport.sp import ANSWER, GREETING
from tests.kernel.transport.test_connections import Log
from tests.support.transports import Notified, ignore, open_transports, receive, waiting

TOKEN = "00ff" * 8
ADDRESSES = {"ws": "ws://127.0.0.1:0/iris", "tcp": "tcp://127.0.0.1:0"}


class Told:
    """Nodes that were notified of a broken connection."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._changed = trio.lowlevel.ParkingLot()

    def note(self, name: str) -> Callable[[], None]:
        def told() -> None:
            self.names.append(name)
            self._changed.unpark_all()

        return told

    async def wait(self, count: int) -> None:
        while len(self.names) < count:
            await self._changed.park()


class Ends:
    """Two nodes: ``office`` listens, ``home`` cannot be dialled."""

    def __init__(self, office: Any, home: Any, url: str) -> None:
        self.office: Transport = office
        self.home: Transport = home
        self.url = url
        self.books = Log()
        home.observe(self.books)

    async def join(
        self, office_told: ConnectionUser = ignore, home_told: ConnectionUser = ignore
    ) -> tuple[OutgoingConnection, IncomingConnection]:
        """Make a reverse connection; it may be dialled before a caller waits for it."""
        incoming = self.home.dial_reverse(self.url, TOKEN, home_told)
        async with self.attended():
            outgoing = await self.office.accept_reverse(TOKEN, office_told)
            await self.books.wait_open(1)
        return outgoing, incoming

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Receive at both ends, as nodes do all the time: by the way they see what else happens."""
        async with waiting(self.office), waiting(self.home):
            yield


@pytest.fixture(params=["memory", "ws", "tcp"])
def open_ends(request: pytest.FixtureRequest) -> Callable[[], Any]:
    @asynccontextmanager
    async def in_memory() -> AsyncIterator[Ends]:
        network = MemoryNetwork()
        office, home = network.transport("office"), network.transport("home")
        with trio.fail_after(60):
            (url,) = await office.listen(["mem://office"])
            yield Ends(office, home, url)
        home.close()
        office.close()

    @asynccontextmanager
    async def over_sockets() -> AsyncIterator[Ends]:
        async with open_transports(2) as (office, home):
            (url,) = await office.listen([ADDRESSES[request.param]])
            (await home.dial(url, ignore)).close()
            yield Ends(office, home, url)

    return in_memory if request.param == "memory" else over_sockets


async def send(way: OutgoingConnection, frame: bytes) -> None:
    while not way.send_nowait(frame):
        await way.wait_writable()


async def test_frames_come_by_it_in_order(open_ends: Callable[[], Any]) -> None:
    async with open_ends() as ends:
        outgoing, _ = await ends.join()
        for number in range(100):
            await send(outgoing, b"%d" % number)
            assert await receive(ends.home) == b"%d" % number
        assert ends.home.source() in ends.books.open
        outgoing.close()


async def test_an_end_that_closes_is_noticed_by_the_other_one_only(open_ends: Callable[[], Any]) -> None:
    for closer in ("office", "home"):
        async with open_ends() as ends:
            told = Told()
            outgoing, incoming = await ends.join(Notified(told.note("office")), Notified(told.note("home")))
            (outgoing if closer == "office" else incoming).close()
            async with ends.attended():
                await ends.books.wait_open(0)
                await told.wait(1)
                await wait_all_tasks_blocked(0.01)
            assert told.names == ["home" if closer == "office" else "office"]
            outgoing.close()
            incoming.close()


async def test_a_connection_that_is_hung_up_tells_both(open_ends: Callable[[], Any]) -> None:
    async with open_ends() as ends:
        told = Told()
        outgoing, _ = await ends.join(Notified(told.note("office")), Notified(told.note("home")))
        ends.home.hang_up(next(iter(ends.books.open)))
        async with ends.attended():
            await told.wait(2)
        assert sorted(told.names) == ["home", "office"]
        outgoing.close()


async def test_waiting_can_be_given_up_and_the_token_used_again(open_ends: Callable[[], Any]) -> None:
    async with open_ends() as ends:
        with trio.move_on_after(0.05) as scope:
            await ends.office.accept_reverse(TOKEN, ignore)
        assert scope.cancelled_caught
        outgoing, _ = await ends.join()
        await send(outgoing, b"x")
        assert await receive(ends.home) == b"x"
        outgoing.close()


async def test_a_token_is_waited_for_once(open_ends: Callable[[], Any]) -> None:
    async with open_ends() as ends, trio.open_nursery() as nursery:
        nursery.start_soon(ends.office.accept_reverse, TOKEN, ignore)
        await wait_all_tasks_blocked()
        with pytest.raises(NotSent, match="address in use"):
            await ends.office.accept_reverse(TOKEN, ignore)
        nursery.cancel_scope.cancel()


async def test_dialling_can_be_given_up_before_anybody_waits(open_ends: Callable[[], Any]) -> None:
    async with open_ends() as ends:
        ends.home.dial_reverse(ends.url, TOKEN, ignore).close()
        with trio.move_on_after(0.3) as scope:
            async with ends.attended():
                await ends.office.accept_reverse(TOKEN, ignore)
        assert scope.cancelled_caught
        assert ends.books.open == {}


class LaterHost:
    """An event loop that has what can be read read in its next turn, as it does what is left of the last one."""

    def __init__(self, nursery: trio.Nursery, home: Transport) -> None:
        self._nursery = nursery
        self._home = home
        self._turned = trio.lowlevel.ParkingLot()
        self._is_due = False
        assert home.receive_in(self, self._came)
        nursery.start_soon(self._wait)

    def watch(self, descriptor: int, readable: Callable[[], None]) -> Callable[[], None]:
        async def watch() -> None:
            while True:
                await trio.lowlevel.wait_readable(descriptor)
                readable()
                await self._turned.park()

        self._nursery.start_soon(watch)
        return lambda: None

    def call_soon(self, function: Callable[[], None]) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(function)

    def _came(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.call_soon(self._read)

    def _read(self) -> None:
        self._is_due = False
        assert self._home.receive_nowait() is None
        self._turned.unpark_all()

    async def _wait(self) -> None:
        while True:
            await self._home.wait_readable()

    async def turn(self) -> None:
        """Wait until it has read once more."""
        await self._turned.park()


@pytest.mark.parametrize("scheme", ADDRESSES)
async def test_it_is_dialled_again_where_an_event_loop_reads(scheme: str) -> None:
    async with open_transports(2) as (office, home), trio.open_nursery() as nursery, waiting(office):
        (url,) = await office.listen([ADDRESSES[scheme]])
        (await home.dial(url, ignore)).close()
        host = LaterHost(nursery, home)
        home.dial_reverse(url, TOKEN, ignore)
        while home.statistics().outbound:  # until the first attempt was turned away, as nobody waits for it
            await host.turn()
        with trio.fail_after(5):
            (await office.accept_reverse(TOKEN, ignore)).close()
        nursery.cancel_scope.cancel()


async def test_it_is_dialled_again_while_frames_never_end() -> None:
    async with open_transports(3) as (office, home, other), waiting(office):
        (url,) = await office.listen([ADDRESSES["tcp"]])
        (await home.dial(url, ignore)).close()
        (busy,) = await home.listen([ADDRESSES["tcp"]])
        flood = await other.dial(busy, ignore)
        home.dial_reverse(url, TOKEN, ignore)
        accepted: list[OutgoingConnection] = []
        turned_away = trio.Event()

        async def accept_it() -> None:
            await turned_away.wait()
            accepted.append(await office.accept_reverse(TOKEN, ignore))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_it)
            with trio.fail_after(10):
                while not accepted:
                    flood.send_nowait(b"more")
                    home.receive_nowait()  # and never wait_readable
                    if not home.statistics().outbound:
                        turned_away.set()
                    await trio.lowlevel.checkpoint()
        accepted[0].close()
        flood.close()


@pytest.mark.parametrize("scheme", ADDRESSES)
async def test_whoever_comes_second_is_turned_away(scheme: str) -> None:
    async with open_transports(3) as (office, home, thief):
        (url,) = await office.listen([ADDRESSES[scheme]])
        for node in (home, thief):
            (await node.dial(url, ignore)).close()
        ends = Ends(office, home, url)
        told = Told()
        outgoing, _ = await ends.join(Notified(told.note("office")))
        theirs = thief.dial_reverse(url, TOKEN, ignore)
        async with waiting(thief):
            for number in range(50):
                await send(outgoing, b"%d" % number)
                assert await receive(home) == b"%d" % number
        assert told.names == []
        theirs.close()
        outgoing.close()


@pytest.mark.parametrize("scheme", ADDRESSES)
async def test_small_frames_go_at_once_and_little_is_left_to_the_system(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[socket.socket] = []

    def prepare(connection: socket.socket) -> None:
        accepted.append(connection)
        prepare_to_send(connection)

    monkeypatch.setattr("iris.kernel.transport.network.prepare_to_send", prepare)
    async with open_transports(2) as (office, home):
        (url,) = await office.listen([ADDRESSES[scheme]])
        (await home.dial(url, ignore)).close()
        outgoing, _ = await Ends(office, home, url).join()
        (connection,) = accepted
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert 0 < connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) < MIB
        outgoing.close()


@pytest.mark.parametrize("scheme", ADDRESSES)
async def test_many_nodes_come_to_one_address(scheme: str) -> None:
    async with open_transports(9) as (office, *homes):
        (url,) = await office.listen([ADDRESSES[scheme]])
        for number, home in enumerate(homes):
            home.observe(Log())
            (await home.dial(url, ignore)).close()
            home.dial_reverse(url, f"{number:032x}", ignore)
        async with AsyncExitStack() as stack:
            for home in homes:
                await stack.enter_async_context(waiting(home))
            ways = [await office.accept_reverse(f"{number:032x}", ignore) for number in range(8)]
        for number, (way, home) in enumerate(zip(ways, homes, strict=True)):
            await send(way, b"%d" % number)
            assert await receive(home) == b"%d" % number
            way.close()


async def test_nobody_can_come_by_ipc(tmp_path: Path) -> None:
    async with open_transports(2) as (office, home):
        (url,) = await office.listen([f"ipc://{tmp_path}/socket"])
        with pytest.raises(NotSent, match="nodes that listen at a tcp:// or ws:// address"):
            await office.accept_reverse(TOKEN, ignore)
        with pytest.raises(NotSent, match="that takes a tcp:// or ws:// address"):
            home.dial_reverse(url, TOKEN, ignore)


async def accept(office: Transport) -> None:
    (await office.accept_reverse(TOKEN, ignore)).close()


async def test_a_header_that_comes_in_pieces_is_understood_and_a_wrong_one_turned_away() -> None:
    async with open_transports(1) as (office,):
        (url,) = await office.listen([ADDRESSES["tcp"]])
        port = int(url.rpartition(":")[2])
        for said, answer in (
            (ANSWER + TOKEN.encode(), GREETING),
            (ANSWER + b"?" * 32, b""),
            (ANSWER[:6] + b"xx" + TOKEN.encode(), b""),
            (ANSWER + b"ff" * 16, b""),
        ):
            async with trio.open_nursery() as nursery, waiting(office):
                nursery.start_soon(accept, office)
                with trio.socket.socket() as stranger:
                    await stranger.connect(("127.0.0.1", port))
                    stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for piece in (said[:3], said[3:20], said[20:]):
                        with suppress(OSError):  # it was turned away
                            await stranger.send(piece)
                    received = b""
                    with suppress(ConnectionResetError):
                        received = await stranger.recv(100)
                    assert received == answer
                nursery.cancel_scope.cancel()
