"""A door for tests: a real one in the local realm of a test, with a member behind it and a client in front."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import iris
import iris.aio
from iris.doors import grant
from iris.doors.clients import ClientLimits, Clients
from iris.doors.http import HttpDoor, HttpLimits, open_http_door
from tests.support.async_tests import AsyncTest, plain_test, run_in_realm

NOW = 1_000_000.0


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Counted:
    """Counters of the member behind the door."""

    stopped: int = 0
    told: list[Any] = field(default_factory=list)
    tunnels: list[str] = field(default_factory=list)
    working: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)


def greeters(counted: Counted) -> iris.Service:
    """Return a service with a handler for each thing that may happen."""
    service = iris.Service("greeters")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @service.request("headers")
    async def headers(request: iris.Request) -> object:
        return dict(request.headers)

    @service.request("fail")
    async def fail(request: iris.Request) -> object:
        raise KeyError(request.payload)

    @service.request("square")
    async def square(number: int) -> int:
        return number * number

    @service.request("nested")
    async def nested(_: iris.Request) -> object:
        return {"bytes": b"\x00"}

    @service.request("never")
    async def never(_: iris.Request) -> object:
        counted.working.set()
        try:
            return await asyncio.Event().wait()
        finally:
            counted.stopped += 1

    @service.broadcast
    async def note(message: iris.Message) -> None:
        counted.told.append(message.payload)

    @service.tunnel
    async def mirror(tunnel: iris.Tunnel) -> None:
        try:
            async for payload in tunnel:
                await tunnel.send(payload)
            counted.tunnels.append("finished")
        except iris.TunnelBroken:
            counted.tunnels.append("broken")

    @service.request("large")
    async def large(size: int) -> bytes:
        return bytes(size)

    @service.tunnel("stuck")
    async def stuck(tunnel: iris.Tunnel) -> None:
        try:
            await counted.release.wait()
            async for _ in tunnel:
                pass
            counted.tunnels.append("finished")
        except iris.TunnelBroken:
            counted.tunnels.append("broken")

    @service.tunnel("count")
    async def count(tunnel: iris.Tunnel) -> None:
        for number in range(100):
            await tunnel.send(number)

    return service


@dataclass
class Place:
    """A door and what is around it."""

    node: iris.aio.Node
    member: iris.aio.Node
    door: HttpDoor
    clients: Clients
    tokens: Path
    token: str
    address: tuple[str, int]
    counted: Counted

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    async def post(self, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Post bytes, or anything else as JSON, with the token unless ``headers`` are given."""
        return await self.fetch("POST", path, body, headers)

    async def fetch(self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Answer:
        sent = dict(self.bearer if headers is None else headers)
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent["content-type"] = "application/json"

        def ask() -> Answer:
            connection = http.client.HTTPConnection(*self.address, timeout=60)
            try:
                connection.request(method, path, body, sent)
                answer = connection.getresponse()
                return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
            finally:
                connection.close()

        return await asyncio.to_thread(ask)

    def dial(self, **options: Any) -> AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a bare connection; see ``dial``."""
        return dial(self.address, **options)

    def head(self, method: str, path: str, *more: str) -> bytes:
        """Return the head of a request, with the token, ready to be sent."""
        lines = (f"{method} {path} HTTP/1.1", "host: door", f"authorization: Bearer {self.token}", *more, "", "")
        return "\r\n".join(lines).encode()

    async def until_held(self, size: int) -> None:
        """Wait until so many bytes are kept for the client."""
        while self.clients.named("web").statistics().bytes != size:  # noqa: ASYNC110 -- nobody says when it changes
            await asyncio.sleep(0.005)

    @asynccontextmanager
    async def follow(self, query: str, *more: str, **options: Any) -> AsyncGenerator[asyncio.StreamReader]:
        """Open a stream of events, and read its head; ``more`` are lines of that of the request."""
        async with self.dial(**options) as (reader, writer):
            writer.write(self.head("GET", f"/subscribe?{query}", *more))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            yield reader


@asynccontextmanager
async def dial(
    address: tuple[str, int], **options: Any
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a bare connection; options are ``SO_RCVBUF`` and those of ``asyncio.open_connection``."""
    with socket.socket() as opened:
        if "SO_RCVBUF" in options:  # before it connects: the other side is sent a window then, and would wait for it
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.pop("SO_RCVBUF"))
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, address)
        reader, writer = await asyncio.open_connection(sock=opened, **options)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


Run = Callable[..., None]
"""Runs a program of asyncio with a door: ``run(work, **options of open_place)``."""


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side ends the connection, in whatever way."""
    read = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(65_536):
            read += piece
    return read


async def next_event(reader: asyncio.StreamReader) -> tuple[str, Any]:
    """Read one server-sent event: its kind and data."""
    kind = "message"
    while True:
        read = await reader.readline()
        assert read, "the stream has ended"
        line = read.decode().rstrip()
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return kind, json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def open_place(
    tmp_path: Path,
    limits: ClientLimits | None = None,
    rights: Mapping[str, Any] | None = None,
    door_limits: HttpLimits | None = None,
    send_buffer: int | None = None,
    **options: Any,
) -> AsyncGenerator[Place]:
    """Open a door for HTTP and a member of the cluster ``greeters``; ``send_buffer`` is the system's, in bytes."""
    tokens, counted = tmp_path / "tokens", Counted()
    given: Any = rights or {"call": (">",), "publish": (">",), "subscribe": (">",)}
    token = grant(tokens, "web", **given)
    clients = Clients(tokens, lambda: NOW, limits or ClientLimits())
    made = socket.create_server(("127.0.0.1", 0), backlog=1024)
    if send_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    async with (
        iris.aio.open_node("greeters") as member,
        member.join("greeters", greeters(counted)),
        iris.aio.open_node("door") as node,
    ):
        await node.wait_for("greeters")
        address = made.getsockname()
        async with open_http_door(node, clients, sockets=[made], limits=door_limits or HttpLimits(), **options) as door:
            yield Place(node, member, door, clients, tokens, token, address, counted)


def runner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_one: Callable[..., AbstractAsyncContextManager[Any]],
    within: float,
) -> Run:
    """Return what runs a program with a door, ``run(work, **options)``, and checks that the door has left no task.

    Args:
        tmp_path: where its realm is.
        monkeypatch: of the test.
        open_one: opens a door; gets the path and the options.
        within: seconds that the program may take.
    """

    def run(work: Callable[[Any], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            before = asyncio.all_tasks()
            async with open_one(tmp_path, **options) as place:
                async with asyncio.timeout(within):
                    await work(place)
            assert asyncio.all_tasks() == before

        run_in_realm(tmp_path, monkeypatch, main)

    return run


def with_door(
    runner: str = "run", *, patched: Mapping[str, Any] | None = None, **options: Any
) -> Callable[[AsyncTest], Callable[..., None]]:
    """Run a test with a door: an async function of the place; its other parameters are fixtures.

    Args:
        runner: fixture that runs it.
        patched: constants of modules, by their dotted names, and what they are meanwhile.
        options: of that, which are those of ``open_place``.
    """

    def at_door(run: Run, work: AsyncTest) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (patched or {}).items():
                patch.setattr(name, value)
            run(work, **options)

    def decorate(test: AsyncTest) -> Callable[..., None]:
        return plain_test(test, at_door, runner, given=1)

    return decorate
