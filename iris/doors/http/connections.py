"""uvicorn's connections, with bounds for what its clients may do to them."""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from iris.doors.http.limits import HttpLimits, HttpStatistics

_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
    b"retry-after: 1\r\n\r\n"
    b'{"status": 503, "code": "too_many_connections", "detail": "this door has as many connections as it may"}\n'
)

_PARTING: Final = 1.0
"""Seconds that a client which is turned away has to read why, and to end the connection."""

_MAX_PARTING: Final = 256
"""Clients that have them at a time; others are cut off at once."""

_MAX_FRAGMENTS: Final = 1024
"""Frames of one WebSocket message: empty ones cost nothing of its size."""


def bounded_http(limits: HttpLimits, counted: HttpStatistics) -> type[H11Protocol]:
    """Return uvicorn's protocol with a bound for connections, and one for the time that a request's head may take."""
    parting: set[asyncio.Transport] = set()

    @final
    class Bounded(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _parting: asyncio.Transport | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if len(self.connections) >= limits.connections:
                counted.turned_away += 1
                self._turn_away(transport)
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
            if self._parting is not None:
                parting.discard(self._parting)
            if self.transport is not None:
                super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: Any) -> None:
            self._forget_head()
            super().handle_websocket_upgrade(event)

        def _turn_away(self, transport: asyncio.Transport) -> None:
            """Say why, and let the client read it: a socket that closes with unread bytes takes back what it said."""
            transport.write(_FULL)
            if len(parting) >= _MAX_PARTING or not transport.can_write_eof():
                transport.close()
                return
            self._parting = transport
            parting.add(transport)
            transport.write_eof()
            self._head = self.loop.call_later(_PARTING, transport.abort)

        def _await_head(self) -> None:
            self._head = self.loop.call_later(limits.head_timeout, self.transport.abort)

        def _forget_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    return Bounded


@final
class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which does not read while its client does not, and takes no message of endless pieces."""

    def pause_writing(self) -> None:
        """Leave what comes unread: each ping would add to what waits."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Any) -> None:
        """Take a further piece of a message."""
        if len(self.frames) >= _MAX_FRAGMENTS:
            self._refuse(1009, f"a message has at most {_MAX_FRAGMENTS} frames")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Pass a whole message on."""
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._refuse(1007, "a text that is no UTF-8")
                return
        super().send_receive_event_to_app()

    def _refuse(self, code: int, reason: str) -> None:
        self.frames = []
        if not self.close_sent:
            self.conn.fail(code, reason)
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
