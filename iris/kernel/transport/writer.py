"""Frame writer: frames to a stream connection, written by the task that has them.

A frame is one system call, and wakes no thread.  What the connection does not take of a frame is kept, without a copy,
and follows as soon as there is room, whether somebody waits for that or not: ``FrameReader`` watches the connection for
the task that receives.  It reports room only while something is kept.

How a frame looks on the wire is the caller's: ``framing``.
"""

from __future__ import annotations

import fcntl
import select
import socket
import termios
from collections.abc import Callable
from typing import Final, final

import trio

from iris.kernel.buffer_pool import give_back, is_sparse
from iris.kernel.transport.port import ConnectionUser, OutgoingConnection
from iris.kernel.transport.reader import FrameReader, Framing

_ENDS: Final = ~select.EPOLLOUT
"""Events other than that the socket accepts more."""

_RECEIVE_BYTES: Final = 4096
"""Size in bytes of one read of the peer's answers."""

_PATIENCE: Final = 16
"""Reads of an outbound connection in one go.  A peer that sends more on a connection that is to receive is hostile."""


@final
class StreamOutgoing:
    """An outbound stream connection that has sent its header.  See ``OutgoingConnection``.

    Nothing comes back by it but what ``framing_in`` knows: who says something else there has his connection ended.

    Args:
        connection: it does not block, and belongs to this object from now on.
        streams: watches it.
        framing: makes of a frame what goes on the wire for it, in pieces.
        user: notified of the loss of the connection, from within other methods or ``FrameReader.receive_nowait``.
        framing_in: understands what comes back, where that may be something besides the end.

    Raises:
        OSError: the system has no room to watch one more; the connection is still the caller's.
    """

    __slots__ = (
        "_frame",
        "_framing",
        "_framing_in",
        "_others",
        "_over",
        "_rest",
        "_room_reported",
        "_socket",
        "_streams",
        "_user",
        "_waiting",
        "closed",
    )

    def __init__(
        self,
        connection: socket.socket,
        streams: FrameReader,
        framing: Callable[[bytes | memoryview], tuple[bytes | memoryview, ...]],
        user: ConnectionUser,
        framing_in: Framing | None = None,
    ) -> None:
        self.closed = False
        self._over = False
        """True once the connection has been closed, or lost."""
        self._socket = connection
        self._streams = streams
        self._framing = framing
        self._user = user
        self._framing_in = framing_in
        self._rest: list[memoryview] = []
        """The part of the last frame that the socket has not accepted: at most this much waits here."""
        self._frame: bytes | memoryview = b""
        """The frame that it is a part of."""
        self._room_reported = False
        self._waiting = False
        self._others: trio.lowlevel.ParkingLot | None = None  # made on first need: an idle link has none
        streams.watch(connection, self._changed, room=False)

    @property
    def kept(self) -> int:
        """Size of what the socket has not accepted of the last frame, and of answers, in bytes."""
        return sum(map(len, self._rest))

    @property
    def is_acknowledged(self) -> bool:
        """True if the peer's system has taken all that was sent: the process that has the other end lives.

        False if that is not known.
        """
        if self._over or self._rest:
            return False
        if self._socket.family == socket.AF_UNIX:  # what is sent is there at once, as long as the other end is open
            return True
        try:
            unacknowledged = fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:  # this system does not tell
            return False
        return not any(unacknowledged)

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """See ``OutgoingConnection.send_nowait``."""
        if (self._rest and not self._flush()) or self._over:
            if self.closed:
                raise trio.ClosedResourceError("this way out is closed")
            return False  # if it is lost, that is about to be reported
        pieces = self._framing(frame)
        try:
            # One piece takes 0.7 us less by ``send``.
            sent = self._socket.send(pieces[0]) if len(pieces) == 1 else self._socket.sendmsg(pieces)
        except BlockingIOError:
            return False
        except OSError:
            self._lose()
            return False
        if len(pieces) == 1 and sent == len(pieces[0]):
            if type(frame) is memoryview:
                give_back(frame)
            return True
        for piece in pieces:
            if sent < len(piece):
                self._keep(memoryview(piece)[sent:])
                sent = 0
            else:
                sent -= len(piece)
        if self._rest and not is_sparse(frame):
            self._frame = frame
        else:
            self._rest = [memoryview(bytes(piece)) for piece in self._rest]
            give_back(frame)
        return True

    def _keep(self, rest: memoryview) -> None:
        self._rest.append(rest)
        if not self._room_reported:
            self._room_reported = True
            self._streams.watch_room(self._socket, wanted=True)

    def _forget_rest(self) -> None:
        self._rest.clear()
        self._frame = b""

    def _flush(self) -> bool:
        """Send the rest of the last frame; return whether all of it is gone."""
        try:
            sent = self._socket.sendmsg(self._rest)
        except BlockingIOError:
            return False
        except OSError:
            self._lose()
            return False
        while self._rest and sent >= len(self._rest[0]):
            sent -= len(self._rest.pop(0))
        if self._rest:
            self._rest[0] = self._rest[0][sent:]
        else:
            give_back(self._frame)
            self._frame = b""
            self._answer()
        return not self._rest

    def _answer(self) -> None:
        """Send what the framing answers to what has been received."""
        if self._framing_in is None or not self._framing_in.answer:
            return
        answer, self._framing_in.answer = memoryview(self._framing_in.answer), b""
        try:
            answer = answer[self._socket.send(answer) :]
        except BlockingIOError:
            pass
        except OSError:
            self._lose()
            return
        if answer:
            self._keep(answer)

    def _changed(self, events: int) -> None:
        """The connection has room, or something to read, its end included."""
        if self._rest:
            self._flush()
        elif events & select.EPOLLOUT and self._room_reported:
            # Not as soon as nothing is kept: more may be at once, and a connection by TCP tells of no room unasked.
            self._room_reported = False
            self._streams.watch_room(self._socket, wanted=False)
        if events & _ENDS and not self._over:
            self._receive()

    def _receive(self) -> None:
        for _ in range(_PATIENCE):
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return  # it has no more to say; or this was about another one, which had this descriptor before
            except OSError:
                break
            if not data or self._framing_in is None:
                break
            self._framing_in.receive(data)
            if not self._rest:
                self._answer()
            if self._framing_in.waiting or self._framing_in.is_over:
                break
            if self._over:
                return
        if not self._over:
            self._lose()

    def _lose(self) -> None:
        self._over = True
        self._forget_rest()
        self._user.connection_broken()

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``.  If the connection is lost, it waits until it is closed."""
        if self.closed:
            raise trio.ClosedResourceError("this way out is closed")
        if self._others is None:
            self._others = trio.lowlevel.ParkingLot()
        if self._waiting or self._over:  # only one task may wait for a descriptor; handshakes share it with their link
            await self._others.park()
            if self.closed:
                raise trio.ClosedResourceError("this way out was closed")
            return
        self._waiting = True
        try:
            await trio.lowlevel.wait_writable(self._socket)
        finally:
            self._waiting = False
            self._others.unpark_all()

    def close(self) -> None:
        """See ``OutgoingConnection.close``."""
        if self.closed:
            return
        self.closed = self._over = True
        self._forget_rest()
        if self._waiting:
            trio.lowlevel.notify_closing(self._socket)
        elif self._others is not None:
            self._others.unpark_all()
        self._streams.unwatch(self._socket)
        self._socket.close()


def is_acknowledged(outgoing: OutgoingConnection | None) -> bool:
    """Return whether a connection shows that the process at its other end lives: see ``StreamOutgoing``."""
    return isinstance(outgoing, StreamOutgoing) and outgoing.is_acknowledged
