"""The web server: hypercorn's connections on trio, which are accepted, bounded and ended here.

hypercorn's own ``serve`` takes any number of connections, and at its end waits for each one that does not read.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp

from iris.kernel.tasks import open_background, protected_context

_log: Final = logging.getLogger("iris")

MAX_CONNECTIONS: Final = 512

_HEAD_TIMEOUT: Final = 5
"""Seconds for the handshake of TLS, and for the head of a request, the next one on a connection included."""

_STALL_TIMEOUT: Final = 30.0
"""Seconds that a page may take nothing of what was sent to it, before its connection is dropped."""

_Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


@protected_context
async def open_server(app: ASGIApp, listening: socket.socket, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
    """Serve an application for the length of the block, which then ends all connections at once.

    Args:
        app: the application.
        listening: where browsers come; it is closed.
        tls: for HTTPS.
    """
    config = Config()
    config.errorlog = _log
    config.include_server_header = False
    config.keep_alive_timeout = config.ssl_handshake_timeout = _HEAD_TIMEOUT
    config.alpn_protocols = ["http/1.1"]
    context = WorkerContext(None)
    wrapped = ASGIWrapper(cast("Any", app))
    open_now: set[trio.SocketStream] = set()

    async def serve(stream: _Stream) -> None:
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if len(open_now) >= MAX_CONNECTIONS:
            await trio.aclose_forcefully(transport)
            return
        open_now.add(transport)
        try:
            await TCPServer(
                wrapped, config, context, ConnectionState({}), cast("trio.SSLStream[trio.SocketStream]", stream)
            )
        except Exception:  # noqa: BLE001 -- what one browser sends must not end the page of others
            if transport in open_now:  # else it was ended here
                _log.exception("a connection of the page has failed", extra={"reason": "page"})
        finally:
            open_now.discard(transport)

    if hasattr(socket, "TCP_USER_TIMEOUT"):  # pragma: no branch -- Linux; connections that are accepted have it as well
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_STALL_TIMEOUT * 1000))
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    listeners = [listener if tls is None else trio.SSLListener(listener, tls, https_compatible=True)]
    async with open_background() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, serve, listeners, handler_nursery=nursery))
        try:
            yield
        finally:
            while open_now:  # hypercorn shields what it writes
                open_now.pop().socket.close()
            nursery.cancel_scope.cancel()
