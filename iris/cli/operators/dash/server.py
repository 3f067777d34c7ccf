"""The web server: HTTP/1.1 by h11, for one application; its connections are accepted, bounded and ended here.

Where all places are taken, the oldest connection of a stranger makes room, of whom no token is known.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from typing import Final, final
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message

from iris.cli.operators.dash.guard import ADMIT
from iris.kernel.tasks import open_background, protected_context
from iris.kernel.transport import keep_from_children
from iris.node.telemetry.patient_listener import PatientListener
from iris.node.telemetry.strict_http import StrictConnection

_logger: Final = logging.getLogger("iris")

MAX_CONNECTIONS: Final = 512

_HEAD_TIMEOUT: Final = 5
"""Seconds for the handshake of TLS, and for the head of a request, the next one on a connection included."""

_MAX_HEAD: Final = 16_384
"""Size limit of an incomplete head, and of what is sent ahead while a request is answered, in bytes."""

_STALL_TIMEOUT: Final = 30.0
"""Seconds that a page may take nothing of what was sent to it, before its connection is dropped."""

_PIECE: Final = 65_536

_UNREAD: Final = 5.0
"""Seconds for which is read, and forgotten, what a browser goes on sending that has its answer."""

_Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@protected_context
async def open_server(app: ASGIApp, listening: socket.socket, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
    """Serve an application for the length of the block, which then ends all connections at once.

    Args:
        app: the application.
        listening: the socket to which browsers connect; it is closed.
        tls: for HTTPS.
    """
    open_now: set[trio.CancelScope] = set()
    unauthenticated: dict[trio.CancelScope, None] = {}

    async def serve(stream: _Stream) -> None:
        if len(open_now) >= MAX_CONNECTIONS:
            if not unauthenticated:
                return
            oldest = next(iter(unauthenticated))
            del unauthenticated[oldest]
            open_now.discard(oldest)
            oldest.cancel()
        with trio.CancelScope() as scope:
            open_now.add(scope)
            unauthenticated[scope] = None
            try:
                await _Connection(app, stream, scope, {ADMIT: lambda: unauthenticated.pop(scope, None)}).run()
            except Exception:  # what one browser sends must not end the page of others
                _logger.exception("a connection of the page has failed", extra={"reason": "page"})
            finally:
                open_now.discard(scope)
                unauthenticated.pop(scope, None)

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
            nursery.cancel_scope.cancel()


@final
class _Connection:
    """One connection: its requests are answered one after the other.

    Args:
        app: the application.
        stream: the connection; closed by the caller.
        scope: scope of the connection, cancelled when the browser is found to be gone.
        state: state of the connection, as requests have it.
    """

    def __init__(self, app: ASGIApp, stream: _Stream, scope: trio.CancelScope, state: Mapping[str, object]) -> None:
        self._app = app
        self._stream = stream
        self._scope = scope
        self._state = state
        self._machine = StrictConnection(_MAX_HEAD)
        self._is_head = False
        self._is_gone = False

    async def run(self) -> None:
        """Answer until the browser closes the connection, is silent for too long, or says what is no request."""
        with suppress(*_GONE):
            if isinstance(self._stream, trio.SSLStream):
                with trio.move_on_after(_HEAD_TIMEOUT) as limit:
                    await self._stream.do_handshake()
                if limit.cancelled_caught:
                    return
            while (request := await self._next_request()) is not None:
                await self._answer(request)
                if not self._is_next_possible():
                    break
                self._machine.start_next_cycle()
            await self._part()

    async def _next_request(self) -> h11.Request | None:
        """Return the next request; None if there is none."""
        with trio.move_on_after(_HEAD_TIMEOUT):
            try:
                while (event := self._machine.next_event()) is h11.NEED_DATA:
                    self._machine.receive_data(bytes(await self._stream.receive_some(_PIECE)))
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return None
            return event if isinstance(event, h11.Request) else None
        return None

    async def _answer(self, request: h11.Request) -> None:
        self._is_head = request.method == b"HEAD"
        path, _, query = request.target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "https" if isinstance(self._stream, trio.SSLStream) else "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "state": self._state,
        }
        try:
            await self._app(scope, self._receive, self._send)
        except Exception:
            _logger.exception("the page cannot answer a request", extra={"reason": "page"})
        if self._machine.their_state is h11.ERROR:
            await self._refuse(400)
        elif not self._is_gone:
            await self._refuse(500)

    def _is_next_possible(self) -> bool:
        """Return whether the request was read to its end and answered, and the connection may be used again."""
        with suppress(h11.RemoteProtocolError):
            while self._machine.their_state is h11.SEND_BODY and self._machine.next_event() is not h11.NEED_DATA:
                pass
        return self._machine.their_state is h11.DONE and self._machine.our_state is h11.DONE

    async def _receive(self) -> Message:
        """Return the next piece of the request's body; when all of it was returned, wait until the browser is gone."""
        try:
            while self._machine.their_state is h11.SEND_BODY:
                event = self._machine.next_event()
                if isinstance(event, h11.Data):
                    return {"type": "http.request", "body": bytes(event.data), "more_body": True}
                if isinstance(event, h11.EndOfMessage):
                    return {"type": "http.request", "body": b"", "more_body": False}
                if self._machine.they_are_waiting_for_100_continue:
                    await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                self._machine.receive_data(bytes(await self._stream.receive_some(_PIECE)))
            while not self._is_gone and len(self._machine.trailing_data[0]) <= _MAX_HEAD:
                data = await self._stream.receive_some(_PIECE)
                if not data:
                    break
                self._machine.receive_data(bytes(data))
        except (h11.RemoteProtocolError, *_GONE):
            pass
        self._is_gone = True
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        """Send a part of the answer; to nobody if the browser is gone."""
        if self._is_gone:
            await trio.lowlevel.checkpoint()
        elif message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"date", formatdate(usegmt=True).encode())]
            await self._write(h11.Response(status_code=message["status"], headers=headers))
        else:
            body: bytes = message.get("body", b"")
            if body and not self._is_head:
                await self._write(h11.Data(data=body))
            if not message.get("more_body", False):
                await self._write(h11.EndOfMessage())

    async def _write(self, event: h11.Event) -> None:
        try:
            await self._stream.send_all(self._machine.send(event) or b"")
        except _GONE:
            self._is_gone = True
            self._scope.cancel()  # and with it all that the application does for this browser
            await trio.lowlevel.checkpoint()

    async def _refuse(self, status: int) -> None:
        """Answer in the place of the application, if nothing was answered."""
        if self._machine.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-length", "0"), ("connection", "close")]
            await self._write(h11.Response(status_code=status, headers=headers))
            await self._write(h11.EndOfMessage())

    async def _part(self) -> None:
        """End the connection so that the browser can read what was sent to it.

        Closing a socket at once that has unread bytes would take back what was sent.
        """
        if isinstance(self._stream, trio.SocketStream):  # TLS has no end in one direction
            await self._stream.send_eof()
        with trio.move_on_after(_UNREAD):
            while await self._stream.receive_some(_PIECE):
                pass
