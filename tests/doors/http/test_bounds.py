"""The HTTP door: what those can do who have not said who they are."""

from __future__ import annotations

import resource
from contextlib import AsyncExitStack

import pytest

from iris.doors.http import HttpLimits
from tests.support.doors import Place, Run, rest_of

IMPATIENT = HttpLimits(head_timeout=0.3)


def test_connections_are_bounded_and_idle_ones_end(run: Run) -> None:
    async def work(place: Place) -> None:
        async with place.dial() as (idle, _), place.dial() as (slow, writer), place.dial() as (last, _):
            writer.write(b"POST /request/greeters HTTP/1.1\r\nhost: ")  # and no more
            async with place.dial() as (refused, _):
                told = await rest_of(refused)
                assert told.startswith(b"HTTP/1.1 503")
                assert b"too_many_connections" in told
            for reader in (idle, slow, last):
                assert await rest_of(reader) == b""
        assert (await place.post("/request/greeters")).status == 200

    run(work, door_limits=HttpLimits(head_timeout=0.3, connections=3))


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
