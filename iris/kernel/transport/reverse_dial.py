"""Reverse dialling: inbound connections that this node dials itself, to a node that it has reached by WebSocket.

The other end is ready once it has read the token, mostly some milliseconds after the first attempt: so there are more.
Attempts are made in passing, whenever somebody receives: no task and no thread waits for any of them.
"""

from __future__ import annotations

import errno
import math
import socket
from typing import Final, Generic, Protocol, TypeVar, final

import trio

from iris.kernel.errors import NotSent
from iris.kernel.transport.inherited import keep_from_children
from iris.kernel.transport.port import SocketAddress
from iris.kernel.transport.reader import FrameReader
from iris.kernel.transport.websocket import PUSH, ClientUpgrade, NotUpgraded, WebSocketFraming
from iris.kernel.transport.websocket_dial import PIECE

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.2
"""Seconds until the next attempt."""


class ReverseObserver(Protocol[K_contra]):
    """Takes over reverse connections."""

    def reverse_arrived(self, key: K_contra, connection: socket.socket, host: str, messages: WebSocketFraming) -> None:
        """A connection is there.  Called from within ``FrameReader.receive_nowait``; must not block.

        Args:
            key: what it was dialled for.
            connection: the callee's from then on.
            host: the host at its other end.
            messages: its messages.
        """
        ...


@final
class ReverseDialling(Generic[K]):
    """Attempts to dial reverse connections.

    Args:
        streams: watches those that are being made.
        limit: bytes of the largest frame.
        observer: takes over those that are there.
    """

    def __init__(self, streams: FrameReader, limit: int, observer: ReverseObserver[K]) -> None:
        self._streams = streams
        self._limit = limit
        self._observer = observer
        self._attempts: dict[K, _Attempts] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def dial(self, key: K, url: str, family: int, address: SocketAddress) -> None:
        """Dial ``url``, which is at ``address``, until that succeeds or is given up.

        Raises:
            ConfigError: the URL is none.
            NotSent: there is no way to that address, or no descriptor left.
        """
        attempts = self._attempts[key] = _Attempts(url, family, address)
        self._try(key, attempts)
        if attempts.connection is None:
            del self._attempts[key]
            raise NotSent(f"cannot connect to {address[0]!s}")  # the URL is a secret of both ends

    def give_up(self, key: K) -> None:
        """Stop trying.  One that has arrived or was given up is passed over."""
        attempts = self._attempts.pop(key, None)
        if attempts is not None:
            self._drop(attempts)

    @property
    def deadline(self) -> float:
        """The time at which to call ``expire``, by trio's clock; infinity if no attempt is due."""
        return min((attempts.again for attempts in self._attempts.values()), default=math.inf)

    def expire(self, now: float) -> None:
        """Make the attempts that are due."""
        for key, attempts in list(self._attempts.items()):
            if attempts.again <= now:
                self._try(key, attempts)

    def close(self) -> None:
        """Give all up."""
        for key in list(self._attempts):
            self.give_up(key)

    def _try(self, key: K, attempts: _Attempts) -> None:
        attempts.again = math.inf
        try:
            connection = keep_from_children(socket.socket(attempts.family, socket.SOCK_STREAM))
        except OSError:  # no descriptor is left
            self._retry(attempts)
            return
        attempts.connection = connection
        attempts.asking = ClientUpgrade(attempts.url, PUSH, self._limit)
        attempts.unsent = attempts.asking.request
        try:
            connection.setblocking(False)
            code = connection.connect_ex(attempts.address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, "")
            self._streams.watch(connection, lambda _: self._changed(key, attempts, connection))
        except OSError:
            self._retry(attempts)

    def _changed(self, key: K, attempts: _Attempts, connection: socket.socket) -> None:
        if attempts.connection is not connection or attempts.asking is None:
            return
        try:
            if attempts.unsent:  # it fails as the connection has, and goes whole into one that is new
                connection.send(attempts.unsent)
                attempts.unsent = b""
            while True:
                messages = attempts.asking.receive(connection.recv(PIECE))
                if messages is not None:
                    break
        except BlockingIOError:
            return
        except (OSError, NotUpgraded):
            self._retry(attempts)
            return
        self._streams.unwatch(connection)
        del self._attempts[key]
        self._observer.reverse_arrived(key, connection, str(attempts.address[0]), messages)

    def _retry(self, attempts: _Attempts) -> None:
        self._drop(attempts)
        attempts.again = trio.current_time() + attempts.pause
        attempts.pause = min(2 * attempts.pause, _LONGEST_PAUSE)

    def _drop(self, attempts: _Attempts) -> None:
        connection, attempts.connection = attempts.connection, None
        if connection is not None:
            self._streams.unwatch(connection)
            connection.close()


@final
class _Attempts:
    """The attempts at one reverse connection, until it is there."""

    __slots__ = ("address", "again", "asking", "connection", "family", "pause", "unsent", "url")

    def __init__(self, url: str, family: int, address: SocketAddress) -> None:
        self.url = url
        self.family = family
        self.address = address
        self.connection: socket.socket | None = None
        self.asking: ClientUpgrade | None = None
        self.unsent = b""
        self.again = math.inf
        self.pause = _FIRST_PAUSE
