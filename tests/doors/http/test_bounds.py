"""The HTTP door: what those can do who have not said who they are."""

from __future__ import annotations

import asyncio
import resource
import threading
from contextlib import AsyncExitStack

import pytest

from iris.doors import grant
from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from tests.support.doors import Place, Run, next_event, rest_of, with_door

IMPATIENT = HttpLimits(head_timeout=0.3)


@with_door(door_limits=IMPATIENT)
async def test_idle_connections_end(place: Place) -> None:
    async with place.dial() as (idle, _), place.dial() as (slow, writer):
        writer.write(b"POST /request/greeters HTTP/1.1\r\nhost: ")  # and no more
        for reader in (idle, slow):
            assert await rest_of(reader) == b""
    assert (await place.post("/request/greeters")).status == 200


@with_door(door_limits=HttpLimits(connections=3))
async def test_strangers_make_room_and_clients_do_not(place: Place) -> None:
    async with place.follow("topic=a") as first, place.dial() as (oldest, _), place.dial() as (newer, _):
        async with asyncio.timeout(5):  # half of what clients without a token have
            assert (await place.post("/request/greeters", b"x")).body == b"x"
            assert await rest_of(oldest) == b""
            assert (await place.post("/request/greeters", b"x")).body == b"x"
        await place.member.publish("a", 1)
        assert (await next_event(first))[1]["payload"] == 1
        assert not newer.at_eof()
    assert place.door.statistics().turned_away == 1


@with_door(door_limits=HttpLimits(connections=20))
async def test_one_client_does_not_hold_all_connections(place: Place) -> None:
    other = grant(place.tokens, "other", call=(">",))
    place.clients.reload()
    async with AsyncExitStack() as stack:
        for _ in range(5):  # a quarter
            await stack.enter_async_context(place.follow("topic=a"))
        for path in ("/request/greeters", "/publish/a"):
            told = await place.post(path, b"x")
            assert (told.status, told.json()["code"]) == (429, "too_many_connections")
        told = await place.post("/request/greeters", b"x", {"authorization": f"Bearer {other}"})
        assert (told.status, told.body) == (200, b"x")
    assert place.door.statistics().turned_away == 0
    while (await place.post("/request/greeters", b"x")).status != 200:  # its places are free again
        await asyncio.sleep(0.01)


@with_door(door_limits=HttpLimits(connections=16))
async def test_a_crowd_that_comes_at_once_gets_in(place: Place) -> None:
    """Those that are nearest to their end are not cut off for those that have just come."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(place.dial()) for _ in range(60)]
        for _, writer in opened:
            writer.write(b"GET /iris.js HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        answers = [await rest_of(reader) for reader, _ in opened]
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * 60


def test_bodies_are_in_the_budget_of_their_client(run: Run) -> None:
    limits = ClientLimits(bytes=1 << 20)

    async def work(place: Place) -> None:
        head = place.head("POST", "/request/greeters", f"content-length: {600_000}")
        async with place.dial() as (_, first), place.dial() as (reader, second):
            first.write(head + bytes(100))  # the rest does not come, and has its place
            await place.until_held(600_000)
            second.write(head)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429")
        async with place.dial() as (reader, writer):  # 100 KB of JSON take 1.6 MB as a value
            body = b"[" + b'"ab",' * 20_000 + b"1]"
            kind = "content-type: application/json"
            writer.write(place.head("POST", "/request/greeters", kind, f"content-length: {len(body)}") + body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429")
        await place.until_held(0)
        assert (await place.post("/request/greeters", [1, 2])).json() == [1, 2]

    run(work, limits=limits)


@with_door(door_limits=HttpLimits(connections=2), origins=["https://shop.example"])
async def test_a_door_that_is_full_says_so_and_pages_can_read_it(place: Place) -> None:
    shop = {"origin": "https://shop.example"}
    asks = {**shop, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with place.follow("topic=a"), place.follow("topic=a"):
        told = await place.fetch("OPTIONS", "/request/greeters", b"", asks)
        assert (told.status, told.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        told = await place.post("/request/greeters", b"x", {**place.bearer, **shop})
        assert (told.status, told.json()["code"], told.headers["retry-after"]) == (503, "too_many_connections", "1")
        assert told.headers["access-control-allow-origin"] == "https://shop.example"
        async with place.dial() as (reader, _):
            assert await rest_of(reader) == b""  # a client that does not ask gets nothing
        assert place.door.statistics().turned_away == 3
    while place.door.statistics().connections:
        await asyncio.sleep(0.01)
    assert (await place.post("/request/greeters")).status == 200


@with_door(door_limits=IMPATIENT)
async def test_a_connection_may_be_used_again_but_not_kept_with_half_a_head(place: Place) -> None:
    async with place.dial() as (reader, writer):
        head = place.head("POST", "/request/greeters", "content-length: 1")
        for _ in range(3):
            writer.write(head + b"x")
            assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
        writer.write(head[:50])
        assert await rest_of(reader) == b""


def test_a_thousand_idle_clients_disturb_nobody(run: Run) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this machine lets a process have {hard} files: both ends of 1,000 connections need 2,200")

    async def work(place: Place) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(1000):
                await stack.enter_async_context(place.dial())
            for _ in range(10):
                assert (await place.post("/request/greeters", b"x")).body == b"x"

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        run(work, door_limits=HttpLimits(connections=1010))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "sent", [b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/1.1\r\na: " + b"x" * 70_000, b"\x16\x03\x01"]
)
@with_door(door_limits=IMPATIENT)
async def test_what_is_no_http_costs_its_connection(place: Place, sent: bytes) -> None:
    async with place.dial() as (reader, writer):
        writer.write(sent)
        assert (await rest_of(reader))[:12] in (b"HTTP/1.1 400", b"")
    assert (await place.post("/request/greeters")).status == 200


@with_door()
async def test_who_is_refused_costs_no_thread(place: Place, monkeypatch: pytest.MonkeyPatch, silent_log: None) -> None:
    """A thread for each client without a token is dear, and there may be none."""

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with place.dial() as (reader, writer), place.dial() as (other, asking):
        monkeypatch.setattr(threading.Thread, "start", none)
        writer.write(b"POST /request/greeters HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 401")
        asking.write(place.head("POST", "/nowhere", "content-length: 0"))
        assert (await other.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
        monkeypatch.undo()


@with_door()
async def test_each_request_of_a_client_takes_its_turn(place: Place) -> None:
    """Also those of connections that have just come, and those that are there behind another one."""
    other = grant(place.tokens, "other", call=(">",))
    place.clients.reload()
    loop, processor = asyncio.get_running_loop(), place.clients.named("web").processor
    processor.spend(0.5)
    began = loop.time()
    asked = [asyncio.ensure_future(place.post("/request/greeters", b"x")) for _ in range(2)]
    told = await place.post("/request/greeters", b"x", {"authorization": f"Bearer {other}"})
    assert (told.status, told.body) == (200, b"x")
    assert not any(one.done() for one in asked)
    assert [(await one).body for one in asked] == [b"x", b"x"]
    assert loop.time() - began >= 0.5


@with_door()
async def test_strangers_are_let_in_within_their_share_and_clients_wait_for_none_of_them(place: Place) -> None:
    async with place.dial() as (reader, writer):
        request = place.head("POST", "/request/greeters", "content-length: 1") + b"x"
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
        place.clients.unauthenticated.spend(0.5)
        stranger = asyncio.ensure_future(place.post("/request/greeters", b"x", {}))
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
        assert not stranger.done()
        assert (await stranger).status == 401
