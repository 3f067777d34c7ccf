"""WebSocket dialer: outbound connections by WebSocket, and reverse ones."""

from __future__ import annotations

import errno
import socket
from typing import Final, final

import trio

from iris.kernel.config import KIB
from iris.kernel.transport.dialer import DialSlots, open_greeted
from iris.kernel.transport.greeting import GreetingProgress
from iris.kernel.transport.port import Permit
from iris.kernel.transport.reader import Framing
from iris.kernel.transport.websocket import PULL, PUSH, ClientUpgrade, NotUpgraded, WebSocketFraming, split_url

PIECE: Final = 4 * KIB
"""Size in bytes of one read of the answer to an upgrade request."""


async def open_web(
    url: str, limit: int, dials: DialSlots, permit: Permit | None = None
) -> tuple[socket.socket, WebSocketFraming]:
    """Connect to ``ws://HOST:PORT/PATH``, and have the connection upgraded; see ``tcp.open_connection``.

    Args:
        url: the address to connect to.
        limit: bytes of the largest frame.
        dials: limits those that are being made at the same time.
        permit: see ``Transport.dial``.

    Raises:
        Refused: nobody listens at any of its addresses, or there is no such path.
        NotSent: unreachable, or somebody else listens there.
        ConfigError: the URL is none.
    """
    parts = split_url(url)

    async def greet(connection: socket.socket) -> WebSocketFraming:
        asking = ClientUpgrade(url, PULL, limit)
        connection.send(asking.request)
        while True:
            try:
                data = connection.recv(PIECE)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(connection)
                continue
            try:
                messages = asking.receive(data)
            except NotUpgraded as error:
                if error.is_absent:
                    raise ConnectionRefusedError(errno.ECONNREFUSED, str(error)) from None
                raise ConnectionAbortedError(str(error)) from None
            if messages is not None:
                return messages

    return await open_greeted(url, parts.host, parts.port, dials, greet, permit)


@final
class WebReturn:
    """The request for a reverse connection by WebSocket, at a path that has the token.  See ``ReverseRequest``.

    Raises:
        ConfigError: the URL is none.
    """

    __slots__ = ("_asking", "framing", "request")

    def __init__(self, url: str, limit: int) -> None:
        self._asking = ClientUpgrade(url, PUSH, limit)
        self.request = self._asking.request
        self.framing: Framing | None = None

    def receive(self, connection: socket.socket) -> GreetingProgress:
        """See ``ReverseRequest.receive``."""
        try:
            self.framing = self._asking.receive(connection.recv(PIECE))
        except NotUpgraded:
            return GreetingProgress.WRONG
        return GreetingProgress.PART if self.framing is None else GreetingProgress.WHOLE
