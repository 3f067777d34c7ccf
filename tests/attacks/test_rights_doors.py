"""Shares at the doors, and names at the pages of operators."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- doors run on asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from iris.cli.operators.dash.guard import Guard
from iris.doors.http import HttpLimits
from iris.doors.tokens import grant
from iris.node.telemetry.host_names import is_ours
from tests.support.doors import Place, rest_of, with_door


def ask(token: str, connection: str = "keep-alive") -> bytes:
    head = (
        f"POST /request/greeters HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\nconnection: {connection}\r\n"
    )
    return head.encode() + b"content-length: 1\r\n\r\nx"


@pytest.mark.long
@with_door(door_limits=HttpLimits(connections=20))
async def test_connections_that_one_token_keeps_idle_leave_room_to_the_others(place: Place) -> None:
    other = grant(place.tokens, "other", call=(">",))
    place.clients.reload()
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        for _ in range(40):
            reader, writer = await stack.enter_async_context(place.dial())
            writer.write(ask(place.token))
            await reader.read(4096)
        for _ in range(4):
            reader, writer = await stack.enter_async_context(place.dial())
            writer.write(ask(other, "close"))
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 200")


@pytest.mark.long
@with_door(door_limits=HttpLimits(connections=20))
async def test_who_shows_another_token_on_the_same_connection_has_the_place_of_that_one(place: Place) -> None:
    other = grant(place.tokens, "other", call=(">",))
    place.clients.reload()
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        answers: list[bytes] = []
        for _ in range(12):
            reader, writer = await stack.enter_async_context(place.dial())
            writer.write(ask(other))
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ask(place.token))
            answers.append(await reader.readuntil(b"\r\n\r\n"))
        assert sum(b" 200 " in answer for answer in answers) <= 10
        reader, writer = await stack.enter_async_context(place.dial())
        third = grant(place.tokens, "third", call=(">",))
        place.clients.reload()
        writer.write(ask(third, "close"))
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 200")


FOREIGN = (
    "evil.example", "evil.example:7780", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example.",
    "localhost@evil.example", "evil.example/127.0.0.1", "[::1", "[::1].evil.example", "127.0.0.1,evil.example",
    "2130706433.evil.example", "127.0.0.1.nip.io:80", "xn--localhost-.example", "", " ", "evil.example#localhost",
    "evil.example?.localhost", "evil.example\\.localhost",
)  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_somebody_can_register_is_none_of_the_metrics(host: str) -> None:
    assert not is_ours(host)


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/", "/views", "/drain"])
async def test_a_name_that_somebody_can_register_is_none_of_the_page(host: str, path: str) -> None:
    assert await status(path, "GET", host=host) == 421


@pytest.mark.parametrize(
    "given",
    [
        {"origin": "null"}, {"origin": "http://127.0.0.1:7781"}, {"origin": "http://127.0.0.1"},
        {"origin": "http://127.0.0.1:7780@evil.example"}, {"origin": "http://evil.example"}, {"origin": ""},
        {"origin": "http://127.0.0.1:7780", "sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:7780", "sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:7780", "sec-fetch-site": "none"}, {},
    ],
)  # fmt: skip
async def test_an_order_comes_from_the_page_alone(given: dict[str, str]) -> None:
    assert await status("/drain", "POST", **given) == 403


async def status(path: str, method: str, **given: str) -> int:
    guard = Guard(PlainTextResponse("the realm"), token="t" * 43, names=[], public=["/"])
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = {"host": "127.0.0.1:7780", "authorization": "Bearer " + "t" * 43, **given}
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 7780),
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
    }
    await guard(scope, receive, send)
    return int(sent[0]["status"])
