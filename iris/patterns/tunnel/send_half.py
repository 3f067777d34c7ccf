"""Send half of a tunnel: queues messages, cuts them into chunks, and keeps the chunks until they are acknowledged.

A message is cut late so that a chunk fits the frame it leaves in.  A chunk once cut keeps its number and its size.  If
it is lost, it and all after it are sent again (go-back-n).  Links are in order, so what follows a loss is nearly always
lost too, and the other end need not keep what arrived out of order.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, final

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.tunnel.messages import CHUNK_COST, END, PACKED, SMALLEST_PIECE

END_OF_FILE: Final = -1
"""The ``flags`` under which the end of file is kept among the chunks.  It costs no credit."""

_TAIL: Final = 8
"""A piece gets longer by up to this part of its limit, if its message then ends with it.  Messages of 64 KiB in
frames that hold four would else be out of step with them after one of another size, for good: five chunks
instead of four."""

_EOF_CHUNK: Final = (END_OF_FILE, b"")


class Piece(NamedTuple):
    """One piece of a message, or the end of file."""

    sequence: int
    flags: int
    data: bytes | memoryview


@final
class SendingHalf:
    """Send half: messages and chunks of one end until they are acknowledged.

    Args:
        bound: bytes that may be held, waiting and unacknowledged together; one message may exceed it alone.
        piece: largest chunk, in bytes.
    """

    __slots__ = (
        "_bound",
        "_cut",
        "_eof_waits",
        "_granted",
        "_kept",
        "_kept_cost",
        "_offset",
        "_spent",
        "_waiting",
        "_waiting_cost",
        "acknowledged",
        "bytes_sent",
        "chunks_resent",
        "chunks_sent",
        "limit",
        "messages_delivered",
        "messages_sent",
        "piece",
        "sent",
    )

    def __init__(self, *, bound: int, piece: int) -> None:
        self.acknowledged = 0
        """Number below which everything is at the other end."""
        self.sent = 0
        """Number of the chunk to put on the link next; after a loss it is one that has been there before."""
        self.limit = 0
        """Largest message that the other end accepts, in bytes."""
        self.messages_sent = self.messages_delivered = self.bytes_sent = 0
        self.chunks_sent = self.chunks_resent = 0
        self._bound = bound
        self.piece = max(piece, SMALLEST_PIECE)
        """Largest chunk, in bytes."""
        self._waiting: deque[tuple[bytes | memoryview, int]] = deque()
        self._waiting_cost = 0
        self._offset = 0  # how much of the first waiting message has been cut off already
        self._eof_waits = False
        self._kept: dict[int, tuple[int, bytes | memoryview]] = {}
        """Flags and data of chunks by number, from ``acknowledged`` to ``_cut``."""
        self._kept_cost = 0
        self._cut = 0  # number of the next chunk to be cut
        self._spent = 0  # cost of everything cut so far
        self._granted = 0

    def begin(self, window: int, limit: int) -> None:
        """Set the limits of the other end."""
        self._granted = max(self._granted, window)
        self.limit = limit
        # With four chunks in a window, credit that comes back in quarters always suffices for the next one.
        self.piece = max(SMALLEST_PIECE, min(self.piece, window // 4 - CHUNK_COST))

    @property
    def held(self) -> int:
        """Cost of everything here, waiting or unacknowledged."""
        return self._waiting_cost + self._kept_cost

    @property
    def is_flushed(self) -> bool:
        """True if the other end has everything, the end of file included if there was one."""
        return not self._kept and not self._waiting and not self._eof_waits

    @property
    def is_waiting(self) -> bool:
        """True if something has not left or is not acknowledged."""
        return not self.is_flushed

    @property
    def is_only_unacknowledged(self) -> bool:
        """True if all is on the link and something of it is not acknowledged."""
        return bool(self._kept) and self.sent == self._cut and not self._waiting and not self._eof_waits

    @property
    def has_next(self) -> bool:
        """True if ``pop`` would return something."""
        return self.sent < self._cut or (self._can_cut() if self._waiting else self._eof_waits)

    @property
    def has_chunk(self) -> bool:
        """True if ``pop`` would return a chunk, and not the end of file."""
        if self.sent < self._cut:
            return self._kept[self.sent][0] != END_OF_FILE
        return bool(self._waiting) and self._can_cut()

    def has_room(self, size: int) -> bool:
        """Return whether there is room for a message of ``size`` bytes."""
        held = self._waiting_cost + self._kept_cost
        return not held or held + size + CHUNK_COST <= self._bound

    def add(self, data: bytes | memoryview, *, packed: bool) -> None:
        """Queue a whole message, whether there is room or not.  The bytes that a view shows must not change."""
        self._waiting.append((data, PACKED if packed else 0))
        self._waiting_cost += len(data) + CHUNK_COST
        self.messages_sent += 1
        self.bytes_sent += len(data)

    def add_eof(self) -> None:
        """Queue the end of file behind the last message."""
        self._eof_waits = True

    def pop(self, limit: int) -> Piece | None:
        """Return the next piece for the link, of about ``limit`` bytes; None while credit or data are missing."""
        if self.sent < self._cut:
            flags, data = self._kept[self.sent]
            chunk = Piece(self.sent, flags, data)
            self.sent += 1
            self.chunks_resent += 1
            return chunk
        if self._waiting:
            if not self._can_cut():
                return None
            flags, data = self._cut_next(limit)
        elif self._eof_waits:
            flags, data = self._cut_eof()
        else:
            return None
        number = self._cut
        self._kept[number] = (flags, data)
        self._cut = self.sent = number + 1
        self.chunks_sent += 1
        return Piece(number, flags, data)

    def _can_cut(self) -> bool:
        """Return whether there is credit for the next piece of what waits."""
        rest = len(self._waiting[0][0]) - self._offset
        return self._spent + min(rest, self.piece) + CHUNK_COST <= self._granted

    def _cut_next(self, limit: int) -> tuple[int, bytes | memoryview]:
        whole, flags = self._waiting[0]
        start = self._offset
        limit = max(limit, SMALLEST_PIECE)
        size = min(self.piece, limit + limit // _TAIL)
        if len(whole) - start > size:
            size = min(self.piece, limit)
            data = whole[start : start + size]
            self._offset = start + size
        else:
            data = whole[start:] if start else whole
            flags |= END
            self._offset = 0
            self._waiting.popleft()
            self._waiting_cost -= CHUNK_COST
        self._waiting_cost -= len(data)
        self._kept_cost += len(data) + CHUNK_COST
        # Spent once, when the chunk is cut: a repeat costs no credit, or a loss would shrink the window for good.
        self._spent += len(data) + CHUNK_COST
        return flags, data

    def _cut_eof(self) -> tuple[int, bytes]:
        self._eof_waits = False
        return _EOF_CHUNK

    def acknowledge(self, received: int, granted: int) -> bool:
        """Drop everything numbered below ``received``; return whether anything was new.

        Raises:
            RemoteProtocolError: something is acknowledged that was never sent.
        """
        if received > self._cut:
            raise RemoteProtocolError(f"chunk {received - 1} was acknowledged, but only {self._cut} were sent")
        news = granted > self._granted or received > self.acknowledged
        self._granted = max(self._granted, granted)
        for number in range(self.acknowledged, received):
            # From here this end cannot send the chunk again: the other end holds it until it is read.
            flags, data = self._kept.pop(number)
            if flags != END_OF_FILE:
                self._kept_cost -= len(data) + CHUNK_COST
                self.messages_delivered += flags & END
        self.acknowledged = max(self.acknowledged, received)
        self.sent = max(self.sent, self.acknowledged)
        return news

    def go_back(self, received: int) -> None:
        """Send everything from ``received`` on again; older than what is acknowledged means nothing."""
        if received >= self.acknowledged:
            self.sent = min(self.sent, received)

    def abandon(self) -> int:
        """Drop everything; return how many messages had not arrived whole at the other end."""
        self._waiting.clear()
        self._kept.clear()
        self._waiting_cost = self._kept_cost = self._offset = 0
        self._eof_waits = False
        self.sent = self.acknowledged = self._cut
        return self.messages_sent - self.messages_delivered
