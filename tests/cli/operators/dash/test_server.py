"""The web server: bounded, and ended by the block that opened it, whatever browsers do."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio
from starlette.types import Receive, Scope, Send

from iris.cli.operators.dash import server
from iris.cli.operators.dash.guard import ADMIT
from iris.cli.operators.dash.server import open_server
from tests.support.door_certificate import make_certificate

_GET = b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n"


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/shown":
        scope["state"][ADMIT]()
    if scope["path"] == "/fails":
        raise ValueError("it failed")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while scope["path"] == "/endless":
        await send({"type": "http.response.body", "body": bytes(1 << 18), "more_body": True})
    await send({"type": "http.response.body", "body": b"the page"})


@asynccontextmanager
async def _serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with open_server(_app, listening, tls):
            yield listening.getsockname()[1]


async def _get(port: int, path: bytes = b"/") -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(_GET % path)
        answer = b""
        with trio.fail_after(10):
            while b"\r\n0\r\n" not in answer and b"content-length: 0" not in answer:
                piece = await stream.receive_some()
                if not piece:
                    break
                answer += piece
        return answer


async def test_who_does_not_read_slows_nobody_and_delays_no_end(caplog: pytest.LogCaptureFixture) -> None:
    async with _serving() as port:
        slow = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(4)]
        for stream in slow:
            await stream.send_all(_GET % b"/endless")
        for _ in range(50):
            assert b"the page" in await _get(port)
        began = trio.current_time()
    assert trio.current_time() - began < 2
    for stream in slow:
        await trio.aclose_forcefully(stream)
    assert [record for record in caplog.records if not record.name.startswith("py4j")] == []  # a Spark of other tests


async def test_more_connections_than_there_is_room_for_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    async with _serving() as port:
        held = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        for stream in held:
            await stream.send_all(_GET % b"/shown")
            await stream.receive_some(1)
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            assert b"the page" in await _get(port)
        await held.pop().aclose()
        with trio.fail_after(5):
            while True:
                try:
                    if b"the page" in await _get(port):
                        break
                except trio.BrokenResourceError:
                    await trio.lowlevel.checkpoint()
        for stream in held:
            await stream.aclose()


async def test_who_shows_no_token_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    async with _serving() as port, AsyncExitStack() as stack:
        shown = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        await shown.send_all(_GET % b"/shown")
        assert b"200" in await shown.receive_some()
        for _ in range(20):
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        assert b"the page" in await _get(port)
        await shown.send_all(_GET % b"/shown")
        answer = b""
        while b"the page" not in answer:
            answer += await shown.receive_some()


@pytest.mark.parametrize("size", [100_000, 5_000_000])
async def test_who_says_too_much_can_read_the_answer(size: int) -> None:
    async with _serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
        with trio.fail_after(10):
            await stream.send_all(head + bytes(size))
            answer = b""
            while piece := await stream.receive_some():
                answer += piece
    assert b"the page" in answer


async def test_a_failure_is_logged_and_told_to_that_browser_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with _serving() as port:
        with caplog.at_level(logging.ERROR, "iris"):
            assert (await _get(port, b"/fails")).startswith(b"HTTP/1.1 500")
        assert "it failed" in caplog.text
        assert b"the page" in await _get(port)


@pytest.mark.parametrize(
    "garbage", [b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"a" * 100_000]
)
async def test_what_is_no_request_ends_that_connection_alone(garbage: bytes) -> None:
    async with _serving() as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            with trio.fail_after(10):
                try:
                    await stream.send_all(garbage)
                    while await stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
        assert b"the page" in await _get(port)


LOOSE: Final = (
    b"GET / HTTP/1.1\nhost: a\n\n", b"GET / HTTP/1.1\r\nhost: a\r\nb: c\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n , gzip\r\n\r\n",
)  # fmt: skip


@pytest.mark.parametrize("sent", LOOSE)
async def test_lines_are_those_that_every_program_reads_alike(sent: bytes) -> None:
    async with _serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(sent)
        with trio.fail_after(10):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 400")


async def test_with_a_certificate_it_speaks_tls_and_waits_for_nobody_who_does_not(tmp_path: Path) -> None:
    file = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    async with _serving(tls) as port:
        silent = await trio.open_tcp_stream("127.0.0.1", port)
        trusted = ssl.create_default_context(cafile=file)
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        stream = trio.SSLStream(plain, trusted, server_hostname="localhost", https_compatible=True)
        await stream.send_all(_GET % b"/")
        answer = b""
        while b"the page" not in answer:
            answer += await stream.receive_some()
        await trio.aclose_forcefully(stream)
    async with silent:
        assert await silent.receive_some() == b""


async def test_a_connection_is_kept_for_the_next_request_and_a_head_has_no_body() -> None:
    async with _serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.fail_after(10):
            await stream.send_all(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n" + _GET % b"/")  # the second is sent ahead
            answer = b""
            while b"\r\n0\r\n\r\n" not in answer:
                answer += await stream.receive_some()
    first, second = answer.split(b"\r\n\r\n", 1)
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200")
    assert answer.count(b"the page") == 1


async def test_who_waits_to_be_told_to_go_on_is_told() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body[::-1]})

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with open_server(echo, listening, None), await trio.open_tcp_stream("127.0.0.1", port) as stream:
            with trio.fail_after(10):
                head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
                await stream.send_all(head)
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 100")
                await stream.send_all(b"abc")
                answer = b""
                while b"cba" not in answer:
                    answer += await stream.receive_some()


async def test_what_a_request_works_at_ends_when_its_browser_is_gone() -> None:
    ended = trio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()
        finally:
            ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with open_server(waiting, listening, None):
            async with await trio.open_tcp_stream("127.0.0.1", listening.getsockname()[1]) as stream:
                await stream.send_all(_GET % b"/")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            with trio.fail_after(5):
                await ended.wait()
