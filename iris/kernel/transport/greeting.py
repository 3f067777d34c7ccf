"""Greetings: what an inbound connection must send before any frame is read from it, such as the header of SP."""

from __future__ import annotations

import contextlib
import enum
import socket
from typing import Protocol, final

from iris.kernel.transport.reader import Framing
from iris.kernel.transport.reverse_accept import PendingReverse
from iris.kernel.transport.sp import ANSWER, GREETING


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
    """The header of SP, over TCP and over Unix sockets."""

    __slots__ = ("_said", "awaited", "framing")

    def __init__(self) -> None:
        self._said = b""
        self.framing: Framing | None = None
        self.awaited: PendingReverse | None = None

    def receive(self, connection: socket.socket) -> GreetingProgress:
        """See ``Greeting.receive``."""
        try:
            said = connection.recv(len(GREETING) - len(self._said))
        except BlockingIOError:
            return GreetingProgress.PART
        except OSError:
            return GreetingProgress.WRONG
        self._said += said
        if not said or not GREETING.startswith(self._said):
            return GreetingProgress.WRONG
        if len(self._said) < len(GREETING):
            return GreetingProgress.PART
        with contextlib.suppress(OSError):  # it broke; the reader finds out
            connection.send(ANSWER)
        return GreetingProgress.WHOLE
