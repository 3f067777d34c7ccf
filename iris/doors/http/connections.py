"""uvicorn's connections, with bounds for what its clients may do to them.

- A connection has the event loop for about a millisecond: what has arrived is read in pieces, as 256 KiB of tiny frames
  or chunks would keep all others waiting for seconds.  The time is its client's (``Processor``).  Of a stranger the
  first piece and the first request are in the time of those who come, all else is in that of all strangers together:
  who shows a token does not wait for those who go on without one.
- One whose client has shown no token yet is a stranger's.  Where all places are taken, the oldest of these makes room;
  if there is none, who comes then is told that the door is full.
- Who is answered before all that it has sent was read can read the answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, cast, final

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response as Handshake
from websockets.server import ServerProtocol

from iris.doors.http.answering import refusal
from iris.doors.http.limits import HttpLimits, HttpStatistics
from iris.doors.http.places import Places
from iris.doors.problems import Problem
from iris.doors.processor import Processor, Stopwatch, metered
from iris.node.telemetry.strict_http import StrictConnection

MAX_HEAD: Final = 32 * 1024
"""Size limit of the head of a request, in bytes."""

_MAX_LINES: Final = 256
"""Lines of it: each takes as long to read as hundreds of bytes."""

MAX_PATH: Final = 2048
"""Size limit of an address's path, in bytes: each of its escapes takes as long to read as a hundred bytes."""

_CONTROL: Final = re.compile(rb"[\x00-\x1f]|%[01][0-9A-Fa-f]")

_PARTING: Final = 1.0
"""Seconds that a client has to ask, and to read that the door is full."""

_MAX_PARTING: Final = 256
"""Clients that have them at a time; others are cut off at once."""

_UNREAD: Final = 5.0
"""Seconds for which is read, and forgotten, what a client goes on sending that has its answer."""

ADMIT: Final = "admit"
"""Key in the state of a request: function to call with its client when its token counts."""

_LEAVE: Final = "leave"
_PROCESSOR: Final = "processor"
"""Keys there as well: function to call when a tunnel's connection has ended, and the one that names its processor."""

_UNREADABLE: Final = Problem(
    400, "malformed",
    f"this is no request of HTTP/1.1 that can be read: its head has at most {MAX_HEAD} bytes and {_MAX_LINES} lines, a "
    "host, and a content-length or a transfer-encoding; lines end with CR and LF; its address has a path of at most "
    f"{MAX_PATH} bytes, without control characters",
)  # fmt: skip

_MAX_FRAGMENTS: Final = 1024
"""Frames of one WebSocket message: empty ones cost nothing of its size."""

_MESSAGE_WITHIN: Final = 30.0
"""Seconds that a WebSocket message may take from its first byte to its last."""

_CLOSING: Final = 3.0
"""Seconds that a client has to answer the close of a WebSocket."""

_MIN_PIECE: Final = 64
_MAX_PIECE: Final = 65_536
_TURN: Final = 0.001
"""Seconds of one turn of reading: the next one reads twice as many bytes if it took less, half if more."""


class _PieceReader(Protocol):
    """A connection that reads what its client sends piece by piece."""

    def feed(self, piece: bytes) -> None:
        """Read a piece."""
        ...

    def wants_more(self) -> bool:
        """Return whether its transport is to be read.  Asked when nothing waits any more."""
        ...

    def processor(self) -> Processor:
        """Return the processor whose time is used.  Asked after the first piece."""
        ...


class _PartingConnection(Protocol):
    """A connection that reads on for a while after its end, so that its client can read the answer."""

    def part(self) -> None:
        """End the connection.  May be called twice."""
        ...

    def is_parting(self) -> bool:
        """Return whether its end has begun."""
        ...


@final
class _Turns:
    """Passes on what a connection has sent, a piece at a time, so that others have turns in between.

    Args:
        transport: transport that is not read while something waits here.
        connection: the connection.
        first: processor whose time the first piece uses.
    """

    def __init__(self, transport: asyncio.Transport, connection: _PieceReader, first: Processor) -> None:
        self._transport = transport
        self._connection = connection
        self._whose: Callable[[], Processor] = lambda: first
        self._rest = bytearray()
        self._piece = 4096
        self._next: asyncio.Future[None] | None = None
        self._ended = False

    def add(self, data: bytes) -> None:
        """Take what has arrived."""
        self._rest += data
        if self._next is not None:
            self._transport.pause_reading()
        elif self._whose().is_ahead():
            self._wait()
        else:
            self._go_on()

    def end(self) -> None:
        """Forget what waits."""
        self._ended = True
        self._rest.clear()
        if self._next is not None:
            self._next.cancel()

    def move(self) -> bytes:
        """Forget what waits, and return it: another one reads it from now on."""
        rest = bytes(self._rest)
        self.end()
        return rest

    def _wait(self) -> None:
        self._transport.pause_reading()
        self._next = self._whose().turn()
        self._next.add_done_callback(lambda turn: None if turn.cancelled() or self._ended else self._go_on())

    def _go_on(self) -> None:
        self._next = None
        piece = bytes(self._rest[: self._piece])
        del self._rest[: self._piece]
        whose, self._whose = self._whose, self._connection.processor
        watch = Stopwatch()
        self._connection.feed(piece)
        took = watch.seconds()
        whose().spend(took)
        self._piece = min(2 * self._piece, _MAX_PIECE) if took < _TURN else max(self._piece // 2, _MIN_PIECE)
        if self._ended or self._transport.is_closing():
            return
        if self._rest:
            self._wait()
        elif self._connection.wants_more():
            self._transport.resume_reading()


@final
class _Connection(StrictConnection):
    """h11's machine, which takes no endless head, and none that two programs may understand in two ways.

    Attributes:
        is_head: True if the last request was HEAD, whose answer has no body.
    """

    is_head = False

    def next_event(self) -> Any:
        """Return what the client has said next; raise h11.RemoteProtocolError unless it is HTTP that is taken here."""
        if self.their_state is h11.IDLE:
            head = self.trailing_data[0].partition(b"\r\n\r\n")[0]
            if len(head) > MAX_HEAD or head.count(b"\n") > _MAX_LINES:
                raise h11.RemoteProtocolError(f"a head has at most {MAX_HEAD} bytes and {_MAX_LINES} lines")
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.is_head = event.method == b"HEAD"
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("a body has a content-length or a transfer-encoding, not both")
            path = event.target.partition(b"?")[0]
            if not 0 < len(path) <= MAX_PATH or _CONTROL.search(path):
                raise h11.RemoteProtocolError("an address has a short path without control characters")
        return event


@final
class _Transport:
    """The transport of a connection, which ``close`` ends so that the client can read what was sent to it."""

    def __init__(self, transport: asyncio.Transport, connection: _PartingConnection) -> None:
        self._transport = transport
        self._connection = connection
        self.close = connection.part

    def is_closing(self) -> bool:
        """Return whether it has been closed."""
        return self._connection.is_parting() or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        """Return all else that a transport has."""
        return getattr(self._transport, name)


def bounded_http(
    limits: HttpLimits, counted: HttpStatistics, places: Places, coming: Processor, full: ASGIApp
) -> type[H11Protocol]:
    """Return uvicorn's protocol with a bound for connections, and one for the time that a request's head may take.

    Args:
        limits: limits of all clients together.
        counted: counters of what is done.
        places: places for connections.
        coming: processor of connections that are coming.
        full: application that answers that the door is full.
    """

    @final
    class Bounded(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _turns: _Turns
        _raw: asyncio.Transport
        _is_refused = False
        _is_upgraded = False
        _has_asked = False
        conn: _Connection
        _end: asyncio.TimerHandle | None = None
        """Timer that ends the wait for what the client still sends.  None while there is no such wait."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.conn = _Connection(MAX_HEAD)
            state: dict[str, Any] = {
                ADMIT: partial(places.admit, self),
                _LEAVE: partial(places.leave, self),
                _PROCESSOR: partial(places.processor_of, self),
            }
            self.app_state = state
            self.app = self._metered(self.app)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            is_full = places.are_taken(self.connections)
            if is_full:
                is_full = not places.make_room()
                counted.turned_away += is_full
            if is_full and len(places.parting) >= _MAX_PARTING:
                self._is_refused = True
                transport.abort()
                return
            super().connection_made(transport)
            self._raw = transport
            self.transport = cast("asyncio.Transport", _Transport(transport, self))
            self._turns = _Turns(self.transport, self, coming)
            if is_full:
                places.parting.add(self)
                self.app = self._metered(full)
                self._head = self.loop.call_later(_PARTING, transport.abort)
            else:
                places.begin(self, self._make_room)
                self._await_head()

        def data_received(self, data: bytes) -> None:
            if not self._is_refused and self._end is None:
                self._turns.add(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._is_refused:
                return
            self._stop_head()
            if self._end is not None:
                self._end.cancel()
            self._turns.end()
            places.leave(self)
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._stop_head()
            self._is_upgraded = True
            self.transport = self._raw
            super().handle_websocket_upgrade(event)
            early = self.conn.trailing_data[0] + self._turns.move()
            del self.conn, self.scope, self.headers  # 3 KiB, of no use from here on
            if early:
                self.transport.get_protocol().data_received(early)  # type: ignore[attr-defined]

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002 -- the same for all
            if self.cycle is not None:  # what it says is heard by nobody any more
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                counted.refused[400] += 1
                answer = refusal(_UNREADABLE)
                headers = [*answer.raw_headers, (b"connection", b"close")]
                for event in (
                    h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                    h11.Data(data=b"" if self.conn.is_head else bytes(answer.body)),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self._turns.end()
            self.transport.close()

        def shutdown(self) -> None:
            if self._end is None:
                super().shutdown()
            else:
                self._raw.abort()

        def _should_upgrade_to_ws(self) -> bool:
            return self not in places.parting and super()._should_upgrade_to_ws()

        def _make_room(self) -> None:
            """End at once: another one has this place."""
            self.connections.discard(self)
            self._raw.abort()

        def wants_more(self) -> bool:
            """Return whether it is to be read."""
            return not self.flow.read_paused

        def processor(self) -> Processor:
            """Return the processor whose time it uses."""
            return places.processor_of(self)

        def is_parting(self) -> bool:
            """Return whether its end has begun."""
            return self._end is not None

        def part(self) -> None:
            """End, but read on for a while if the client has more to say.

            Closing a socket at once that has unread bytes would take back what was sent.
            """
            if self.is_parting() or self._raw.is_closing():
                return
            if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
                self._raw.close()
                return
            self._stop_head()
            self._turns.end()
            self._end = self.loop.call_later(_UNREAD, self._raw.abort)
            if self._raw.can_write_eof():
                self._raw.write_eof()
            self._raw.resume_reading()

        def _metered(self, app: Any) -> Any:
            async def run(scope: Scope, receive: Receive, send: Send) -> None:
                processor = places.processor if self._has_asked else coming
                if self._has_asked:
                    await places.processor_of(self).wait()
                self._has_asked = True
                await metered(lambda: places.processor_of(self, processor), app(scope, receive, send))

            return run

        def feed(self, piece: bytes) -> None:
            """Read a piece."""
            super().data_received(piece)
            if self in places.parting or self._is_upgraded:
                return
            cycle: Any = self.cycle
            if cycle is not None and not cycle.response_complete:
                self._stop_head()
            elif self._head is None and not self.transport.is_closing():
                self._await_head()

        def _await_head(self) -> None:
            self._head = self.loop.call_later(limits.head_timeout, self._raw.abort)

        def _stop_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    return Bounded


@final
class _Handshakes(ServerProtocol):
    """The machine of websockets, which refuses as the rest of the door does."""

    def reject(self, status: HTTPStatus | int, text: str) -> Handshake:
        """Return what tells a client that there is no WebSocket for it."""
        response = super().reject(status, text)
        refused = refusal(Problem(int(status), "malformed", text.strip() or _UNREADABLE.detail))
        response.body = bytes(refused.body)
        for name in ("Content-Length", "Content-Type"):
            del response.headers[name]
        response.headers["Content-Length"] = str(len(refused.body))
        response.headers["Content-Type"] = refused.headers["content-type"]
        return response


@final
class _Arrived:
    """Messages of one connection for the one task that takes them: a queue of asyncio's has 2 KiB before any comes."""

    __slots__ = ("_messages", "_news")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._news: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        """Return whether none waits."""
        return not self._messages

    def put_nowait(self, message: Any) -> None:
        """Put a message behind the others."""
        self._messages.append(message)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def get(self) -> Any:
        """Wait for the first message, and take it."""
        while not self._messages:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        self._news = None
        return self._messages.pop(0)


@final
class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which does not read while its client does not, and takes no message of endless pieces."""

    _turns: _Turns
    _unfinished: asyncio.TimerHandle | None = None

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._leave: Callable[[], None] = app_state[_LEAVE]
        self._processor: Callable[[], Processor] = app_state[_PROCESSOR]
        self.conn = _Handshakes(max_size=config.ws_max_size, logger=self.logger)
        self.queue = _Arrived()  # type: ignore[assignment]
        self.close_timeout = _CLOSING

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._turns = _Turns(self.transport, self, self.processor())

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._leave()
        self._turns.end()
        self._finish()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        self._turns.add(data)

    def processor(self) -> Processor:
        """Return the processor whose time it uses."""
        return self._processor()

    def wants_more(self) -> bool:
        """Return whether it is to be read."""
        return not self.read_paused and self.writable.is_set()

    def feed(self, piece: bytes) -> None:
        """Read a piece."""
        super().data_received(piece)
        if not (self.frames or self.conn.reader.buffer):
            self._finish()
        elif self._unfinished is None:
            late = f"a message is whole after {_MESSAGE_WITHIN:g} s"
            self._unfinished = self.loop.call_later(_MESSAGE_WITHIN, self._refuse, 1008, late)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            answer = b"".join(self.conn.data_to_send())
            self.transport.write(answer or self.conn.reject(HTTPStatus.BAD_REQUEST, "").serialize())
            self._turns.end()
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Send what the application says."""
        if self.close_sent and message["type"] == "websocket.send":  # a frame that must not be has ended it meanwhile
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.accept":
            del self.request, self.response  # which nobody reads any more: 2 KiB of headers
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # by a refusal: uvicorn takes it for one that was forgotten, and logs it

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

    def _finish(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    def send_receive_event_to_app(self) -> None:
        """Pass a whole message on."""
        self._finish()
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
