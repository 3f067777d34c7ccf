"""WebSocket on the real network: plain nng, limits of unauthenticated peers, and breaks within a frame."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pynng
import pytest
import trio
import trio.testing

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.port import ConnectionUser, OutgoingConnection, Refused
from iris.kernel.transport.websocket import PULL, PUSH, ServerUpgrade, WebSocketFraming
from tests.kernel.transport.test_connections import Log
from tests.kernel.transport.websocket.test_websocket import BINARY, CLOSE, PING, TEXT, frame
from tests.support.transports import Notified, check_idle, ignore, open_transports, receive, waiting
from tests.support.web import HERE, LARGEST, TOKEN, send


class Peer:
    """Somebody who listens for a way out, and says what he likes."""

    def __init__(self, connection: socket.socket, messages: WebSocketFraming) -> None:
        self.socket = connection
        self.messages = messages

    async def receive(self) -> bytes:
        while not self.messages.waiting:
            self.messages.receive(await trio.to_thread.run_sync(self.socket.recv, 65536))
        return self.messages.waiting.popleft()


@asynccontextmanager
async def open_peer(near: NetworkTransport, user: ConnectionUser) -> AsyncIterator[tuple[OutgoingConnection, Peer]]:
    def accept() -> Peer:
        connection, _ = server.accept()
        connection.settimeout(5)
        asked = ServerUpgrade(LARGEST)
        while asked.path is None:
            asked.receive(connection.recv(4096))
        messages = asked.accept(PULL)
        assert messages is not None
        connection.sendall(asked.answer)
        return Peer(connection, messages)

    with socket.create_server(("127.0.0.1", 0)) as server:
        peers: list[Peer] = []

        async def serve() -> None:
            peers.append(await trio.to_thread.run_sync(accept))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            way = await near.dial(f"ws://127.0.0.1:{server.getsockname()[1]}/x", user)
        try:
            yield way, peers[0]
        finally:
            way.close()
            peers[0].socket.close()


# -- plain nng -----------------------------------------------------------------------------------------------

SIZES = [0, 1, 125, 126, 65535, 65536, 65537, 300_000, MIB, LARGEST]


async def test_a_push_of_nng_sends_to_us() -> None:
    """Frames beyond 64 KiB it sends in several WebSocket frames."""
    async with open_transports() as (transport,):
        (url,) = await transport.listen([HERE])
        with pynng.Push0(send_buffer_size=20) as push:
            await trio.to_thread.run_sync(lambda: push.dial(url, block=True))
            for size in SIZES:
                push.send(random.Random(size).randbytes(size))
            for size in SIZES:
                assert await receive(transport) == random.Random(size).randbytes(size)


async def test_we_send_to_a_pull_of_nng() -> None:
    async with open_transports() as (transport,):
        with pynng.Pull0(recv_max_size=2 * MIB, recv_timeout=60_000) as pull:
            port = str(pull.listen("ws://127.0.0.1:0/x").local_address).rpartition(":")[2]
            way = await transport.dial(f"ws://127.0.0.1:{port}/x", ignore)
            async with waiting(transport):
                for size in SIZES[1:]:  # pynng receives no empty ones
                    await send(way, random.Random(size).randbytes(size))
                    assert await trio.to_thread.run_sync(pull.recv) == random.Random(size).randbytes(size)
            way.close()


async def test_reverse_connections_between_nng_and_us() -> None:
    async with open_transports() as (transport,):
        (url,) = await transport.listen([HERE])
        with pynng.Pull0(recv_max_size=2 * MIB, recv_timeout=60_000, reconnect_time_min=10) as pull:
            pull.dial(f"{url}/{TOKEN}", block=False)
            way = await transport.accept_reverse(TOKEN, ignore)
            async with waiting(transport):
                for size in SIZES[1:]:  # pynng receives no empty ones
                    await send(way, random.Random(size).randbytes(size))
                    assert await trio.to_thread.run_sync(pull.recv) == random.Random(size).randbytes(size)
            way.close()


async def test_an_nng_that_is_no_pull_is_not_sent_to() -> None:
    async with open_transports() as (transport,):
        with pynng.Push0() as push:
            port = str(push.listen("ws://127.0.0.1:0/x").local_address).rpartition(":")[2]
            with pytest.raises(NotSent, match=f"cannot connect to ws://127.0.0.1:{port}/x: it answers 400"):
                await transport.dial(f"ws://127.0.0.1:{port}/x", ignore)


# -- addresses -----------------------------------------------------------------------------------------------


async def test_several_paths_may_share_a_port_and_others_do_not_exist() -> None:
    async with open_transports(2) as (near, far):
        (first,) = await far.listen([HERE])
        root = first.removesuffix("/iris")
        assert await far.listen([f"{root}/other/", root]) == (f"{root}/other/", root)
        for url in (first, first + "/", f"{root}/other", root, root + "/"):
            way = await near.dial(url, ignore)
            way.send_nowait(url.encode())
            assert await receive(far) == url.encode()
            way.close()
        for url in (f"{root}/nothing", f"{first}/{TOKEN}", f"{first}/a/b"):
            with pytest.raises(Refused, match=f"cannot connect to {url}: it answers 404"):
                await near.dial(url, ignore)
        with pytest.raises(ConfigError, match="in use"):
            await far.listen([first])
        with pytest.raises(ConfigError, match="in use by another program"):
            await near.listen([first])


@pytest.mark.parametrize(
    "url", ["ws://no such host:1/x", "ws://[::1:80/x", "ws://127.0.0.1:1/x#y", "ws://192.0.2.1:5000/x"]
)
async def test_what_nobody_can_listen_at_is_named(url: str) -> None:
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError):
            await transport.listen([url])


async def test_who_speaks_another_protocol_is_not_taken_for_a_node() -> None:
    async with open_transports(2) as (near, far):
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"ws://127.0.0.1:{server.getsockname()[1]}/x"

            def answer() -> None:
                with server.accept()[0] as one:
                    one.recv(4096)
                    one.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, answer)
                with pytest.raises(NotSent, match="it answers 502 'bad gateway'") as caught:
                    await near.dial(url, ignore)
            assert not isinstance(caught.value, Refused)
        (tcp,) = await far.listen(["tcp://127.0.0.1:0"])
        with pytest.raises(NotSent, match="cannot connect to ws:"):
            await near.dial(tcp.replace("tcp", "ws"), ignore)


async def test_a_node_that_uses_no_websocket_does_not_load_the_package_for_it() -> None:
    code = (
        "import sys, trio, iris\n"
        "from iris.kernel.config import Config\n"
        "from iris.kernel.transport.network import NetworkTransport\n"
        "async def main():\n"
        "    transport = NetworkTransport(Config())\n"
        "    (url,) = await transport.listen(['tcp://127.0.0.1:0'])\n"
        "    (await transport.dial(url, lambda: None)).close()\n"
        "    assert 'websockets' not in sys.modules\n"
        "    await transport.listen(['ws://127.0.0.1:0'])\n"
        "    assert 'websockets' in sys.modules\n"
        "    transport.close()\n"
        "trio.run(main)\n"
    )
    with trio.fail_after(60):
        await trio.run_process([sys.executable, "-c", code])


# -- reverse connections -----------------------------------------------------------------------------------------


async def test_a_reverse_connection_is_dialled_again_until_somebody_listens_there() -> None:
    async with open_transports(3) as (former, office, home):
        log = Log()
        home.observe(log)
        (url,) = await former.listen([HERE])
        with pytest.raises(NotSent, match="it was not reached"):
            home.dial_reverse(url, TOKEN, ignore)
        (await home.dial(url, ignore)).close()
        former.close()
        incoming = home.dial_reverse(url, TOKEN, Notified(lambda: pytest.fail("it was never there")))
        async with waiting(home):
            await trio.sleep(0.05)  # some attempts
            office_log = Log()
            office.observe(office_log)
            await office.listen([url])
            await trio.sleep(0.05)
            way = await office.accept_reverse(TOKEN, ignore)
            await log.wait_open(1)
        assert office_log.refused == 0  # it is no offence to come too early
        assert list(log.open.values()) == ["127.0.0.1"]
        await send(way, b"x")
        assert await receive(home) == b"x"
        assert home.source() in log.open
        assert home.statistics().dialling == 0
        way.close()
        incoming.close()


@pytest.mark.parametrize("end", [b"", frame(TEXT, b"what?", masked=False), frame(CLOSE, b"", masked=False)])
async def test_what_comes_with_the_answer_to_a_reverse_connection_counts(end: bytes) -> None:
    def serve() -> None:
        for kind in (PULL, PUSH):
            with server.accept()[0] as one:
                asked = ServerUpgrade(LARGEST)
                while asked.path is None:
                    asked.receive(one.recv(4096))
                messages = asked.accept(kind)
                assert messages is not None
                one.sendall(asked.answer + messages.encode(b"first")[0] + messages.encode(b"second")[0] + end)

    async with open_transports() as (home,):
        log = Log()
        home.observe(log)
        broken = trio.Event()
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"ws://127.0.0.1:{server.getsockname()[1]}/x"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, serve)
                (await home.dial(url, ignore)).close()
                home.dial_reverse(url, TOKEN, Notified(broken.set))
                assert await receive(home) == b"first"
                assert await receive(home) == b"second"
        async with waiting(home):
            await broken.wait()
        assert log.closed == log.seen
        check_idle(home)


async def test_reverse_connections_that_are_given_up_leave_nothing_behind() -> None:
    async with open_transports(2) as (office, home):
        (url,) = await office.listen([HERE])
        (await home.dial(url, ignore)).close()
        async with waiting(home), waiting(office):
            for number in range(20):
                incoming = home.dial_reverse(url, f"{number:032x}", ignore)
                await trio.sleep(0.001 * number)
                incoming.close()
                incoming.close()
            check_idle(home)
            home.dial_reverse(url, TOKEN, ignore)
            assert home.statistics().dialling == 1
        home.close()
        assert home.statistics().dialling == 0


# -- what comes back by a way out ----------------------------------------------------------------------------


async def test_pings_are_answered_also_while_a_frame_is_on_its_way() -> None:
    async with open_transports() as (near,), open_peer(near, Notified(lambda: pytest.fail("it broke"))) as (way, peer):
        async with waiting(near):
            peer.socket.sendall(frame(PING, b"first", masked=False))
            # Its pong comes with a mask, as all that a client says.
            pong = await trio.to_thread.run_sync(peer.socket.recv, 6 + 5, socket.MSG_WAITALL)
            assert pong[:2] == b"\x8a\x85"
            assert bytes(byte ^ pong[2 + place % 4] for place, byte in enumerate(pong[6:])) == b"first"
            sent = 0
            while way.send_nowait(bytes(MIB)):
                sent += 1
            for number in range(100):
                peer.socket.sendall(frame(PING, b"%d" % number, masked=False))
            await trio.testing.wait_all_tasks_blocked(0.05)
            for _ in range(sent):
                assert len(await peer.receive()) == MIB
            await send(way, b"last")
            assert await peer.receive() == b"last"  # and the pong between them was in its place
        assert not peer.messages.is_over


@pytest.mark.parametrize(
    "said",
    [
        frame(BINARY, b"what?", masked=False),
        frame(TEXT, b"what?", masked=False),
        frame(BINARY, b"what?"),
        frame(CLOSE, struct.pack(">H", 1001), masked=False),
        b"\xff" * 50,
        frame(PING, bytes(125), masked=False) * 1000,
    ],
    ids=["message", "text", "masked", "goodbye", "nonsense", "flood"],
)
async def test_who_says_anything_else_to_a_sender_loses_it(said: bytes) -> None:
    broken = trio.Event()
    async with open_transports() as (near,), open_peer(near, Notified(broken.set)) as (way, peer):
        async with waiting(near):
            with contextlib.suppress(ConnectionError):
                await trio.to_thread.run_sync(peer.socket.sendall, said)
            await broken.wait()
        assert not way.send_nowait(b"x")
        assert near.statistics().outbound == 1
        way.close()
        assert near.statistics().outbound == 0


async def test_a_goodbye_to_a_sender_is_answered() -> None:
    broken = trio.Event()
    async with open_transports() as (near,), open_peer(near, Notified(broken.set)) as (_, peer):
        async with waiting(near):
            peer.socket.sendall(frame(CLOSE, struct.pack(">H", 1001), masked=False))
            await broken.wait()
        peer.messages.receive(await trio.to_thread.run_sync(peer.socket.recv, 100))
        assert peer.messages.is_over


# -- connections that break while they send --------------------------------------------------------------------


@pytest.mark.parametrize("is_reverse", [False, True], ids=["dialled", "reverse"])
async def test_connections_that_break_while_they_send_harm_nobody(is_reverse: bool) -> None:
    """nng 1.11 uses memory then that it has freed, and aborts.  20,000 by hand: measured/security.md."""
    rng = random.Random(1)
    async with open_transports(2) as (near, far):
        (url,) = await (near if is_reverse else far).listen([HERE])
        log = Log()
        far.observe(log)
        if is_reverse:
            (await far.dial(url, ignore)).close()

        async def drain(transport: NetworkTransport) -> None:
            while True:
                if transport.receive_nowait() is None:
                    await transport.wait_readable()

        async def connect(number: int, broken: Callable[[], None]) -> tuple[OutgoingConnection, Callable[[], None]]:
            if not is_reverse:
                return await near.dial(url, Notified(broken)), ignore.connection_broken
            incoming = far.dial_reverse(url, f"{number:032x}", ignore)
            return await near.accept_reverse(f"{number:032x}", Notified(broken)), incoming.close

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, near)
            nursery.start_soon(drain, far)
            for number in range(60):
                broken = trio.Event()
                way, end = await connect(number, broken.set)
                size = rng.choice([10, 1000, 64 * KIB, MIB])
                for _ in range(rng.randrange(4)):
                    await send(way, bytes(size))
                while not log.open:
                    await log.wait_news()
                if rng.random() < 0.8:
                    far.hang_up(min(log.open))
                    while not broken.is_set():
                        way.send_nowait(bytes(size))
                        await trio.lowlevel.checkpoint()
                    assert not way.send_nowait(b"x")
                way.close()
                end()
                while log.open:
                    await log.wait_news()
            nursery.cancel_scope.cancel()
        assert len(log.seen) == 60
        assert near.statistics().outbound == 0
        assert far.statistics().inbound == near.statistics().inbound == 0
