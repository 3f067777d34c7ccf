"""Greetings: what an inbound connection must send before any frame is read from it, such as the header of SP."""

from __future__ import annotations

import contextlib
import enum
import socket
from typing import Protocol, final

from iris.kernel.transport.reader import Framing
from iris.kernel.transport.reverse_accept import PendingReverse, PendingReverseTable
from iris.kernel.transport.sp import ANSWER, GREETING, TOKEN_SIZE


class GreetingProgress(enum.Enum):
    """The part of its header that a connection has sent."""

    PART = enum.auto()
    WHOLE = enum.auto()
    WRONG = enum.auto()
    LATER = enum.auto()
    """Close it; the other end is to dial again, and has done nothing wrong."""


class Greeting(Protocol):
    """The header that a connection must send before it is accepted.

    Attributes:
        framing: finds the frames in what it says afterwards, if they do not stand behind their lengths.
        awaited: the reverse connection that it is; None if it is one to be read from.
    """

    @property
    def framing(self) -> Framing | None: ...

    @property
    def awaited(self) -> PendingReverse | None: ...

    def receive(self, connection: socket.socket) -> GreetingProgress:
        """Look at what it says, and answer.  Called on the thread of the listener when something can be read."""
        ...


@final
class SpGreeting:
    """The header of SP, over TCP and over Unix sockets.

    Args:
        tokens: tokens of the reverse connections that are waited for; None: none can come here, as by ipc.
    """

    __slots__ = ("_said", "_tokens", "awaited", "framing")

    def __init__(self, tokens: PendingReverseTable | None = None) -> None:
        self._tokens = tokens
        self._said = b""
        self.framing: Framing | None = None
        self.awaited: PendingReverse | None = None

    def receive(self, connection: socket.socket) -> GreetingProgress:
        """See ``Greeting.receive``."""
        due = len(GREETING) + (TOKEN_SIZE if self._said.startswith(ANSWER) else 0)
        try:
            said = connection.recv(due - len(self._said))
        except BlockingIOError:
            return GreetingProgress.PART
        except OSError:
            return GreetingProgress.WRONG
        self._said += said
        if said and self._tokens is not None and not GREETING.startswith(self._said):
            return self._receive_reverse(connection, self._tokens)
        if not said or not GREETING.startswith(self._said):
            return GreetingProgress.WRONG
        if len(self._said) < len(GREETING):
            return GreetingProgress.PART
        with contextlib.suppress(OSError):  # it broke; the reader finds out
            connection.send(ANSWER)
        return GreetingProgress.WHOLE

    def _receive_reverse(self, connection: socket.socket, tokens: PendingReverseTable) -> GreetingProgress:
        if self._said[: len(ANSWER)] != ANSWER[: len(self._said)]:
            return GreetingProgress.WRONG
        if len(self._said) < len(ANSWER) + TOKEN_SIZE:
            return GreetingProgress.PART
        token = self._said[len(ANSWER) :]
        if not token.isalnum():
            return GreetingProgress.WRONG
        self.awaited = tokens.claim(token.decode())
        if self.awaited is None:
            return GreetingProgress.LATER
        with contextlib.suppress(OSError):  # it broke; the writer finds out
            connection.send(GREETING)
        return GreetingProgress.WHOLE


@final
class ReverseGreeting:
    """The header of a reverse connection over TCP, from the node that dials it.  See ``ReverseRequest``."""

    __slots__ = ("_said", "framing", "request")

    def __init__(self, token: str) -> None:
        self.request = ANSWER + token.encode()
        self.framing: Framing | None = None
        self._said = b""

    def receive(self, connection: socket.socket) -> GreetingProgress:
        """See ``ReverseRequest.receive``."""
        said = connection.recv(len(GREETING) - len(self._said))
        self._said += said
        if not said or not GREETING.startswith(self._said):
            return GreetingProgress.WRONG
        return GreetingProgress.PART if len(self._said) < len(GREETING) else GreetingProgress.WHOLE
