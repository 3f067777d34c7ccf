"""The web server: hypercorn's connections on trio, which are accepted, bounded and ended here.

hypercorn's own ``serve`` takes any number of connections, and at its end waits for each one that does not read.  Where
all places are taken, the oldest connection of a stranger makes room, of whom no token is known.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast, final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp

from iris.cli.operators.dash.guard import ADMIT
from iris.kernel.tasks import open_background, protected_context
from iris.kernel.transport import keep_from_children
from iris.node.telemetry.patient_listener import PatientListener
from iris.node.telemetry.strict_http import StrictConnection

_log: Final = logging.getLogger("iris")

MAX_CONNECTIONS: Final = 512

_HEAD_TIMEOUT: Final = 5
"""Seconds for the handshake of TLS, and for the head of a request, the next one on a connection included."""

_STALL_TIMEOUT: Final = 30.0
"""Seconds that a page may take nothing of what was sent to it, before its connection is dropped."""

_PIECE: Final = 65_536

_UNREAD: Final = 5.0
"""Seconds for which is read, and forgotten, what a browser goes on sending that has its answer."""

_Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


@protected_context
async def open_server(app: ASGIApp, listening: socket.socket, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
    """Serve an application for the length of the block, which then ends all connections at once.

    Args:
        app: the application.
        listening: the socket to which browsers connect; it is closed.
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
    strangers: dict[trio.SocketStream, None] = {}

    async def serve(stream: _Stream) -> None:
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if len(open_now) >= MAX_CONNECTIONS:
            if not strangers:
                await trio.aclose_forcefully(transport)
                return
            oldest = next(iter(strangers))
            del strangers[oldest]
            open_now.discard(oldest)
            oldest.socket.close()
        open_now.add(transport)
        strangers[transport] = None
        state = ConnectionState({ADMIT: lambda: strangers.pop(transport, None)})
        try:
            await _StrictServer(wrapped, config, context, state, cast("trio.SSLStream[trio.SocketStream]", stream))
        except Exception:  # noqa: BLE001 -- what one browser sends must not end the page of others
            if transport in open_now:  # else it was ended here
                _log.exception("a connection of the page has failed", extra={"reason": "page"})
        finally:
            open_now.discard(transport)
            strangers.pop(transport, None)

    if hasattr(socket, "TCP_USER_TIMEOUT"):  # pragma: no branch -- Linux; connections that are accepted have it as well
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_STALL_TIMEOUT * 1000))
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(keep_from_children(listening)))
    listener = PatientListener(accepting, "the page cannot be asked for")
    listeners = [listener if tls is None else trio.SSLListener(listener, tls, https_compatible=True)]
    async with open_background() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, serve, listeners, handler_nursery=nursery))
        try:
            yield
        finally:
            while open_now:  # hypercorn shields what it writes
                open_now.pop().socket.close()
            nursery.cancel_scope.cancel()


@final
class _StrictServer(TCPServer):
    """hypercorn's connection, which takes HTTP as it is written.  A client that says too much can read its answers."""

    _is_parting = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reading = trio.CancelScope()

    async def protocol_send(self, event: Event) -> None:
        """Send, or end: for writing at once, for reading a little later.

        Closing a socket at once that has unread bytes would take back what was sent.
        """
        if not isinstance(event, Closed):
            await super().protocol_send(event)
            return
        if not self._is_parting:
            self._is_parting = True
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError, AttributeError):
                await self.stream.send_eof()  # TLS has none
            self._reading.deadline = trio.current_time() + _UNREAD
        await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        assert isinstance(self.protocol.protocol, H11Protocol)  # ALPN offers nothing else
        self.protocol.protocol.connection = StrictConnection(self.config.h11_max_incomplete_size)
        with self._reading:
            try:
                while data := await self.stream.receive_some(_PIECE):
                    if not self._is_parting:
                        await self.protocol.handle(RawData(bytes(data)))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        await self.protocol.handle(Closed())
