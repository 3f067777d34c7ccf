"""Receive half of a tunnel: chunks arrive in order, wait for a reader, and give credit back as they are read.

Memory stays bounded though a message may be larger than the window.  Credit is the window beyond what was *read*.
While the first message is still incomplete nobody can read, and credit is the window beyond what was *received*.  So
at most one incomplete message, whose size has a limit of its own, and one window beyond it are ever here.

The tunnels that one peer opens share a budget (``Budget``).  Beyond it, one of them at a time gets credit for the rest
of a message that is longer than its window, and the others wait in line.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Final, Protocol, final

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from iris.patterns.tunnel.messages import CHUNK_COST, END, PACKED, SMALLEST_PIECE

_PATIENCE: Final = 8
"""Windows of chunks out of turn that come from a loss or two; more are a peer that does not count."""


class CreditObserver(Protocol):
    """Has the tunnels whose memory is bounded together."""

    def credit_returned(self, number: int) -> None:
        """The tunnel of this number may announce the credit that the budget held back.  Must not block."""


@final
class Budget:
    """Budget of memory for all tunnels that one peer has opened.

    Attributes:
        limit: cost beyond which incomplete messages get no more credit than their windows, but for one of them.
    """

    __slots__ = ("_finishing", "_line", "_observer", "held", "limit")

    def __init__(self, limit: float, observer: CreditObserver | None = None) -> None:
        self.limit: Final = limit
        self._observer = observer
        self.held = 0
        """Cost of the chunks that wait for readers."""
        self._finishing: ReceivingHalf | None = None
        """Half that goes on beyond the limit, until its message is read, so that there is always one that does."""
        self._line: OrderedDict[ReceivingHalf, None] = OrderedDict()
        """Halves that go on in their turn, or once there is room."""

    def admits(self, half: ReceivingHalf) -> bool:
        """Return whether an incomplete message gets more credit; if not, its half is called in its turn."""
        if self.held <= self.limit:
            return True
        if self._finishing is not half:
            self._line[half] = None
            # A message that nobody reads holds the others up until one of their other ends asks, and not for ever.
            if self._finishing is None or self._finishing.messages:
                self._finishing = None
                self._pass_on()
        return self._finishing is half

    def release(self, half: ReceivingHalf, cost: int, *, message: bool) -> None:
        """Note that ``half`` has lost chunks to a reader, and whether they ended a message."""
        self.held -= cost
        if message and self._finishing is half:
            self._finishing = None
        if self._line:
            self._pass_on()

    def complete(self, half: ReceivingHalf) -> None:
        """Remove ``half`` from the line: its message has arrived."""
        self._line.pop(half, None)

    def _pass_on(self) -> None:
        """Call as many of those in line as may go on now: nothing else makes them look."""
        while self._line and (self.held <= self.limit or self._finishing is None):
            half, _ = self._line.popitem(last=False)
            if self.held > self.limit:
                self._finishing = half
            if self._observer is not None:
                self._observer.credit_returned(half.number)


@final
class ReceivingHalf:
    """Receive half: chunks that have arrived for one end.

    Args:
        window: cost of what may be in flight and unread.
        limit: largest message, in bytes.
        budget: budget of all tunnels that the peer has opened; None if there is none.
        number: number of the tunnel, for the observer of the budget.
    """

    __slots__ = (
        "_announced",
        "_announced_received",
        "_budget",
        "_consumed",
        "_cost",
        "_limit",
        "_misrouted",
        "_partial",
        "_partial_flags",
        "_quarter",
        "_waiting",
        "_window",
        "bytes_received",
        "chunks_misrouted",
        "chunks_repeated",
        "has_eof",
        "messages",
        "messages_read",
        "messages_received",
        "number",
        "received",
        "resends",
        "wants_resend",
        "was_read",
    )

    def __init__(
        self,
        *,
        window: int,
        limit: int,
        budget: Budget | None = None,
        number: int = 0,
    ) -> None:
        self.received = 0
        """Number below which everything has arrived."""
        self.has_eof = False
        self.wants_resend = False
        """True if something was lost that the other end is to be asked for again."""
        self.resends = 0
        """Requests to send again since something arrived in order."""
        self.messages_received = self.messages_read = self.bytes_received = 0
        self.chunks_repeated = self.chunks_misrouted = 0
        self._budget = budget or Budget(math.inf)
        self.number: Final = number
        self._window = window
        self._quarter = window // 4  # cost after which chunks are acknowledged
        self._limit = limit
        self._waiting: deque[tuple[int, bytes]] = deque()  # flags and data
        self.messages = 0
        """Complete messages that wait to be read."""
        self.was_read = False
        """True once something was read; who looks at that resets it."""
        self._partial = -1  # bytes of the message that is arriving; -1 between messages
        self._partial_flags = 0
        self._cost = 0  # of everything received
        self._consumed = 0  # of everything read
        self._announced = window  # credit that the other end knows of, or soon will
        self._announced_received = 0  # cost received at the last announcement
        self._misrouted = 0  # cost of what came out of turn since something came in order

    def begin(self, window: int) -> None:
        """Note the window of the other end, which keeps about as much until it is acknowledged."""
        self._quarter = min(window, self._window) // 4

    @property
    def held(self) -> int:
        """Cost of the chunks that wait for a reader."""
        return self._cost - self._consumed

    @property
    def has_piece(self) -> bool:
        """True if ``read_piece`` would return a chunk."""
        return bool(self._waiting)

    @property
    def has_gap(self) -> bool:
        """True if something was lost that has not come again."""
        return self.wants_resend or self.resends > 0

    # -- what arrives ---------------------------------------------------------------------------------------

    def add(self, chunk: kinds.TunnelChunk) -> bool:
        """Accept a chunk; return False if it was repeated or out of turn, and dropped.

        Raises:
            RemoteProtocolError: it exceeds the credit or the limit, is malformed, or too many came out of turn.
        """
        size = len(chunk.data)
        if not self._is_next(chunk.sequence, size + CHUNK_COST):
            return False
        cost = self._cost + size + CHUNK_COST
        # Checked against the credit that was announced and not against the window: a peer may use what it was granted.
        if cost > self._announced:
            raise RemoteProtocolError(f"the peer ignores credit: {cost - self._announced} more than was granted")
        if self._partial >= 0 and chunk.flags & PACKED != self._partial_flags:
            raise RemoteProtocolError("bytes and packed chunks in one message")
        whole = max(self._partial, 0) + size
        if whole > self._limit:
            raise RemoteProtocolError(f"a message of more than {self._limit} bytes, the limit that was agreed on")
        if chunk.flags & END:
            if self._partial >= 0:
                self._budget.complete(self)
            self._partial = -1
            self.messages += 1
            self.messages_received += 1
        elif size < SMALLEST_PIECE:
            raise RemoteProtocolError(f"a piece of {size} bytes that is not the last of its message")
        else:
            self._partial = whole
            self._partial_flags = chunk.flags & PACKED
        self._cost = cost
        self._budget.held += size + CHUNK_COST
        self.bytes_received += size
        self._waiting.append((chunk.flags, chunk.data))
        return True

    def add_eof(self, sequence: int) -> bool:
        """Accept the end of file; return False if it was repeated or out of turn, and dropped.

        Raises:
            RemoteProtocolError: it comes within a message, or too much came out of turn.
        """
        if not self._is_next(sequence, CHUNK_COST):
            return False
        if self._partial >= 0:
            raise RemoteProtocolError("the end of file comes within a message")
        self.has_eof = True
        return True

    def is_repeated(self, sequence: int) -> bool:
        """Return whether a number has arrived before."""
        return sequence < self.received

    def _is_next(self, sequence: int, cost: int) -> bool:
        if sequence == self.received:
            # From here the chunk counts as received, and the next acknowledgement lets the other end drop it. So a
            # check of its content that fails later has to end the tunnel.
            self.received += 1
            self.resends = 0
            self.wants_resend = False
            self._misrouted = 0
            return True
        if sequence < self.received:
            self.chunks_repeated += 1
            return False
        self.chunks_misrouted += 1
        self._misrouted += cost
        if self._misrouted > (_PATIENCE + self.resends) * (self._announced - self._cost + CHUNK_COST):
            raise RemoteProtocolError(f"out of order: chunk {sequence} came, and again no chunk {self.received}")
        if not self.resends:
            self.wants_resend = True
        return False

    def compare(self, sent: int) -> None:
        """Note that the other end has put everything numbered below ``sent`` on the link before this moment."""
        if sent > self.received and not self.resends:
            self.wants_resend = True

    def ask_again(self) -> None:
        """Request what is missing once more: the first request may be lost, too."""
        if self.resends:
            self.wants_resend = True

    # -- credit ---------------------------------------------------------------------------------------------

    def _grant(self) -> int:
        if self.messages:
            return self._consumed + self._window
        if self._partial >= 0 and not self._budget.admits(self):
            return self._consumed + self._window
        return self._cost + self._window

    @property
    def owes_news(self) -> bool:
        """True if an acknowledgement is due."""
        due = self._announced + self._window // 4
        return (
            self.wants_resend
            or self._cost - self._announced_received >= self._quarter
            or (self._cost + self._window >= due and self._grant() >= due)  # it never grants more than that
        )

    def announce(self) -> tuple[int, bool]:
        """Return the credit to announce now, and whether to ask for everything after ``received`` again."""
        # Credit is never taken back: the peer may have spent it already.
        self._announced = max(self._announced, self._grant())
        self._announced_received = self._cost
        resend, self.wants_resend = self.wants_resend, False
        self.resends += resend
        return self._announced, resend

    # -- reading --------------------------------------------------------------------------------------------

    def read(self) -> tuple[bytes, bool] | None:
        """Return the next message and whether it is packed; None if none is whole."""
        if not self.messages:
            return None
        flags, data = self._waiting.popleft()
        cost = len(data) + CHUNK_COST
        if not flags & END:
            parts = [data]
            while not flags & END:
                flags, data = self._waiting.popleft()
                parts.append(data)
                cost += len(data) + CHUNK_COST
            data = b"".join(parts)
        self.was_read = True
        self._consumed += cost
        self.messages -= 1
        self.messages_read += 1
        self._budget.release(self, cost, message=True)
        return data, bool(flags & PACKED)

    def read_piece(self) -> tuple[bytes, bool] | None:
        """Return the next chunk, wherever messages end, and whether it is packed; None if there is none."""
        if not self._waiting:
            return None
        flags, data = self._waiting.popleft()
        self.was_read = True
        self._consumed += len(data) + CHUNK_COST
        if flags & END:
            self.messages -= 1
            self.messages_read += 1
        self._budget.release(self, len(data) + CHUNK_COST, message=bool(flags & END))
        return data, bool(flags & PACKED)

    def discard(self) -> int:
        """Drop everything unread; return how many whole messages that were."""
        dropped = self.messages
        self._waiting.clear()
        self.messages = 0
        held, self._consumed = self.held, self._cost
        self._budget.release(self, held, message=dropped > 0)
        return dropped

    def leave_budget(self) -> None:
        """Leave the budget, as the tunnel has ended: unread chunks belong to the holder of the tunnel."""
        budget, self._budget = self._budget, Budget(math.inf)
        budget.complete(self)
        budget.release(self, self.held, message=True)
