"""The HTTP door under attack: what a client sends costs it its connection at most, and is no news in the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import struct
from pathlib import Path

import pytest

from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from tests.support.doors import Place, Run, rest_of, with_door

pytestmark = pytest.mark.usefixtures("silent_log")


async def is_well(place: Place) -> None:
    """Check that the door serves another client."""
    assert (await place.post("/request/greeters", b"x")).body == b"x"


PATHS = [
    ("/request/greeters%2F", 400), ("/request//greeters", 400), ("/request/../request/greeters", 404),
    ("/request/%2e%2e/greeters", 400), ("/request/%FF%FE", 400), ("/request/greeters%00", 400),
    ("/request/", 400), ("/request", 404), ("//request/greeters", 404), ("/REQUEST/greeters", 404),
    ("/request/greeters%0d%0ax:y", 400), ("/request/*", 400), ("/request/greeters;x=1", 400),
    ("/request/" + "a" * 20_000, 400), ("/publish/%2A", 400), ("/publish/orders.>", 400),
    ("http://other.example/request/greeters", 404), ("/iris.js/../request/greeters", 404),
    ("/request/nobody/greeters", 404),
]  # fmt: skip


@with_door(rights={"call": ("*",), "publish": ("*",)})
async def test_no_path_leads_past_the_rights_or_to_an_error_of_the_door(place: Place) -> None:
    for path, status in PATHS:
        told = await place.post(path)
        assert told.status in (status, 403, 404), (path, told)
        assert told.json()["status"] == told.status
    await is_well(place)


@with_door()
async def test_no_header_makes_a_client_another_one(place: Place) -> None:
    head = place.head(
        "POST", "/request/greeters?operation=headers", "content-length: 0", "connection: close",
        "IRIS-HEADER-IRIS-CLIENT: admin", "iris-header-iris-client : admin",
    )  # fmt: skip
    async with place.dial() as (reader, writer):
        writer.write(head)
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 400")  # the space before the colon
    head = head.replace(b"iris-header-iris-client : admin", b"iris-header-: x")
    async with place.dial() as (reader, writer):
        writer.write(head)
        told = (await rest_of(reader)).partition(b"\r\n\r\n")[2]
        assert json.loads(told)["iris-client"] == "web"
        assert b"admin" not in told
    for name, value in [("iris-header-a", "\xff\xe4"), ("iris-header-a", "x" * 9000), ("iris-header-\xe4", "x")]:
        async with place.dial() as (reader, writer):
            line = f"{name}: {value}".encode("latin-1")
            writer.write(place.head("POST", "/request/greeters", "content-length: 0", "connection: close")[:-2])
            writer.write(line + b"\r\n\r\n")
            assert (await rest_of(reader))[9:12] in (b"200", b"400", b"413")
    await is_well(place)


SMUGGLED = [
    ("content-length: 1", "content-length: 2"), ("content-length: -1",), ("content-length: 1x",),
    ("transfer-encoding: chunked", "transfer-encoding: chunked"), ("transfer-encoding: gzip",),
    ("content-length: 1\x00",), ("host: other",), (" folded: x",), ("content-length: " + "9" * 5000,),
]  # fmt: skip


@pytest.mark.parametrize("lines", SMUGGLED)
@with_door()
async def test_requests_that_can_be_read_in_two_ways_are_refused(place: Place, lines: tuple[str, ...]) -> None:
    async with place.dial() as (reader, writer):
        writer.write(place.head("POST", "/request/greeters", *lines) + b"x")
        assert (await reader.read(12))[9:12] in (b"400", b"401", b"501", b"413")
    await is_well(place)


@with_door(door_limits=HttpLimits(head_timeout=0.5, body_timeout=0.5))
async def test_noise_costs_its_connection(place: Place) -> None:
    """``is_well`` asserts that others are served, ``run`` that no task is left."""
    drawn = random.Random(7)

    async def attack(place: Place, sent: bytes) -> None:
        async with place.dial() as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            await rest_of(reader)

    whole = place.head("POST", "/survey/greeters?timeout=0.1", "content-length: 3", "x: y") + b"[1]"
    for _ in range(15):
        noisy: list[bytes] = []
        for _ in range(20):
            data = bytearray(whole)
            for _ in range(drawn.randint(1, 6)):
                data[drawn.randrange(len(data))] = drawn.randrange(256)
            noisy.append(bytes(data))
        await asyncio.gather(*(attack(place, sent) for sent in noisy))
    await is_well(place)


@with_door(door_limits=HttpLimits(head_timeout=0.3))
async def test_who_sends_a_head_byte_by_byte_has_no_more_time_than_others(place: Place) -> None:
    async with place.dial() as (reader, writer):
        end = asyncio.ensure_future(rest_of(reader))
        began = asyncio.get_running_loop().time()
        while not end.done():
            writer.write(b"a")
            await asyncio.wait([end], timeout=0.02)
        assert asyncio.get_running_loop().time() - began < 5
    await is_well(place)


@with_door(limits=ClientLimits(calls=1))
async def test_who_hangs_up_within_a_body_is_forgotten(place: Place) -> None:
    """``is_well`` asserts that the one call that the client may have is free again; ``run`` bounds the wait."""
    for _ in range(3):
        async with place.dial() as (_, writer):
            writer.write(place.head("POST", "/request/greeters", "content-length: 10") + b"x")
            await writer.drain()
    async with place.dial() as (_, writer):
        writer.write(place.head("POST", "/request/greeters", "content-length: 10", "expect: 100-continue"))
    while place.door.statistics().connections:
        await asyncio.sleep(0.01)
    await is_well(place)


@with_door(limits=ClientLimits(calls=1), send_buffer=4096)
async def test_a_reply_that_is_not_read_is_a_call_that_goes_on(place: Place) -> None:
    size = b"1000000"
    length = f"content-length: {len(size)}"
    head = place.head("POST", "/request/greeters?operation=large", length, "content-type: application/json")
    async with place.dial(SO_RCVBUF=4096, limit=1024) as (reader, writer):
        writer.write(head + size)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        told = await place.post("/request/greeters")
        assert (told.status, told.json()["code"]) == (429, "too_many_calls")
        taken = 0
        while taken < 1_000_000:
            taken += len(await reader.read(65_536))
    await is_well(place)


@with_door(door_limits=HttpLimits(stall_timeout=0.5))
async def test_who_takes_nothing_of_what_it_asked_for_is_dropped(place: Place) -> None:
    """``run`` bounds the wait for the end of the connection; ``is_well`` asserts that others are served."""
    async with place.follow("topic=a", SO_RCVBUF=4096, limit=1024):
        while place.door.statistics().connections:
            await place.member.publish("a", bytes(500_000))
            await asyncio.sleep(0.01)
    await is_well(place)


def test_a_handshake_of_tls_that_is_not_finished_ends(run: Run, tmp_path: Path) -> None:
    from tests.support.door_certificate import make_certificate

    certificate = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    ours = ssl.create_default_context(cafile=str(certificate))

    async def work(place: Place) -> None:
        async with place.dial() as (idle, _), place.dial() as (garbled, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await rest_of(garbled)
            assert await rest_of(idle) == b""
        reader, writer = await asyncio.open_connection(*place.address, ssl=ours, server_hostname="localhost")
        writer.write(place.head("POST", "/request/greeters", "content-length: 1", "connection: close") + b"x")
        assert (await rest_of(reader)).endswith(b"\r\n\r\nx")
        writer.close()

    run(work, tls=tls, door_limits=HttpLimits(head_timeout=0.3))


# -- WebSocket ----------------------------------------------------------------------------------------------


def upgrade(place: Place, operation: str = "") -> bytes:
    return place.head(
        "GET", f"/tunnel/greeters{operation}", "connection: upgrade", "upgrade: websocket",
        "sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-protocol: iris.tunnel.1",
    )  # fmt: skip


def frame(first: int, data: bytes, *, masked: bool = True, size: int | None = None) -> bytes:
    length = len(data) if size is None else size
    mask = 0x80 if masked else 0
    if length < 126:
        head = struct.pack("!BB", first, mask | length)
    elif length < 65_536:
        head = struct.pack("!BBH", first, mask | 126, length)
    else:
        head = struct.pack("!BBQ", first, mask | 127, length)
    return head + (bytes(4) if masked else b"") + data


FRAMES = [
    (b"\x01\x00", 1002), (frame(0x82, b"x", masked=False), 1002), (frame(0xC2, b"x"), 1002),
    (frame(0x83, b"x"), 1002), (frame(0x80, b"x"), 1002), (frame(0x09, b"x"), 1002), (frame(0x89, b"x" * 126), 1002),
    (frame(0x82, b"", size=1 << 40), 1009), (frame(0x81, b"\xff"), 1007), (frame(0x02, b"x") * 2, 1002),
    (frame(0x02, b"") + frame(0x00, b"") * 5000, 1009), (frame(0x88, b"\x00"), 1002),
    (frame(0x88, struct.pack("!H", 999)), 1002),
]  # fmt: skip


@with_door()
async def test_frames_that_must_not_be_cost_their_tunnel(place: Place) -> None:
    for sent, code in FRAMES:
        async with place.dial() as (reader, writer):
            writer.write(upgrade(place))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            writer.write(sent)
            told = await rest_of(reader)
            assert struct.pack("!H", code) in told[-130:], (sent[:20], told)
    await is_well(place)


@with_door()
async def test_pings_that_are_sent_and_not_read_do_not_pile_up(place: Place) -> None:
    async with place.dial(SO_RCVBUF=4096, limit=1024) as (reader, writer):
        writer.write(upgrade(place))
        await reader.readuntil(b"\r\n\r\n")
        flood, taken = frame(0x89, bytes(125)) * 10_000, 0
        with contextlib.suppress(TimeoutError, ConnectionError):
            while taken < 1000:  # 1.3 GB, none of which is read
                writer.write(flood)
                async with asyncio.timeout(1):
                    await writer.drain()
                taken += 1
        assert taken < 100
        writer.transport.abort()
    await is_well(place)


@with_door()
async def test_a_client_that_leaves_is_seen_though_the_member_takes_nothing(place: Place) -> None:
    """``run`` bounds both waits, and asserts that no task is left."""
    async with place.dial() as (reader, writer):
        writer.write(upgrade(place, "?operation=stuck"))
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(16):
            writer.write(frame(0x82, bytes(500_000)))
        await writer.drain()
    while place.door.statistics().connections:
        await asyncio.sleep(0.01)
    place.counted.release.set()
    while place.counted.tunnels != ["broken"]:
        await asyncio.sleep(0.01)


@with_door(limits=ClientLimits(bytes=4 << 20))
async def test_what_waits_for_members_is_bounded(place: Place) -> None:
    """``run`` bounds the wait for the reason; ``is_well`` asserts that others are served."""
    async with place.dial() as (reader, writer):
        writer.write(upgrade(place, "?operation=stuck"))
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(16):
            writer.write(frame(0x82, bytes(500_000)))
        await reader.readuntil(b"too_many_bytes")
    place.counted.release.set()
    await is_well(place)
