"""Pending reverse connections: each is named by a token, and given to the first that shows the token."""

from __future__ import annotations

import socket
from typing import final

import trio

from iris.kernel.errors import NotSent
from iris.kernel.transport.reader import Framing


@final
class PendingReverse:
    """A reverse connection that is waited for.

    Attributes:
        is_claimed: somebody has come with its token.  Written on the thread of the listener only, but for the end.
    """

    __slots__ = ("_arrived", "_came", "is_claimed")

    def __init__(self) -> None:
        self.is_claimed = False
        self._came = trio.Event()
        self._arrived: tuple[socket.socket, Framing | None] | None = None

    def hand_over(self, connection: socket.socket, framing: Framing | None) -> None:
        """Accept the connection that has come; if nobody waits any more, close it.

        ``framing`` is None where each frame stands behind its length.
        """
        if self._came.is_set():
            connection.close()
        else:
            self._arrived = connection, framing
            self._came.set()

    async def wait(self) -> tuple[socket.socket, Framing | None]:
        """Wait until it has come.  Cancelling it closes it, if it comes still."""
        try:
            await self._came.wait()
        except BaseException:
            self._came.set()
            if self._arrived is not None:
                self._arrived[0].close()
            raise
        assert self._arrived is not None
        return self._arrived


@final
class PendingReverseTable:
    """All reverse connections that are waited for, by token."""

    def __init__(self) -> None:
        self._awaited: dict[str, PendingReverse] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    async def wait(self, token: str) -> tuple[socket.socket, Framing | None]:
        """Wait until somebody has come with ``token``.  Cancelling leaves nothing behind.

        Raises:
            NotSent: it is waited for already.
        """
        if token in self._awaited:
            raise NotSent("cannot wait for a reverse connection: address in use")
        awaited = self._awaited[token] = PendingReverse()
        try:
            return await awaited.wait()
        finally:
            del self._awaited[token]

    def claim(self, token: str) -> PendingReverse | None:
        """Return what is waited for with a token, to the first one that asks.  On the thread of the listener."""
        awaited = self._awaited.get(token)
        if awaited is None or awaited.is_claimed:
            return None
        # The token is used up now.  A node that shows it later is refused, and cannot put itself between the ends.
        awaited.is_claimed = True
        return awaited
