"""The web server: bounded, and ended by the block that opened it, whatever browsers do."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from starlette.types import Receive, Scope, Send

from iris.cli.operators.dash import server
from iris.cli.operators.dash.server import open_server
from tests.support.door_certificate import make_certificate

_GET = b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n"


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
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
    monkeypatch.setattr(server, "_HEAD_TIMEOUT", 1)  # hypercorn keeps one that was hung up for so long, too
    async with _serving() as port:
        held = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        for stream in held:
            await stream.send_all(_GET % b"/")
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
