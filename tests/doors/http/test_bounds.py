"""The HTTP door: what those can do who have not said who they are."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack

import pytest

from iris.doors.http import HttpLimits
from tests.support.doors import Place, Run, next_event, rest_of

IMPATIENT = HttpLimits(head_timeout=0.3)


def test_idle_connections_end(run: Run) -> None:
    async def work(place: Place) -> None:
        async with place.dial() as (idle, _), place.dial() as (slow, writer):
            writer.write(b"POST /request/greeters HTTP/1.1\r\nhost: ")  # and no more
            for reader in (idle, slow):
                assert await rest_of(reader) == b""
        assert (await place.post("/request/greeters")).status == 200

    run(work, door_limits=IMPATIENT)


def test_strangers_make_room_and_clients_do_not(run: Run) -> None:
    async def work(place: Place) -> None:
        async with place.follow("topic=a") as first, place.dial() as (oldest, _), place.dial() as (newer, _):
            async with asyncio.timeout(5):  # half of what strangers have
                assert (await place.post("/request/greeters", b"x")).body == b"x"
                assert await rest_of(oldest) == b""
                assert (await place.post("/request/greeters", b"x")).body == b"x"
            await place.member.publish("a", 1)
            assert (await next_event(first))[1]["payload"] == 1
            assert not newer.at_eof()
        assert place.door.statistics().turned_away == 1

    run(work, door_limits=HttpLimits(connections=3))


def test_a_door_that_is_full_says_so_and_pages_can_read_it(run: Run) -> None:
    shop = {"origin": "https://shop.example"}
    asks = {**shop, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}

    async def work(place: Place) -> None:
        async with place.follow("topic=a"), place.follow("topic=a"):
            told = await place.fetch("OPTIONS", "/request/greeters", b"", asks)
            assert (told.status, told.headers["access-control-allow-origin"]) == (200, "https://shop.example")
            told = await place.post("/request/greeters", b"x", {**place.bearer, **shop})
            assert (told.status, told.json()["code"], told.headers["retry-after"]) == (503, "too_many_connections", "1")
            assert told.headers["access-control-allow-origin"] == "https://shop.example"
            async with place.dial() as (reader, _):
                assert await rest_of(reader) == b""  # who does not ask is told nothing
            assert place.door.statistics().turned_away == 3
        while place.door.statistics().connections:
            await asyncio.sleep(0.01)
        assert (await place.post("/request/greeters")).status == 200

    run(work, door_limits=HttpLimits(connections=2), origins=["https://shop.example"])


def test_a_connection_may_be_used_again_but_not_kept_with_half_a_head(run: Run) -> None:
    async def work(place: Place) -> None:
        async with place.dial() as (reader, writer):
            head = place.head("POST", "/request/greeters", "content-length: 1")
            for _ in range(3):
                writer.write(head + b"x")
                assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
            writer.write(head[:50])
            assert await rest_of(reader) == b""

    run(work, door_limits=IMPATIENT)


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
def test_what_is_no_http_costs_its_connection(run: Run, sent: bytes) -> None:
    async def work(place: Place) -> None:
        async with place.dial() as (reader, writer):
            writer.write(sent)
            assert (await rest_of(reader))[:12] in (b"HTTP/1.1 400", b"")
        assert (await place.post("/request/greeters")).status == 200

    run(work, door_limits=IMPATIENT)
