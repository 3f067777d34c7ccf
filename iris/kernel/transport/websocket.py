"""WebSocket (RFC 6455) as nng speaks it: an upgrade, and then each frame is one binary message.  Sans-IO.

The protocol is that of ``websockets``, without extensions.  It takes 70 ms to import, so this module is imported where
a ``ws://`` address is first used.  A frame of 64 KiB costs 9 us on its way out and 14 to 22 us on its way in, masking
included; by TCP it is 7 us for both.

Nothing here is trusted, neither what an upgrade asks for nor what comes after it.  Limits hold before there is memory
for what they limit.  A peer that keeps to another protocol has its connection ended: ``is_over`` says so, and
``answer`` holds the last bytes for it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import CLIENT, Event, Protocol
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import ConfigError
from iris.kernel.transport.greeting import GreetingProgress
from iris.kernel.transport.reverse_accept import PendingReverse, PendingReverseTable

PULL: Final = "pull.sp.nanomsg.org"
"""Subprotocol of a listener to which others send."""

PUSH: Final = "push.sp.nanomsg.org"
"""Subprotocol of a listener that sends to others: of reverse connections."""

_REQUEST_LIMIT: Final = 8 * KIB
"""Limit on an upgrade request in bytes.  Ours have 250; proxies add some."""

_END: Final = b"\r\n\r\n"
"""End of an upgrade request."""

_RESPONSE_LIMIT: Final = 64 * KIB
"""Limit on the answer to an upgrade request in bytes, with the page that some servers add to an error."""

_FRAGMENT: Final = MIB
"""Size in bytes of the part of a message in one WebSocket frame; nng accepts no larger ones."""

_CONTROL: Final = 125
"""Size of a ping in bytes, which the limit on messages must leave room for."""

_SMALL: Final = KIB
"""A frame of fewer bytes is dear for what it brings."""

_IDLE: Final = 256
"""Limit on such small frames in a row that end no message: pings, and parts of messages.  An unauthenticated peer could
else keep this node busy with them; proxies that ping do so a few times a minute."""

_SILENT: Final = logging.Logger("iris.kernel.transport.websocket", logging.CRITICAL + 1)
"""Logger that drops everything: errors of unauthenticated peers are counted and not logged."""


def split_url(url: str) -> WebSocketURI:
    """Return the parts of a ``ws://`` address; raise ConfigError if it is none."""
    try:
        return parse_uri(url)
    except (InvalidURI, ValueError) as error:  # ValueError: brackets that are not closed, a name beyond IDNA
        raise ConfigError(f"{url!r} is not an address: {error}") from None


def path_of(target: str) -> str:
    """Return the path that a request is for, without its query; one slash more or less at its end does not matter."""
    return target.partition("?")[0].rstrip("/")


@final
class WebSocketFraming:
    """One end of a connection that has been upgraded.

    Attributes:
        waiting: messages that have come and were not fetched.
        answer: bytes to send for what has come; the sender empties it.
        is_over: the other end has said goodbye, or something that it must not.  Messages before that still count.
    """

    __slots__ = ("_idle", "_is_client", "_limit", "_part", "_protocol", "answer", "is_over", "waiting")

    def __init__(self, protocol: Protocol, limit: int, events: Sequence[Event] = ()) -> None:
        self._protocol = protocol
        self._is_client = protocol.side is CLIENT
        self._limit = limit
        self._idle = 0
        """Small frames that have come since the last message was whole, here or there."""
        self._part: bytearray | None = None
        """The part that has come of a message in several frames."""
        self.waiting: deque[bytes] = deque()
        self.answer = b""
        self.is_over = False
        self._look(events)

    def encode(self, frame: bytes | memoryview) -> tuple[bytes, ...]:
        """Return what goes on the wire for a frame, in pieces."""
        self._idle = 0  # to an end that only sends, pings are all that ever comes
        if len(frame) <= _FRAGMENT:
            return (Frame(Opcode.BINARY, frame).serialize(mask=self._is_client),)
        pieces: list[bytes] = []
        for begin in range(0, len(frame), _FRAGMENT):
            opcode = Opcode.CONT if begin else Opcode.BINARY
            end = begin + _FRAGMENT
            piece = Frame(opcode, memoryview(frame)[begin:end], fin=end >= len(frame))
            pieces.append(piece.serialize(mask=self._is_client))
        return tuple(pieces)

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take in what has come.  A few kilobytes at a time: of the smallest messages 170 are in one."""
        if not self.is_over:
            self._protocol.receive_data(data)  # type: ignore[arg-type]  # it only appends it to its buffer
            self._look(self._protocol.events_received())

    def _look(self, events: Sequence[Event]) -> None:
        for event in events:
            if self.is_over:
                break
            assert isinstance(event, Frame)
            self._idle += len(event.data) < _SMALL
            if self._idle > _IDLE:
                self.is_over = True
            elif event.opcode is Opcode.BINARY and event.fin:
                self._complete(event.data)
            elif event.opcode is Opcode.BINARY:
                self._part = bytearray(event.data)
            elif event.opcode is Opcode.CONT:
                assert self._part is not None
                self._part += event.data
                if event.fin:
                    whole, self._part = self._part, None
                    self._complete(whole)
            elif event.opcode in (Opcode.CLOSE, Opcode.TEXT):
                self.is_over = True
        if self._protocol.parser_exc is not None:
            self.is_over = True
        # A pong for each ping of a piece, each at most 4 bytes longer.  The empty one in the end is for half-closing.
        answer = b"".join(self._protocol.data_to_send())
        # In place of one that nobody could send: who asks and does not read would else have this node keep them all.
        self.answer = answer or self.answer

    def _complete(self, message: bytes | bytearray | memoryview) -> None:
        self._idle = 0
        if len(message) > self._limit:
            self.is_over = True
        else:
            self.waiting.append(bytes(message))  # no copy of what was masked, which is bytes already


@final
class ServerUpgrade:
    """The upgrade of a connection that somebody else has opened.

    Args:
        limit: bytes of the largest message.

    Attributes:
        path: the path that is asked for; None until the whole request has come.
        answer: bytes to send then.
        is_over: it will not be upgraded.
    """

    __slots__ = ("_end", "_limit", "_protocol", "_request", "_size", "answer", "is_over", "path")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._protocol = ServerProtocol(max_size=limit + _CONTROL, logger=_SILENT)
        self._request: Request | None = None
        self._size = 0
        self._end = b""
        """The last bytes that have come."""
        self.path: str | None = None
        self.answer = b""
        self.is_over = False

    def receive(self, data: bytes) -> None:
        """Take in what has come."""
        self._size += len(data)
        seen = self._end + data
        self._end = seen[1 - len(_END) :]
        end = seen.find(_END)
        # Nothing may follow a request that was not answered: the protocol would fail over it, and cannot answer then.
        if self._size > _REQUEST_LIMIT or 0 <= end < len(seen) - len(_END):
            self.is_over = True
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            assert isinstance(event, Request)
            self._request = event
            self.path = path_of(event.path)
        if self._protocol.handshake_exc is not None:
            self._say()
            self.is_over = True

    def accept(self, subprotocol: str) -> WebSocketFraming | None:
        """Upgrade it; None if that was not asked for."""
        assert self._request is not None
        self._protocol.available_subprotocols = [Subprotocol(subprotocol)]
        response = self._protocol.accept(self._request)
        self._protocol.send_response(response)
        self._say()
        if response.status_code != 101:
            self.is_over = True
            return None
        return WebSocketFraming(self._protocol, self._limit)

    def refuse(self) -> None:
        """Answer that there is nothing at that path."""
        self._protocol.send_response(self._protocol.reject(404, "There is nothing here.\n"))
        self._say()
        self.is_over = True

    def _say(self) -> None:
        self.answer += b"".join(self._protocol.data_to_send())


class NotUpgraded(Exception):
    """The other end does not speak WebSocket at this path.

    Attributes:
        is_absent: True if it has said that there is no such path.
    """

    def __init__(self, reason: str, *, is_absent: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent


@final
class ClientUpgrade:
    """The upgrade of a connection that this node has opened.

    Args:
        url: the address to connect to.
        subprotocol: the subprotocol that the other end must be.
        limit: bytes of the largest message.

    Attributes:
        request: bytes to send.

    Raises:
        ConfigError: the URL is none.
    """

    __slots__ = ("_limit", "_protocol", "_size", "request")

    def __init__(self, url: str, subprotocol: str, limit: int) -> None:
        self._limit = limit
        self._protocol = ClientProtocol(
            split_url(url), subprotocols=[Subprotocol(subprotocol)], max_size=limit + _CONTROL, logger=_SILENT
        )
        self._size = 0
        self._protocol.send_request(self._protocol.connect())
        self.request = b"".join(self._protocol.data_to_send())

    def receive(self, data: bytes) -> WebSocketFraming | None:
        """Take in what has come, nothing if that is the end; return the upgraded connection once it is one.

        What has come behind the upgrade is waiting in it.

        Raises:
            NotUpgraded: it will not be one.
        """
        self._size += len(data)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        if self._protocol.handshake_exc is not None:
            raise _reason(self._protocol.handshake_exc)
        events = self._protocol.events_received()
        if not events:
            if self._size > _RESPONSE_LIMIT:
                raise NotUpgraded("what answers there is no WebSocket")
            return None
        assert isinstance(events[0], Response)
        if self._protocol.subprotocol is None:
            raise NotUpgraded("no node listens there, but some other WebSocket")
        return WebSocketFraming(self._protocol, self._limit, events[1:])


def _reason(error: Exception) -> NotUpgraded:
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        # Also of a method that is not allowed there, as nng has it.
        return NotUpgraded(f"it answers {status} {error.response.reason_phrase!r:.40}", is_absent=status in (404, 405))
    return NotUpgraded("what answers there is no WebSocket of a node")


_PIECE: Final = 4 * KIB
"""Size in bytes of one read of an upgrade request."""


@final
class WebSocketListener:
    """One port: frames are taken at some paths, and below each of these are the tokens of reverse connections.

    Args:
        limit: bytes of the largest frame.
        tokens: tokens of the reverse connections that are waited for.

    Attributes:
        paths: paths at which frames are accepted, each without a slash at its end.
    """

    def __init__(self, limit: int, tokens: PendingReverseTable) -> None:
        self.limit: Final = limit
        self.paths: set[str] = set()
        self._tokens = tokens

    def greet(self) -> WebGreeting:
        """Return what one connection has to say."""
        return WebGreeting(self)

    def answer(self, asked: ServerUpgrade, greeting: WebGreeting) -> GreetingProgress:
        """Answer a request."""
        assert asked.path is not None
        base, _, token = asked.path.rpartition("/")
        if asked.path in self.paths:
            greeting.framing = asked.accept(PULL)
            return GreetingProgress.WRONG if greeting.framing is None else GreetingProgress.WHOLE
        if base not in self.paths or not token.isalnum():
            asked.refuse()
            return GreetingProgress.WRONG
        awaited = self._tokens.claim(token)
        if awaited is None:
            asked.refuse()
            return GreetingProgress.LATER
        greeting.framing = asked.accept(PUSH)
        if greeting.framing is None:
            awaited.is_claimed = False
            return GreetingProgress.WRONG
        greeting.awaited = awaited
        return GreetingProgress.WHOLE


@final
class WebGreeting:
    """The upgrade request of one connection.  See ``Greeting``."""

    __slots__ = ("_asked", "_door", "awaited", "framing")

    def __init__(self, door: WebSocketListener) -> None:
        self._door = door
        self._asked: ServerUpgrade | None = None  # made when there is something to look at
        self.framing: WebSocketFraming | None = None
        self.awaited: PendingReverse | None = None

    def receive(self, connection: socket.socket) -> GreetingProgress:
        """See ``Greeting.receive``."""
        try:
            data = connection.recv(_PIECE)
        except BlockingIOError:
            return GreetingProgress.PART
        except OSError:
            return GreetingProgress.WRONG
        if not data:
            return GreetingProgress.WRONG
        asked = self._asked = self._asked or ServerUpgrade(self._door.limit)
        asked.receive(data)
        progress = GreetingProgress.WRONG if asked.is_over else GreetingProgress.PART
        if progress is GreetingProgress.PART and asked.path is not None:
            progress = self._door.answer(asked, self)
        if asked.answer:
            with contextlib.suppress(OSError):  # it broke; the reader finds out
                connection.send(asked.answer)
        return progress
