"""Where others come by WebSocket: what they may ask for, before they are let in."""

from __future__ import annotations

import contextlib
import socket
from typing import Final, final

from iris.kernel.awaited import Awaited, AwaitedTokens
from iris.kernel.config import KIB
from iris.kernel.greetings import Heard
from iris.kernel.web import PULL, PUSH, Asked, Messages

_PIECE: Final = 4 * KIB
"""Bytes read at once of an upgrade request."""


@final
class WebDoor:
    """One port: frames are taken at some paths, and below each of these are the tokens of reverse connections.

    Args:
        limit: bytes of the largest frame.
        tokens: of the reverse connections that are waited for.

    Attributes:
        paths: where frames are taken, each without a slash at its end.
    """

    def __init__(self, limit: int, tokens: AwaitedTokens) -> None:
        self.limit: Final = limit
        self.paths: set[str] = set()
        self._tokens = tokens

    def greet(self) -> WebGreeting:
        """Return what one connection has to say."""
        return WebGreeting(self)

    def answer(self, asked: Asked, greeting: WebGreeting) -> Heard:
        """Answer a request."""
        assert asked.path is not None
        base, _, token = asked.path.rpartition("/")
        if asked.path in self.paths:
            greeting.framing = asked.accept(PULL)
            return Heard.WRONG if greeting.framing is None else Heard.WHOLE
        if base not in self.paths or not token.isalnum():
            asked.refuse()
            return Heard.WRONG
        awaited = self._tokens.claim(token)
        if awaited is None:
            asked.refuse()
            return Heard.LATER
        greeting.framing = asked.accept(PUSH)
        if greeting.framing is None:
            awaited.is_claimed = False
            return Heard.WRONG
        greeting.awaited = awaited
        return Heard.WHOLE


@final
class WebGreeting:
    """The upgrade request of one connection.  See ``Greeting``."""

    __slots__ = ("_asked", "_door", "awaited", "framing")

    def __init__(self, door: WebDoor) -> None:
        self._door = door
        self._asked: Asked | None = None  # made when there is something to look at
        self.framing: Messages | None = None
        self.awaited: Awaited | None = None

    def hear(self, connection: socket.socket) -> Heard:
        """See ``Greeting.hear``."""
        try:
            data = connection.recv(_PIECE)
        except BlockingIOError:
            return Heard.PART
        except OSError:
            return Heard.WRONG
        if not data:
            return Heard.WRONG
        asked = self._asked = self._asked or Asked(self._door.limit)
        asked.receive(data)
        heard = Heard.WRONG if asked.is_over else Heard.PART
        if heard is Heard.PART and asked.path is not None:
            heard = self._door.answer(asked, self)
        if asked.answer:
            with contextlib.suppress(OSError):  # it broke; whoever reads from it finds out
                connection.send(asked.answer)
        return heard
