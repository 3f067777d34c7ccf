"""Reverse dialling: inbound connections that this node dials itself, to a node that it has reached.

The other end is ready once it has read the token, mostly some milliseconds after the first attempt: so there are more.
Attempts are made in passing, whenever somebody receives: no task and no thread waits for any of them.
"""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar, final

import trio

from iris.kernel.errors import NotSent
from iris.kernel.transport.greeting import GreetingProgress
from iris.kernel.transport.inherited import keep_from_children
from iris.kernel.transport.port import SocketAddress
from iris.kernel.transport.reader import FrameReader, Framing

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.2
"""Seconds until the next attempt."""


class ReverseRequest(Protocol):
    """One request for a reverse connection: ``ReverseGreeting`` over TCP, ``WebReturn`` by WebSocket.

    Attributes:
        request: bytes to send first.
        framing: finds the frames in what follows, once it is granted; None if they stand behind their lengths.
    """

    @property
    def request(self) -> bytes: ...

    @property
    def framing(self) -> Framing | None: ...

    def receive(self, connection: socket.socket) -> GreetingProgress:
        """Look at the answer when something can be read; anything but PART and WHOLE: it is not granted.

        Raises:
            OSError: the connection broke, or has nothing to read (``BlockingIOError``).
        """
        ...


class ReverseObserver(Protocol[K_contra]):
    """Takes over reverse connections."""

    def reverse_arrived(self, key: K_contra, connection: socket.socket, host: str, messages: Framing | None) -> None:
        """A connection is there.  Called from within ``FrameReader.receive_nowait``; must not block.

        Args:
            key: what it was dialled for.
            connection: the callee's from then on.
            host: the host at its other end.
            messages: finds its frames; None if they stand behind their lengths.
        """
        ...

    def reverse_due(self) -> None:
        """Another attempt is due, at ``ReverseDialling.deadline``.  Called as ``reverse_arrived`` is."""
        ...


@final
class ReverseDialling(Generic[K]):
    """Attempts to dial reverse connections.

    Args:
        streams: watches those that are being made.
        observer: takes over those that are there.
    """

    def __init__(self, streams: FrameReader, observer: ReverseObserver[K]) -> None:
        self._streams = streams
        self._observer = observer
        self._attempts: dict[K, _Attempts] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def dial(self, key: K, ask: Callable[[], ReverseRequest], family: int, address: SocketAddress) -> None:
        """Dial an address until that succeeds or is given up; ``ask`` makes the request of each attempt.

        Raises:
            ConfigError: raised by ``ask``.
            NotSent: there is no way to that address, or no descriptor left.
        """
        attempts = self._attempts[key] = _Attempts(ask, family, address)
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
        attempts.asking = attempts.ask()
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
            while (progress := attempts.asking.receive(connection)) is GreetingProgress.PART:
                pass
        except BlockingIOError:
            return
        except OSError:
            progress = GreetingProgress.WRONG
        if progress is not GreetingProgress.WHOLE:
            self._retry(attempts)
            return
        self._streams.unwatch(connection)
        del self._attempts[key]
        self._observer.reverse_arrived(key, connection, str(attempts.address[0]), attempts.asking.framing)

    def _retry(self, attempts: _Attempts) -> None:
        self._drop(attempts)
        attempts.again = trio.current_time() + attempts.pause
        attempts.pause = min(2 * attempts.pause, _LONGEST_PAUSE)
        self._observer.reverse_due()

    def _drop(self, attempts: _Attempts) -> None:
        connection, attempts.connection = attempts.connection, None
        if connection is not None:
            self._streams.unwatch(connection)
            connection.close()


@final
class _Attempts:
    """The attempts at one reverse connection, until it is there."""

    __slots__ = ("address", "again", "ask", "asking", "connection", "family", "pause", "unsent")

    def __init__(self, ask: Callable[[], ReverseRequest], family: int, address: SocketAddress) -> None:
        self.ask = ask
        self.family = family
        self.address = address
        self.connection: socket.socket | None = None
        self.asking: ReverseRequest | None = None
        self.unsent = b""
        self.again = math.inf
        self.pause = _FIRST_PAUSE
