"""The HTTP door: connections that flood it, outlive a limit, or say what cannot be read; the log stays silent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from iris.doors.http import HttpLimits
from tests.doors.http.test_attacks import frame, is_well, upgrade
from tests.support.doors import Place, Run, rest_of, with_door

pytestmark = pytest.mark.usefixtures("silent_log")

CHUNKED = b"POST /x HTTP/1.1\r\nhost: door\r\ntransfer-encoding: chunked\r\n\r\n"
LINES = b"GET /x HTTP/1.1\r\n" + b"a: b\r\n" * 6000 + b"\r\n"

FLOODS = {
    "pings": frame(0x89, b"") * 40_000, "pongs": frame(0x8A, b"") * 40_000,
    "credits": frame(0x81, b'{"credit":1}') * 40_000, "chunks": b"1\r\nx\r\n" * 40_000,
}  # fmt: skip


@asynccontextmanager
async def flooding(place: Place, kind: str) -> AsyncGenerator[None]:
    """Send as much as the door takes for the length of the block, over one connection, or one for each head."""

    async def send() -> None:
        head = CHUNKED if kind == "chunks" else upgrade(place)
        async with place.dial() as (reader, writer):
            writer.write(head)
            await reader.readuntil(b"\r\n\r\n")
            begun.set()
            reading = asyncio.ensure_future(rest_of(reader))
            try:
                while not reading.done():
                    writer.write(FLOODS[kind])
                    await writer.drain()
            finally:
                reading.cancel()

    async def send_heads() -> None:
        while True:
            async with place.dial() as (reader, writer):
                writer.write(LINES)
                with contextlib.suppress(ConnectionError):
                    await reader.read(100)
                begun.set()

    begun = asyncio.Event()
    task = asyncio.ensure_future(send_heads() if kind == "heads" else send())
    try:
        await begun.wait()
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("kind", ["pings", "pongs", "credits", "chunks", "heads"])
@with_door()
async def test_a_flood_of_small_things_holds_up_nobody(place: Place, kind: str) -> None:
    async with flooding(place, kind):
        took: list[float] = []
        for _ in range(5):
            began = time.monotonic()
            await is_well(place)
            took.append(time.monotonic() - began)
    assert min(took) < 0.5  # each took two seconds and more when all that had arrived was read at once


@with_door(door_limits=HttpLimits(head_timeout=0.2))
async def test_a_tunnel_lasts_longer_than_a_head_may_take(place: Place) -> None:
    async with place.dial() as (reader, writer):
        writer.write(upgrade(place))
        await reader.readuntil(b'{"credit":16}')
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            writer.write(frame(0x81, b'{"credit":1}') + frame(0x82, b"echo"))
            await reader.readuntil(b"echo")
        assert not reader.at_eof()
    await is_well(place)


UNREADABLE = [
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"POST /publish/a HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx", 400),
    (b"POST /publish/a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"GET /iris.js HTTP/1.1\r\nhost: a\r\nb: " + b"x" * 33_000 + b"\r\n\r\n", 400),
    (b"GET /iris.js HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * 300 + b"\r\n", 400),
    (b"POST /publish/a%0a HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", 400),
    (b"POST /publish/a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"GET /\xe4 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    (b"\x16\x03\x01\r\n\r\n", 400),
    (b"GET ?x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"GET /iris.js HTTP/1.1\nhost: a\n\n", 400),
    (b"GET /iris.js HTTP/1.1\r\nhost: a\r\nb: c\n\r\n", 400),
    (b"GET /iris.js HTTP/1.1\r\nhost: a\r\nb: c\r\n\td\r\n\r\n", 400),
    (b"POST /request/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n , gzip\r\n\r\n", 400),
]
UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
KEY = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
UNREADABLE_UPGRADES = [
    (b"GET /tunnel/a HTTP/1.1\r\nhost: a\r\n" + UPGRADE + b"\r\n", 400),
    (b"GET /tunnel/a HTTP/1.1\r\nhost: a\r\n" + UPGRADE + KEY + b"content-length: 1\r\n\r\nx", 400),
    (b"GET /tunnel/a HTTP/1.1\r\nhost: a\r\n" + UPGRADE + KEY + b"a: b\r\n" * 200 + b"\r\n", 431),
    (b"GET /tunnel/a HTTP/1.1\r\nhost: a\r\n" + UPGRADE + KEY + b"a: " + b"b" * 9000 + b"\r\n\r\n", 431),
    (b"GET /elsewhere HTTP/1.1\r\nhost: a\r\n" + UPGRADE + KEY + b"\r\n", 404),
    (b"GET /tunnel/a HTTP/1.1\r\nhost: a\r\n" + UPGRADE + KEY + b"\r\n", 401),
]


@pytest.mark.parametrize(("sent", "status"), UNREADABLE + UNREADABLE_UPGRADES)
@with_door()
async def test_what_cannot_be_read_is_a_problem_like_any_other(place: Place, sent: bytes, status: int) -> None:
    async with place.dial() as (reader, writer):
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        told = json.loads(await reader.readline())
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert "content-type: application/problem+json" in head.lower()
    assert (told["status"], len(told["detail"]) > 20) == (status, True)
    await is_well(place)


@pytest.mark.parametrize("end", [b"0\r\n\n", b"0\r\na: b\n\r\n", b"0\r\na: b\r\n c\r\n\r\n"])
@with_door()
async def test_a_trailer_has_the_lines_of_a_head(place: Place, end: bytes) -> None:
    async with place.dial() as (reader, writer):
        writer.write(place.head("POST", "/request/greeters", "transfer-encoding: chunked") + b"1\r\nx\r\n" + end)
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 400")


EARLY = {
    "no token": ("POST /request/greeters HTTP/1.1\r\nhost: a\r\n", 401),
    "no method": ("PUT /request/greeters HTTP/1.1\r\nhost: a\r\n", 405),
    "no address": ("POST /nothing HTTP/1.1\r\nhost: a\r\n", 404),
    "unreadable": ("POST ?x HTTP/1.1\r\nhost: a\r\n", 400),
}


@pytest.mark.parametrize("kind", EARLY)
@pytest.mark.parametrize("size", [1000, 200_000, 4_000_000])
@with_door()
async def test_who_is_answered_early_can_read_it(place: Place, kind: str, size: int) -> None:
    """As urllib does: it asks for the end of the connection, and sends all before it reads."""
    head, status = EARLY[kind]

    def ask() -> bytes:
        with socket.create_connection(place.address, timeout=20) as connection:
            connection.sendall(f"{head}connection: close\r\ncontent-length: {size}\r\n\r\n".encode())
            time.sleep(0.02)  # the answer is on its way before the rest is sent, and the other end might be closed
            connection.sendall(bytes(size))
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
            return answer

    for _ in range(3):
        answer = await asyncio.to_thread(ask)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.endswith(b"}\n")


@with_door()
async def test_a_stranger_has_one_try_on_a_connection(place: Place) -> None:
    async with place.dial() as (reader, writer):
        writer.write(b"GET /subscribe?topic=a HTTP/1.1\r\nhost: a\r\n\r\n" * 50)
        assert (await rest_of(reader)).count(b"HTTP/1.1 401") == 1
    assert place.door.statistics().refused[401] == 1


@with_door()
async def test_junk_behind_an_answer_costs_its_connection(place: Place) -> None:
    """What must not be logged is looked at by the fixture ``silent_log``."""
    async with place.dial() as (reader, writer):
        writer.write(CHUNKED)
        await reader.readuntil(b"}\n")
        writer.write(b"zz\r\n")
        assert await rest_of(reader) == b""
    async with place.dial() as (reader, writer):
        writer.write(place.head("GET", "/subscribe?topic=a", "transfer-encoding: chunked"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"zz\r\n")
        await rest_of(reader)
    await is_well(place)


@with_door(door_limits=HttpLimits(connections=1))
async def test_who_is_cut_off_by_a_reset_leaves_nothing(place: Place) -> None:
    """``is_well`` asserts that the only place is free again; ``run`` bounds the wait."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.follow("topic=a"))
        for _ in range(50):
            async with place.dial() as (_, writer):
                writer.transport.abort()
    while place.door.statistics().connections:
        await asyncio.sleep(0.01)
    await is_well(place)


@with_door(patched={"iris.doors.http.connections._CLOSING": 0.2})
async def test_who_does_not_answer_the_close_of_a_tunnel_is_cut_off(place: Place) -> None:
    async with place.dial() as (reader, writer):
        writer.write(upgrade(place) + frame(0x81, b"no JSON"))
        async with asyncio.timeout(5):
            assert b"malformed" in await rest_of(reader)
    assert place.door.statistics().connections == 0
    await is_well(place)


@with_door(patched={"iris.doors.http.connections._MESSAGE_WITHIN": 0.3})
async def test_a_message_that_does_not_end_costs_its_tunnel(place: Place) -> None:
    for unfinished in (frame(0x02, b"x"), frame(0x82, b"x", size=1000), frame(0x82, b"x" * 9)[:4]):
        async with place.dial() as (reader, writer):
            writer.write(upgrade(place) + unfinished)
            assert b"a message is whole after 0.3 s" in await rest_of(reader)
    async with place.dial() as (reader, writer):
        writer.write(upgrade(place) + frame(0x81, b'{"credit":9}') + frame(0x89, b"ping")[:3])
        await reader.readuntil(b'{"credit":16}')
        writer.write(frame(0x89, b"ping")[3:])
        await reader.readuntil(b"ping")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read(1)
        writer.write(frame(0x82, b"echo"))
        await reader.readuntil(b"echo")


@with_door()
async def test_a_file_is_not_handed_out_in_pieces(place: Place) -> None:
    whole = await place.fetch("GET", "/iris.js", b"", {})
    for ranges in ("0-9", ",".join(f"{number}-" for number in range(2000))):
        told = await place.fetch("GET", "/iris.js", b"", {"range": f"bytes={ranges}"})
        assert (told.status, told.body) == (200, whole.body)


def test_a_failure_of_one_handshake_is_logged_and_others_come_in(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(place: Place) -> None:
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patched:

            async def fail(*_: object, **__: object) -> None:
                raise ZeroDivisionError

            patched.setattr(loop, "connect_accepted_socket", fail)
            async with place.dial() as (reader, _):
                assert await rest_of(reader) == b""
        await is_well(place)

    run(work)
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "the door for HTTP failed a connection"
    caplog.clear()
