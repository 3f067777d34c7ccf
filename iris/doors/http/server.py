"""The web server of the door: uvicorn, which is given connections that were accepted here."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Final, final

import uvicorn

import iris.aio
from iris.doors.accepting import accept
from iris.doors.clients import Clients
from iris.doors.closing import to_the_end
from iris.doors.http.app import make_app, make_full_app
from iris.doors.http.bridging import DoorBridge
from iris.doors.http.connections import BoundedWebSocket, bounded_http
from iris.doors.http.limits import HttpLimits, HttpStatistics
from iris.doors.http.places import Places
from iris.doors.programs import ServedClusters
from iris.doors.reporting import reporting

_logger: Final = logging.getLogger("iris")

_LIMITS: Final = HttpLimits()


class _ToLog(logging.Handler):
    """Puts what uvicorn has to tell into the log of Iris: it is about the door's own failures."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it, but not that what still went on was stopped when the door closed."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return
        _logger.log(
            record.levelno, "the door for HTTP: %s", record.getMessage(), exc_info=record.exc_info,
            extra={"door": "http"},
        )  # fmt: skip


@final
class HttpDoor:
    """A door for HTTP.  Made by ``open_http_door``."""

    def __init__(
        self, counted: HttpStatistics, server: uvicorn.Server, clusters: ServedClusters, bridge: DoorBridge
    ) -> None:
        self._counted = counted
        self._server = server
        self._clusters = clusters
        self._bridge = bridge

    def statistics(self) -> HttpStatistics:
        """Return a snapshot."""
        connections = len(self._server.server_state.connections)
        programs = self._clusters.programs + self._bridge.programs
        return replace(
            self._counted, connections=connections, refused=self._counted.refused.copy(), programs=programs,
            paused=self._counted.paused + self._bridge.paused, unheard=self._clusters.missed,
        )  # fmt: skip


@asynccontextmanager
async def open_http_door(
    node: iris.aio.Node,
    clients: Clients,
    clusters: ServedClusters | None = None,
    *,
    sockets: list[socket.socket],
    tls: ssl.SSLContext | None = None,
    origins: Sequence[str] = (),
    bridge: str = "bridge",
    limits: HttpLimits = _LIMITS,
) -> AsyncGenerator[HttpDoor]:
    """Let clients use a node over HTTP for as long as the block lasts.

    Args:
        node: node whose place is lent.
        clients: clients that may use it.
        clusters: clusters that the node serves for programs of other doors as well, which end with the first of these
            doors.  None: this door's own.
        sockets: sockets to which they connect; bound, and listening or not.  They are closed.
        tls: context for HTTPS.  None for plain HTTP.
        origins: origins of pages that may use it, ``https://HOST``; ``*`` for all.
        bridge: cluster of the bridge whose jobs, log and leases are lent.
        limits: limits of all clients together.

    Leaving the block has programs drain that serve or use the bridge, ends all streams, waits a few seconds for
    requests and closes all connections, also if it is cancelled meanwhile.
    """
    counted, clusters = HttpStatistics(), clusters or ServedClusters(node, bridge)
    behind = DoorBridge(node, bridge, node._inner._config.drain_timeout)
    places = Places(limits.connections, counted)
    bounded = bounded_http(limits, counted, places, clients.unauthenticated, make_full_app(origins))
    config = uvicorn.Config(
        make_app(node, clients, clusters, behind, limits, counted, origins),
        http=bounded,
        ws=BoundedWebSocket,
        ws_max_size=limits.body,
        ws_per_message_deflate=False,
        ws_ping_interval=limits.ping,
        ws_ping_timeout=limits.ping_timeout,
        lifespan="off",
        loop="none",
        log_config=None,
        log_level="error",  # what clients do wrong is no news: it is told to them, and counted
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(limits.close_timeout)),
    )
    log = logging.getLogger("uvicorn.error")
    log.handlers, log.propagate = [_ToLog()], False
    server = _Server(config)
    config.load()
    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(server.serve([]))

    def protocol() -> asyncio.Protocol:
        return bounded(config=config, server_state=server.server_state, app_state={})

    for one in sockets:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # pragma: no branch -- Linux; those that are accepted have it as well
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(limits.stall_timeout * 1000))
        one.listen(1024)
        one.setblocking(False)

    async def greet(accepted: socket.socket) -> None:
        """Do the handshake of TLS.  uvicorn would let any number of them wait for a minute."""
        timeout = None if tls is None else limits.head_timeout
        try:
            async with places.coming(server.server_state.connections):
                with suppress(OSError):  # it is gone, or speaks no TLS
                    connect = loop.connect_accepted_socket(protocol, accepted, ssl=tls, ssl_handshake_timeout=timeout)
                    await clients.unauthenticated.metered(connect)
        except asyncio.CancelledError:
            accepted.close()
            raise

    accepting = [asyncio.ensure_future(accept(one, "HTTP", clients.unauthenticated, greet)) for one in sockets]
    following = asyncio.ensure_future(behind.follow())

    async def close() -> None:
        for task in accepting:
            task.cancel()
        for one in sockets:
            one.close()
        await asyncio.gather(clusters.close(), behind.close())
        clients.end_streams()
        server.should_exit = True
        await serving
        await behind.end()
        following.cancel()
        await asyncio.wait([*accepting, serving, following])

    try:
        door = HttpDoor(counted, server, clusters, behind)
        with reporting(node, "http", door.statistics):
            yield door
    finally:
        await to_the_end(close())


@final
class _Server(uvicorn.Server):
    """A server that leaves signals to the program it is part of."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield
