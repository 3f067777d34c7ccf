"""The endpoint and unknown clients: what is no request, slow clients, many at a time; the node goes on."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

import iris.node.telemetry.endpoint as module
from iris.node.telemetry import patient_listener
from iris.node.telemetry.endpoint import MetricsEndpoint, Page, open_endpoint, text_page

LARGE = b"x" * 1_000_000


async def hello(_: str) -> Page:
    await trio.lowlevel.checkpoint()
    return text_page(200, "hello")


async def large(_: str) -> Page:
    await trio.lowlevel.checkpoint()
    return Page(200, "text/plain", LARGE)


@asynccontextmanager
async def an_endpoint() -> AsyncIterator[MetricsEndpoint]:
    async with open_endpoint("127.0.0.1", 0, {"/hello": hello, "/large": large}) as endpoint:
        yield endpoint


async def sends(endpoint: MetricsEndpoint, request: bytes) -> bytes:
    """Return all that comes back, until the other end has closed."""
    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        await stream.send_all(request)
        await stream.send_eof()
        return b"".join([piece async for piece in stream])


def asking(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (asking("/hello"), 200, b"hello\n"),
        (asking("/hello?x=1"), 200, b"hello\n"),
        (b"GET /hello HTTP/1.0\r\n\r\n", 200, b"hello\n"),
        (asking("/hello", "HEAD"), 200, b""),
        (asking("/other"), 404, b"there are /hello, /large\n"),
        (asking("/hello", "POST"), 405, b"use GET\n"),
        (b"\x16\x03\x01\x02\x00\x01", 400, b"this is no request that can be read\n"),
        (b"GET /hello\r\n\r\n", 400, b"this is no request that can be read\n"),
        (b"GET /" + b"x" * 20_000, 431, b"this is no request that can be read\n"),
        (b"GET /hello HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, b"this is no request that can be read\n"),
        (b"GET /hello HTTP/1.1\nhost: a\n\n", 400, b"this is no request that can be read\n"),
        (b"GET /hello HTTP/1.1\r\nhost: a\r\nb: c\r\n d\r\n\r\n", 400, b"this is no request that can be read\n"),
        (b"GET ?x HTTP/1.1\r\nhost: a\r\n\r\n", 404, b"there are /hello, /large\n"),
    ],
    ids=[
        "plain",
        "query",
        "1.0",
        "head",
        "404",
        "405",
        "tls",
        "no version",
        "endless",
        "two hosts",
        "LF",
        "fold",
        "no path",
    ],
)
async def test_each_request_has_one_answer(request_: bytes, status: int, body: bytes) -> None:
    async with an_endpoint() as endpoint:
        answer = await sends(endpoint, request_)
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in head.lower()
        assert rest == body
        assert await sends(endpoint, b"") == b""
        assert (await sends(endpoint, asking("/hello"))).endswith(b"hello\n")


async def test_a_large_page_comes_whole() -> None:
    async with an_endpoint() as endpoint:
        assert (await sends(endpoint, asking("/large"))).endswith(b"\r\n\r\n" + LARGE)


async def test_who_sends_nothing_and_who_takes_nothing_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    async with an_endpoint() as endpoint:
        silent = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        taking_nothing = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        await taking_nothing.send_all(asking("/large"))
        async with silent, taking_nothing:
            with trio.fail_after(30):
                assert await silent.receive_some() == b""
                while endpoint.refused < 2:  # noqa: ASYNC110 -- only the counter shows it
                    await trio.sleep(0.01)
        assert (await sends(endpoint, asking("/hello"))).endswith(b"hello\n")


async def test_a_crowd_waits_in_the_queue_of_the_system_and_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 1.0)
    monkeypatch.setattr(module, "_RATE", 1000.0)
    most = served = 0

    async def count(accept: str) -> Page:
        nonlocal most, served
        served += 1
        most = max(most, served)
        await trio.sleep(0.01)
        served -= 1
        return await hello(accept)

    async with open_endpoint("127.0.0.1", 0, {"/hello": count}) as endpoint, trio.open_nursery() as nursery:
        idle = [await trio.open_tcp_stream(endpoint.host, endpoint.port) for _ in range(module.MAX_CONNECTIONS)]
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await sends(endpoint, asking("/hello")))

        for _ in range(3 * module.MAX_CONNECTIONS):
            nursery.start_soon(ask)
        with trio.fail_after(30):
            while len(answers) < 3 * module.MAX_CONNECTIONS:  # noqa: ASYNC110 -- of all tasks
                await trio.sleep(0.01)
        for stream in idle:
            await stream.aclose()
    assert all(answer.endswith(b"hello\n") for answer in answers)
    assert most <= module.MAX_CONNECTIONS


@pytest.mark.parametrize("once", range(3))
async def test_who_has_asked_pays_for_no_stall_of_the_process(monkeypatch: pytest.MonkeyPatch, once: int) -> None:
    """One more connection waits for a place meanwhile, and those that have one are due to leave it after the stall."""
    monkeypatch.setattr(module, "_IDLE", 1.0)
    async with an_endpoint() as endpoint:
        clients = [socket.create_connection((endpoint.host, endpoint.port)) for _ in range(module.MAX_CONNECTIONS + 1)]
        while len(endpoint._open) < module.MAX_CONNECTIONS:  # noqa: ASYNC110 -- of all tasks
            await trio.sleep(0.001)
        for client in clients:
            client.sendall(asking("/hello"))
        time.sleep(module._IDLE)  # noqa: ASYNC251 -- the stall
        for client in clients:
            with client, client.makefile("rb") as stream:
                assert (await trio.to_thread.run_sync(stream.read)).endswith(b"hello\n")
                client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("said", [b"", asking("/hello"), asking("/large")], ids=["nothing", "one request", "large"])
async def test_who_opens_many_connections_and_waits_keeps_nobody_out(said: bytes) -> None:
    """They say nothing, or do not end, or do not take their answers; with a patience of 5 s each."""
    async with an_endpoint() as endpoint, AsyncExitStack() as stack:
        for _ in range(2 * module.MAX_CONNECTIONS):
            stream = await stack.enter_async_context(await trio.open_tcp_stream(endpoint.host, endpoint.port))
            await stream.send_all(said)
        with trio.fail_after(4.0):
            assert (await sends(endpoint, asking("/hello"))).endswith(b"hello\n")


async def test_an_error_that_lasts_is_logged_once_and_ends_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient_listener, "_PAUSE", 0.01)
    accept, failures = trio.SocketListener.accept, [errno.EMFILE] * 5 + [errno.EBADF]

    async def fail(listener: trio.SocketListener) -> trio.SocketStream:
        if failures:
            await trio.lowlevel.checkpoint()
            raise OSError(failures.pop(), "it lasts")
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", fail)
    async with an_endpoint() as endpoint:
        assert (await sends(endpoint, asking("/hello"))).endswith(b"hello\n")
    assert [record.getMessage() for record in caplog.records] == ["metrics cannot be asked for: it lasts"]


async def test_no_more_requests_are_taken_in_a_second_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RATE", 10.0)
    async with an_endpoint() as endpoint:
        began = trio.current_time()
        for _ in range(15):
            await sends(endpoint, asking("/hello"))
        assert trio.current_time() - began >= 0.4, "ten at once, and then one in a tenth of a second"


async def test_a_page_that_cannot_be_made_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: str) -> Page:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("a bug")

    async with open_endpoint("127.0.0.1", 0, {"/hello": hello, "/bad": fail}) as endpoint:
        assert (await sends(endpoint, asking("/bad"))).startswith(b"HTTP/1.1 500 ")
        assert (await sends(endpoint, asking("/hello"))).endswith(b"hello\n")
    assert "a bug" in caplog.text


async def test_it_is_at_an_ipv6_address_too() -> None:
    async with open_endpoint("::1", 0, {"/hello": hello}) as endpoint:
        assert endpoint.url == f"http://[::1]:{endpoint.port}"
        assert (await sends(endpoint, asking("/hello"))).endswith(b"hello\n")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9100", 200),
        ("[::1]:9100", 200),
        ("localhost", 200),
        ("orders:9100", 200),
        ("orders.shop.svc.cluster.local:9100", 200),
        ("10.0.0.9", 200),
        (socket.gethostname(), 200),
        ("evil.example:9100", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("local.evil", 421),
        ("evil.example.", 421),
        ("", 421),
        ("[::1", 421),
    ],
)
async def test_a_page_whose_name_was_made_to_lead_here_reads_nothing(host: str, status: int) -> None:
    async with an_endpoint() as endpoint:
        answer = await sends(endpoint, f"GET /hello HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (b"hello" in answer) == (status == 200)
