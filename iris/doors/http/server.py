"""The web server of the door: uvicorn, which is given connections that were accepted here."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final, final

import uvicorn

import iris.aio
from iris.doors.clients import Clients
from iris.doors.http.app import make_app
from iris.doors.http.connections import BoundedWebSocket, bounded_http
from iris.doors.http.limits import HttpLimits, HttpStatistics

_log: Final = logging.getLogger("iris")

_LIMITS: Final = HttpLimits()

_HANDSHAKES: Final = 256
"""Handshakes of TLS that go on at a time.  Those that come then wait to be accepted."""


@final
class HttpDoor:
    """A door for HTTP.  Made by ``open_http_door``."""

    def __init__(self, counted: HttpStatistics, server: uvicorn.Server) -> None:
        self._counted = counted
        self._server = server

    def statistics(self) -> HttpStatistics:
        """Return a snapshot."""
        connections = len(self._server.server_state.connections)
        return replace(self._counted, connections=connections, problems=self._counted.problems.copy())


@asynccontextmanager
async def open_http_door(
    node: iris.aio.Node,
    clients: Clients,
    *,
    sockets: list[socket.socket],
    tls: ssl.SSLContext | None = None,
    origins: Sequence[str] = (),
    limits: HttpLimits = _LIMITS,
) -> AsyncGenerator[HttpDoor]:
    """Let clients use a node over HTTP for as long as the block lasts.

    Args:
        node: whose place is lent.
        clients: who may use it.
        sockets: where they come; bound, and listening or not.  They are closed.
        tls: for HTTPS.
        origins: of pages that may use it, ``https://HOST``; ``*`` for all.
        limits: of all clients together.

    Leaving the block ends all streams, waits a few seconds for requests and closes all connections.
    """
    counted = HttpStatistics()
    bounded = bounded_http(limits, counted)
    config = uvicorn.Config(
        make_app(node, clients, limits, counted, origins),
        http=bounded,
        ws=BoundedWebSocket,
        ws_max_size=limits.body,
        ws_per_message_deflate=False,
        lifespan="off",
        loop="none",
        log_config=None,
        log_level="error",  # what clients do wrong is no news: it is told to them, and counted
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(limits.close_timeout)),
        h11_max_incomplete_event_size=32 * 1024,
    )
    server = _Server(config)
    config.load()
    serving = asyncio.ensure_future(server.serve([]))

    def protocol() -> asyncio.Protocol:
        return bounded(config=config, server_state=server.server_state, app_state={})

    for one in sockets:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # pragma: no branch -- Linux; those that are accepted have it as well
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(limits.stall_timeout * 1000))
        one.listen(1024)
        one.setblocking(False)
    accepting = [asyncio.ensure_future(_accept(one, protocol, tls, limits.head_timeout)) for one in sockets]
    try:
        yield HttpDoor(counted, server)
    finally:
        for task in accepting:
            task.cancel()
        for one in sockets:
            one.close()
        clients.end_streams()
        server.should_exit = True
        await serving
        await asyncio.wait([*accepting, serving])


async def _accept(
    listener: socket.socket, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, within: float
) -> None:
    """Accept connections for ever.  uvicorn would let any number of them wait a minute in the handshake of TLS."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(_HANDSHAKES)
    tasks: set[asyncio.Task[None]] = set()

    async def greet(accepted: socket.socket) -> None:
        try:
            timeout = None if tls is None else within
            await loop.connect_accepted_socket(protocol, accepted, ssl=tls, ssl_handshake_timeout=timeout)
        except OSError:
            pass  # it is gone, or speaks no TLS
        finally:
            room.release()

    try:
        while True:
            await room.acquire()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("the door for HTTP cannot accept a connection: %s", error, extra={"door": "http"})
                room.release()
                await asyncio.sleep(1)
                continue
            task = asyncio.ensure_future(greet(accepted))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        await asyncio.sleep(0)  # each task has begun, and closes what it was given
        for task in tasks:
            task.cancel()


@final
class _Server(uvicorn.Server):
    """A server that leaves signals to the program it is part of."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield
