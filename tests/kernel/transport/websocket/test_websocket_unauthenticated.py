"""Strangers at a listener for WebSocket: what they may say, how many there may be, and that nobody else is harmed."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iris.kernel.config import Config
from iris.kernel.transport.websocket import PULL, PUSH, ClientUpgrade
from tests.kernel.transport.test_connections import Log
from tests.kernel.transport.websocket.test_websocket import BINARY, CLOSE, CONT, PING, TEXT, frame
from tests.support.transports import PATIENT, Notified, ignore, open_transports, receive, waiting
from tests.support.web import HERE, LARGEST, is_closed, send, stranger, upgrade

PLACES = Config().half_open_per_address * 3 // 4


async def test_a_request_and_a_frame_may_come_byte_by_byte() -> None:
    async with open_transports(config=PATIENT) as (far,):
        log = Log()
        far.observe(log)
        (url,) = await far.listen([HERE])
        with stranger(url) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asking = ClientUpgrade(url, PULL, LARGEST)
            for byte in asking.request:
                one.sendall(bytes((byte,)))
            messages = asking.receive(await trio.to_thread.run_sync(one.recv, 4096))
            assert messages is not None
            for byte in messages.encode(b"abc")[0]:
                one.sendall(bytes((byte,)))
                await trio.sleep(0.001)
            assert await receive(far) == b"abc"
            assert list(log.open.values()) == ["127.0.0.1"]


async def test_who_does_not_finish_his_request_is_sent_away_in_time_and_counted() -> None:
    async with open_transports(config=Config(handshake_timeout=0.3)) as (far,):
        log = Log()
        far.observe(log)
        (url,) = await far.listen([HERE])
        began = time.monotonic()
        with stranger(url) as silent, stranger(url) as slow:
            slow.sendall(ClientUpgrade(url, PULL, LARGEST).request[:-1])
            for one in (silent, slow):
                assert await trio.to_thread.run_sync(is_closed, one)
            assert time.monotonic() - began > 0.2
        while log.refused != 2:
            await trio.lowlevel.checkpoint()
        assert log.seen == []


@pytest.mark.parametrize(
    "said",
    [
        b"\0SP\0\0\x50\0\0\n",
        b"GET /iris HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /iris HTTP/1.1\r\n\r\n",
        b"GET /iris HTTP/1.1\r\nX: " + b"x" * 20_000,
        ClientUpgrade("ws://127.0.0.1:1/iris", PUSH, 1).request,
        ClientUpgrade("ws://127.0.0.1:1/iris", PULL, 1).request + b"at once",
        ClientUpgrade("ws://127.0.0.1:1/iris", PULL, 1).request * 2,
        b"GET / HTTP/1.1\r\n\r\n" * 2,
        ClientUpgrade("ws://127.0.0.1:1/other", PULL, 1).request,
    ],
)
async def test_who_asks_for_something_else_is_sent_away_at_once(said: bytes) -> None:
    async with open_transports(config=PATIENT) as (far,):
        (url,) = await far.listen([HERE])
        with stranger(url) as one:
            one.sendall(said)
            assert await trio.to_thread.run_sync(is_closed, one)


async def test_of_a_crowd_the_newest_stay_and_other_addresses_lose_nothing() -> None:
    async with open_transports(config=PATIENT) as (far,), contextlib.AsyncExitStack() as stack:
        log = Log()
        far.observe(log)
        (url,) = await far.listen([HERE])
        witness = stack.enter_context(stranger(url, "127.0.0.2"))
        crowd = [stack.enter_context(stranger(url)) for _ in range(PLACES + 20)]
        assert all(is_closed(one) for one in crowd[:20])
        assert not any(is_closed(one, 0.01) for one in crowd[20:])
        for one in (witness, crowd[-1]):
            one.settimeout(60)
            messages = upgrade(one, url)
            one.sendall(messages.encode(b"here")[0])
            assert await receive(far) == b"here"
        assert log.refused == 20


async def test_of_those_that_are_upgraded_before_anybody_looks_the_newest_stay() -> None:
    async with open_transports(config=PATIENT) as (far,), contextlib.AsyncExitStack() as stack:
        log = Log()
        far.observe(log)
        (url,) = await far.listen([HERE])
        for _ in range(PLACES + 5):  # and this task does not give others a turn
            upgrade(stack.enter_context(stranger(url)), url)
        await log.wait_open(PLACES)
        assert log.refused == 5


@pytest.mark.parametrize(
    "said",
    [
        frame(BINARY, b"x", masked=False),
        frame(TEXT, b"x"),
        frame(CONT, b"x"),
        frame(CLOSE, b""),
        frame(PING, bytes(126)),
        frame(PING, b"", fin=False),
        frame(BINARY, b"", length=LARGEST + 126),
        frame(BINARY, b"", length=2**63),
        frame(BINARY, bytes(700_000), fin=False) + frame(CONT, bytes(700_000)),
        b"\x00" * 100,
        b"\xff" * 100,
        frame(PING, b"") * 300,
        frame(BINARY, b"", fin=False) + frame(CONT, b"", fin=False) * 300,
    ],
    ids=range(13),
)
async def test_hostile_bytes_end_their_own_connection_and_nothing_else(said: bytes) -> None:
    async with open_transports(2, PATIENT) as (near, far):
        (url,) = await far.listen([HERE])
        way = await near.dial(url, Notified(lambda: pytest.fail("the wrong connection broke")))
        with stranger(url) as one:
            messages = upgrade(one, url)
            one.sendall(messages.encode(b"before")[0])
            assert await receive(far) == b"before"
            async with waiting(far), waiting(near):
                with contextlib.suppress(ConnectionError):  # it may be closed by then
                    await trio.to_thread.run_sync(one.sendall, said)
                assert await trio.to_thread.run_sync(is_closed, one)
        await send(way, b"still here")
        assert await receive(far) == b"still here"
        way.close()


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=300) | st.builds(frame, st.integers(0, 15), st.binary(max_size=150)), max_size=6),
    st.booleans(),
)
def test_no_bytes_harm_those_who_behave(pieces: list[bytes], after_upgrade: bool) -> None:
    async def main() -> None:
        async with open_transports(2, PATIENT) as (near, far):
            (url,) = await far.listen([HERE])
            way = await near.dial(url, Notified(lambda: pytest.fail("the wrong connection broke")))
            with stranger(url) as one:
                if after_upgrade:
                    upgrade(one, url)
                with contextlib.suppress(ConnectionError):
                    for piece in pieces:
                        one.sendall(piece)
                await send(way, b"marked by its length of 31 bytes")
                while len(await receive(far)) != 32:
                    pass
            way.close()

    trio.run(main)


async def test_a_flood_of_the_smallest_frames_and_pings_does_not_keep_others_waiting() -> None:
    async with open_transports(2, PATIENT) as (near, far):
        (url,) = await far.listen([HERE])
        way = await near.dial(url, ignore)
        with stranger(url) as one:
            upgrade(one, url)
            one.setblocking(False)
            flood = frame(BINARY, b"") * 20_000 + frame(PING, b"") * 20_000
            began = time.process_time()
            for number in range(5):
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    one.send(flood)
                await send(way, b"%d" % number)
                while await receive(far) == b"":
                    pass
            assert time.process_time() - began < 8
        way.close()
