"""Frame reader: frames from stream connections, read by the task that waits for them.

No thread stands between: with those of nng, a frame wakes three on its way from the socket to the task.  Measured in
turns beside other programs, a request one at a time took 410 us instead of 490, 220 us of processor time at either end
instead of 280, and 6 to 7 switches between threads there instead of 10.

A stream is what a PUSH sends after its header (``sp.py``): each frame behind its length, by ipc with a type before
that.  All streams share one buffer, into which one of them is read at a time: an idle connection costs a descriptor and
a small object, a busy one a system call for several frames.  The system holds up a peer that sends faster than this
node reads.
"""

from __future__ import annotations

import os
import select
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from iris.kernel.buffer_pool import LARGE
from iris.kernel.config import KIB
from iris.kernel.transport.sp import LENGTH, MESSAGE, TYPED

_CHUNK: Final = 544 * KIB
"""Size of the chunk read at once, in bytes: two frames of bulk fit.  Only the part that was ever filled is really
memory."""

_PIECE: Final = 8 * KIB
"""Size in bytes of the part that another framing looks at in one go: it may hold 1,400 empty frames, for 7 ms."""

_AT_ONCE: Final = 64
"""Connections that are read before it is asked again which have something."""

_NEWS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
"""Events of an outbound connection that are watched.  Edge-triggered: bytes that are not read wake nobody twice."""


class Framing(Protocol):
    """Finds frames in a stream of bytes, and what is said besides.

    Attributes:
        waiting: frames that have come and were not fetched.
        answer: bytes to send for what has come; the sender empties it.  Only the newest is worth it.
        is_over: True once the other end has said goodbye, or broken the rules.
    """

    waiting: deque[bytes]
    answer: bytes
    is_over: bool

    def encode(self, frame: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
        """Return what goes on the wire for a frame, in pieces."""
        ...

    def receive(self, data: memoryview | bytes) -> None:
        """Take in what has come."""
        ...


@final
class _Stream:
    """The read state of one connection."""

    __slots__ = ("began", "frame", "framing", "number", "size", "socket", "typed")

    def __init__(self, number: int, connection: socket.socket, framing: Framing | None, typed: int) -> None:
        self.number = number
        self.socket = connection
        self.typed = typed
        """Size in bytes of the type before each length."""
        self.framing = framing
        """Finder of the frames in the stream; None if each stands behind its length."""
        self.began = b""
        """The first bytes of a type and length of which the others have not come."""
        self.frame: bytearray | None = None
        """The part that has come of an incomplete frame.  It grows as bytes come: an announcement costs no memory."""
        self.size = 0
        """Size of that frame in bytes."""


class StreamObserver(Protocol):
    """Notified of the streams of a reader."""

    def stream_closed(self, number: int) -> None:
        """The connection of this number has ended.

        Called from within the methods of the reader, whose caller may be in the middle of something: must not block,
        nor use the reader.
        """
        ...


@final
class FrameReader:
    """Reads frames from the stream connections of one node.

    Args:
        limit: bytes of the largest frame.  Who announces a larger one is hung up on before there is memory for it.
        observer: notified of each connection that has ended.

    Other events of a connection are reported, too: see ``watch``.

    Attributes:
        source: the connection that the last frame came by.
        closed: True once ``close`` was called, or in a child of the process that it was made in.
    """

    def __init__(self, limit: int, observer: StreamObserver) -> None:
        self.source = 0
        self.closed = False
        self._limit = limit
        self._observer = observer
        self._poll = select.epoll()
        self.descriptor: Final = self._poll.fileno()
        """Descriptor that is readable while something can be received, until this is closed."""
        _living.add(self)
        self._streams: dict[int, _Stream] = {}
        self._by_descriptor: dict[int, _Stream] = {}
        self._watched: dict[int, Callable[[int], None]] = {}
        self._ready: deque[tuple[int, int]] = deque()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._at: int = 0
        self._end: int = 0
        self._current: _Stream | None = None
        """The stream whose bytes are in the chunk."""
        self._left: _Stream | None = None
        """The stream whose incomplete frame is still in the chunk, from ``_at`` to ``_end``, with its length.  It stays
        until another connection is read, so that two copies less are made of a large frame that comes in parts."""

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def watched(self) -> int:
        """Connections of which only other events are reported."""
        return len(self._watched)

    @property
    def held(self) -> int:
        """Size of the incomplete frames that connections keep, in bytes, without what is in the chunk."""
        return sum(len(stream.began) + len(stream.frame or b"") for stream in self._streams.values())

    def add(
        self, number: int, connection: socket.socket, framing: Framing | None = None, *, typed: bool = False
    ) -> None:
        """Read from a connection that does not block, and has sent its header.

        Args:
            number: the number of the connection.
            connection: belongs to this object from now on.
            framing: finds the frames in it; without it, they stand behind their lengths.
            typed: and those behind their types, as by ipc.

        Raises:
            OSError: the system has no room to watch one more; the connection is still the caller's.
        """
        self._poll.register(connection, select.EPOLLIN)
        stream = _Stream(number, connection, framing, TYPED if typed else 0)
        self._streams[number] = self._by_descriptor[connection.fileno()] = stream
        if framing is not None and (framing.waiting or framing.is_over):
            self._ready.append((connection.fileno(), select.EPOLLIN))

    def watch(self, connection: socket.socket, changed: Callable[[int], None], *, room: bool = True) -> None:
        """Report of an outbound connection, from within ``receive_nowait``, when it has room again and when it ends.

        Args:
            connection: it does not block.  Its end is for the caller to see: something can be read, or it is an error.
            changed: called with the events of ``epoll``; rarely with those of a connection that is gone, of which the
                system has given this one the descriptor.
            room: True to report when the socket accepts more; see ``watch_room``.

        Raises:
            OSError: the system has no room to watch one more.
        """
        self._poll.register(connection, _NEWS | select.EPOLLOUT if room else _NEWS)
        self._watched[connection.fileno()] = changed

    def watch_room(self, connection: socket.socket, *, wanted: bool) -> None:
        """Report room of a watched connection, or stop doing so.  Room that is there now is reported.

        A Unix socket takes more whenever the other end has read something, and each time would wake this node for
        nothing: after every frame, while its receiver works on it.  In turns beside each other, a request by ipc took
        468 us so, and 423 us without; through two gateways 1,292 and 1,106 us, with 1.47 and 1.19 ms of processor time.
        """
        if connection.fileno() in self._watched:
            self._poll.modify(connection, _NEWS | select.EPOLLOUT if wanted else _NEWS)

    def unwatch(self, connection: socket.socket) -> None:
        """Watch a connection no more; to be called before it is closed.  One that is not watched is ignored."""
        if self._watched.pop(connection.fileno(), None) is not None:
            self._poll.unregister(connection)

    def hang_up(self, number: int) -> None:
        """Close a connection, and drop what has come by it.  One that is gone is passed over."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        del self._by_descriptor[stream.socket.fileno()]
        # To close it is not enough: a child of a fork that has it, too, would keep it watched, and readable, for ever.
        self._poll.unregister(stream.socket)
        stream.socket.close()
        if stream is self._current:
            self._current = None
        if stream is self._left:
            self._left = None
        self._observer.stream_closed(number)

    def close(self) -> None:
        """Close all connections but those that are only watched; nobody is notified."""
        self.closed = True
        for stream in self._streams.values():
            stream.socket.close()
        self._streams.clear()
        self._by_descriptor.clear()
        self._watched.clear()
        self._ready.clear()
        self._current = self._left = None
        self._poll.close()

    def receive_nowait(self) -> bytes | memoryview | None:
        """Return the next frame; or None, when it is time to wait for ``descriptor``.

        Each connection gets its turn, and none is read twice in one call: one that sends a large frame slowly holds
        up nobody.  A large frame is a view of where it was read to, and there until the next call only.
        """
        asked = False
        while True:
            frame: bytes | memoryview | None = None
            if (current := self._current) is not None:
                try:
                    frame = self._cut(current) if current.framing is None else self._fetch(current)
                except MemoryError:  # there is none for a frame: that costs its connection, and not this node
                    self.hang_up(current.number)
            elif self._ready:
                frame = self._look_at(*self._ready.popleft())
            elif asked:
                return None
            else:
                asked = True
                # It is asked again even after a small frame that was alone: 3 us of 150.  Else 64 who ask at a time
                # would be answered one by one, with three times the processor time.
                self._ready.extend(self._poll.poll(0, _AT_ONCE))
            if frame is not None:
                return frame

    def _look_at(self, descriptor: int, events: int) -> bytes | memoryview | None:
        stream = self._by_descriptor.get(descriptor)
        if stream is not None:
            try:
                return self._read(stream)
            except MemoryError:
                self.hang_up(stream.number)
                return None
        if descriptor in self._watched:
            self._watched[descriptor](events)
        return None

    def _read(self, stream: _Stream) -> bytes | memoryview | None:
        """Read from a connection; return the first frame if it is complete now, and leave others to ``_cut``."""
        framing = stream.framing
        if framing is not None and (framing.waiting or framing.is_over):  # since before it was ours
            self._clear()
            self._at, self._end, self._current = 0, 0, stream
            return None
        if self._left is stream:
            self._read_on(stream)
            return None
        if self._left is not None:
            self._clear()
        began = len(stream.began)
        if stream.frame is not None:
            target = self._chunk[: stream.size - len(stream.frame)]
        elif began:
            self._chunk[:began] = stream.began
            target = self._chunk[began:]
        else:
            target = self._chunk
        size = self._fill(stream, target)
        if not size:
            return None
        if stream.frame is None:
            stream.began = b""
            self._at, self._end, self._current = 0, began + size, stream
            return self._cut(stream) if framing is None else None
        stream.frame += target[:size]
        if len(stream.frame) < stream.size:
            return None
        frame, stream.frame = memoryview(stream.frame), None
        self.source = stream.number
        return frame

    def _read_on(self, stream: _Stream) -> None:
        """Read the rest of the frame that the chunk has the beginning of, and no more: the next one begins the chunk.

        So large frames come one after the other to the same memory, and seldom is a part of one moved.
        """
        end = self._at + stream.typed + LENGTH.size + stream.size
        if end > _CHUNK:
            there = self._end - self._at
            self._chunk[:there] = self._chunk[self._at : self._end]
            end -= self._at
            self._at, self._end = 0, there
        size = self._fill(stream, self._chunk[self._end : end])
        if size:
            self._end += size
            self._left, self._current = None, stream

    def _fill(self, stream: _Stream, target: memoryview) -> int:
        """Return how many bytes were read; 0 if none, also of a connection that has ended, which is hung up."""
        try:
            size = stream.socket.recv_into(target)
        except BlockingIOError:
            return 0
        except OSError:
            size = 0
        if not size:
            self.hang_up(stream.number)
        return size

    def _clear(self) -> None:
        """Move the incomplete frame from the chunk to its connection."""
        stream, self._left = self._left, None
        if stream is not None:
            begin = self._at + stream.typed + LENGTH.size
            try:
                # Only what has come, not what was announced: memory is taken as fast as the sender really sends.
                stream.frame = bytearray(self._chunk[begin : self._end])
            except MemoryError:
                self.hang_up(stream.number)

    def _fetch(self, stream: _Stream) -> bytes | None:
        """Return the next frame that another framing finds in the chunk, a piece of which it looks at in one call."""
        framing = stream.framing
        assert framing is not None
        if not framing.waiting and self._at < self._end:
            piece = self._chunk[self._at : min(self._at + _PIECE, self._end)]
            self._at += len(piece)
            framing.receive(piece)
            if framing.answer:
                answer, framing.answer = framing.answer, b""
                self._say(stream, answer)
        if framing.waiting:
            self.source = stream.number
            return framing.waiting.popleft()
        if framing.is_over:
            self.hang_up(stream.number)
        elif self._at == self._end:
            self._current = None
        return None

    def _say(self, stream: _Stream, answer: bytes) -> None:
        try:
            sent = stream.socket.send(answer)
        except BlockingIOError:
            return  # who does not read what it asks for goes without
        except OSError:
            sent = 0
        if sent < len(answer) and stream.framing is not None:
            stream.framing.is_over = True

    def _cut(self, stream: _Stream) -> bytes | memoryview | None:
        """Return the next frame in the chunk; if it is not complete, have the connection keep what there is of it."""
        length_at, end = self._at + stream.typed, self._end
        begin = length_at + LENGTH.size
        if begin > end:
            stream.began = bytes(self._chunk[self._at : end])
            self._current = None
            return None
        (size,) = LENGTH.unpack_from(self._chunk, length_at)
        if size > self._limit or (stream.typed and self._chunk[self._at] != MESSAGE):
            # Before there is memory for it: a stranger needs eight bytes to announce a terabyte.
            self.hang_up(stream.number)
            return None
        if begin + size > end:
            self._left, self._current = stream, None
            stream.size = size
            if begin - self._at + size > _CHUNK:
                self._clear()
            return None
        self._at = begin + size
        if self._at == end:
            self._current = None
        self.source = stream.number
        frame = self._chunk[begin : begin + size]
        return frame if size >= LARGE else bytes(frame)


_living: Final[weakref.WeakSet[FrameReader]] = weakref.WeakSet()


def _close_inherited() -> None:
    for streams in list(_living):
        streams.close()


# What a child does to the descriptor of an epoll happens to its parent: it would be deaf to what the child hangs up on.
os.register_at_fork(after_in_child=_close_inherited)
