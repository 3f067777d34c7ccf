"""The web server of the door: uvicorn, with bounds for what clients may do before they have said who they are."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

import iris
import iris.aio
from iris.doors.clients import Clients
from iris.doors.http.app import make_app

_HEADER_TIMEOUT: Final = 10.0
"""Seconds that a client may take to send the head of a request, and may keep a connection without one."""

_STALLED: Final = 30_000
"""Milliseconds that a client may leave data unread before the system drops its connection."""

_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
    b"retry-after: 1\r\n\r\n"
    b'{"status": 503, "code": "too_many_connections", "detail": "this door has as many connections as it may"}\n'
)
_RESET: Final = 3.0
"""Seconds that requests have to end when the door closes."""


@asynccontextmanager
async def open_http_door(
    node: iris.aio.Node,
    clients: Clients,
    sockets: list[socket.socket],
    *,
    certificate: Path | None = None,
    private_key: Path | None = None,
    origins: Sequence[str] = (),
    max_connections: int = 1000,
    max_body: int = iris.Config().max_payload,
) -> AsyncGenerator[None]:
    """Let clients use a node over HTTP for as long as the block lasts.

    Args:
        node: whose place is lent.
        clients: who may use it.
        sockets: where they come; bound, and listening or not.  They are closed.
        certificate: a file with a certificate chain, for HTTPS.
        private_key: the file with its key.
        origins: of pages that may use it, ``https://HOST``; ``*`` for all.
        max_connections: at a time; who comes then is refused with the status 503.
        max_body: bytes of a request's body, and of a WebSocket's message.

    Leaving the block ends all streams, waits a few seconds for requests and closes all connections.
    """
    app = make_app(node, clients, max_body=max_body, origins=origins)
    config = uvicorn.Config(
        app,
        http=_bounded(max_connections),
        ws="websockets-sansio",
        ws_max_size=max_body,
        ws_per_message_deflate=False,
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(_RESET),
        h11_max_incomplete_event_size=32 * 1024,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
        log_level="warning",
    )
    for one in sockets:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # pragma: no branch -- Linux
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED)
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets))
    try:
        yield
    finally:
        clients.end_streams()
        server.should_exit = True
        await serving
        for one in sockets:
            one.close()


@final
class _Server(uvicorn.Server):
    """A server that leaves signals to the program it is part of."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


def _bounded(max_connections: int) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a bound for connections, and one for the time that a request's head may take."""

    @final
    class Bounded(H11Protocol):
        _head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if len(self.connections) >= max_connections:
                transport.write(_FULL)
                transport.close()
                return
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            if self.transport is None:  # it was refused
                return
            super().data_received(data)
            cycle: Any = self.cycle
            if cycle is not None and not cycle.response_complete:
                self._forget_head()
            elif self._head is None and not self.transport.is_closing():
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            if self.transport is not None:
                super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: Any) -> None:
            self._forget_head()
            super().handle_websocket_upgrade(event)

        def _await_head(self) -> None:
            self._head = self.loop.call_later(_HEADER_TIMEOUT, self.transport.abort)

        def _forget_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    return Bounded
