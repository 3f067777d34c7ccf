"""SP header (nanomsg RFC sp-tcp-mapping): what an inbound connection must send before any frame is read from it."""

from __future__ import annotations

import contextlib
import enum
import socket
from typing import Final, Protocol, final

from iris.kernel.transport.reader import Framing
from iris.kernel.transport.reverse_accept import PendingReverse

GREETING: Final = b"\0SP\0\0\x50\0\0"
"""What the PUSH of nng says first, over any stream."""

ANSWER: Final = b"\0SP\0\0\x51\0\0"
"""What its PULL says."""


class GreetingProgress(enum.Enum):
    """How much of its header a connection has sent."""

    PART = enum.auto()
    WHOLE = enum.auto()
    WRONG = enum.auto()
    LATER = enum.auto()
    """Close it; the other end is to dial again, and has done nothing wrong."""


class Greeting(Protocol):
    """What a connection must send before it is accepted.

    Attributes:
        framing: finds the frames in what it says afterwards, if they do not stand behind their lengths.
        awaited: the reverse connection that it is; None if it is one to be read from.
    """

    @property
    def framing(self) -> Framing | None: ...

    @property
    def awaited(self) -> PendingReverse | None: ...

    def hear(self, connection: socket.socket) -> GreetingProgress:
        """Look at what it says, and answer.  Called on the thread of the listener when something can be read."""
        ...


@final
class NngGreeting:
    """The SP header, which nng sends first over any stream."""

    __slots__ = ("_said", "awaited", "framing")

    def __init__(self) -> None:
        self._said = 0
        self.framing: Framing | None = None
        self.awaited: PendingReverse | None = None

    def hear(self, connection: socket.socket) -> GreetingProgress:
        """See ``Greeting.hear``."""
        try:
            said = connection.recv(len(GREETING), socket.MSG_PEEK)
        except BlockingIOError:
            return GreetingProgress.PART
        except OSError:
            return GreetingProgress.WRONG
        if said == GREETING:
            with contextlib.suppress(OSError):  # it broke; the reader finds out
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                connection.recv(len(GREETING))  # it was only looked at
                connection.send(ANSWER)
            return GreetingProgress.WHOLE
        # Wrong is also what is readable without a byte more: it has ended, and would be readable all the time.
        if len(said) <= self._said or not GREETING.startswith(said):
            return GreetingProgress.WRONG
        self._said = len(said)
        # Readable is what has so many bytes, else this thread would spin until the rest comes.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(GREETING))
        return GreetingProgress.PART
