"""State machine of one end of a tunnel, without clock, link or tasks: reliable, ordered, credit-based (sans-IO).

Plain calls instead of effect objects, as this is done for every chunk: with two effect objects per chunk, messages of
100 bytes took a quarter longer from machine to machine.  After every call the shell looks at what has become true:
``has_news`` and ``sending.has_next`` (the link should come and ``pop``), ``messages``, ``has_eof``, ``has_room``,
``is_flushed``, and ``ending`` once the tunnel has ended, with the ``final_message`` to post.

How nothing is lost, over links that may lose what was in flight:

- Every acknowledgement carries the progress of this end in both directions.  Links are in order, so an end that learns
  of chunks that it has not received knows that they are lost, and sends RESEND.
- After a reset of the link, and whenever an answer is overdue, an end asks (ASK) for such an acknowledgement.
- An end that closes drops its state at once.  The shell keeps the final message for a while and repeats it to a peer
  that missed it.
"""

from __future__ import annotations

from typing import Final, cast, final

from msgspec import Struct

from iris.kernel.config import Config
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.statistics import Statistics
from iris.kernel.wire import kinds
from iris.patterns.tunnel.messages import (
    ASK,
    RESEND,
    SMALLEST_WINDOW,
    CloseCode,
    Refusal,
    close_message,
    readable,
)
from iris.patterns.tunnel.receive_half import Budget, ReceivingHalf
from iris.patterns.tunnel.send_half import END_OF_FILE, SendingHalf
from iris.patterns.tunnel.states import Input, TunnelState, following

_ASKS_BEFORE_SILENT: Final = 3
"""A process that was stopped for a while finds all times long past; it asks again before it gives up."""


@final
class Ending(Struct, frozen=True, kw_only=True):
    """End of a tunnel: the reason, the end that closed it, and what was lost."""

    code: CloseCode
    reason: str
    by_peer: bool
    lost: int
    """Messages sent from this end that had not arrived whole at the other one."""


@final
class TunnelStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of one end of a tunnel.  messages_sent = messages_delivered + messages_lost + messages_waiting."""

    messages_sent: int
    messages_delivered: int
    """Messages that the other end has, read or not."""
    messages_lost: int
    """Messages that had not arrived whole when the tunnel ended."""
    messages_waiting: int
    messages_received: int
    messages_read: int
    bytes_sent: int
    bytes_received: int
    chunks_sent: int
    chunks_resent: int
    chunks_repeated: int
    """Chunks that came twice; the second was dropped."""
    chunks_misrouted: int
    """Chunks that came after a loss and before what was lost; they were dropped and came again."""
    bytes_held: int
    """Cost of what both directions hold in memory now: bytes, and ``CHUNK_COST`` for each piece."""


@final
class TunnelMachine:
    """State machine of one end of a tunnel.

    Args:
        identifier: id that this end puts into its messages.
        opening: message that asks for the tunnel, at the end that opens it; None at the other.
        config: window, chunk, largest message and times.
        now: the time.
        window: cost that the other end may send unread; None for the window of ``config``.
        budget: budget of all tunnels that the other node has opened; None if there is none.
    """

    __slots__ = (
        "_accept_due",
        "_ack_due",
        "_ask_due",
        "_asked",
        "_asks",
        "_config",
        "_deaf",
        "_gap",
        "_hurry",
        "_identifier",
        "_moved",
        "_opening",
        "_opening_due",
        "_received_at",
        "_touched",
        "_window",
        "accepted",
        "ending",
        "final_message",
        "receiving",
        "refusal",
        "sending",
        "state",
    )

    def __init__(
        self,
        *,
        identifier: int,
        opening: kinds.TunnelOpen | None,
        config: Config,
        now: float,
        window: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        full = max(config.tunnel_window, SMALLEST_WINDOW)
        self.state = TunnelState.OPENING if opening is not None else TunnelState.OPEN
        self.sending: Final = SendingHalf(bound=2 * full, piece=config.tunnel_chunk)
        self._window = full if window is None else window
        self.receiving: Final = ReceivingHalf(
            window=self._window, limit=config.max_payload, budget=budget, number=identifier
        )
        self.accepted = opening is None
        """True once the other end has accepted it, or this one."""
        self.ending: Ending | None = None
        self.final_message: kinds.TunnelClose | None = None
        """The last message to the other end, repeated whenever it asks, once the tunnel has ended here."""
        self.refusal: Refusal | None = None
        self._identifier = identifier
        self._opening = opening
        self._config = config
        self._opening_due = False
        self._accept_due = opening is None
        self._ack_due = False
        self._ask_due = False
        self._hurry = False
        self._received_at = self._moved = self._asked = now
        self._asks = 0  # since the other end was heard
        self._gap = float("inf")  # since when something is missing
        self._touched = False  # this side has sent something since the deadline was looked at
        self._deaf = False

    # -- this side ------------------------------------------------------------------------------------------

    def begin(self, window: int, limit: int) -> None:
        """Set the limits of the other end; the opener learns them from the acceptance."""
        self.sending.begin(window, limit)
        self.receiving.begin(window)

    def send(self, data: bytes | memoryview, *, packed: bool) -> None:
        """Queue a whole message, whether there is room or not.

        Raises:
            LocalProtocolError: the tunnel is not open, or ``send_eof`` was called.
        """
        self.state = following(self.state, Input.SEND)
        self.sending.add(data, packed=packed)
        self._touched = True

    def send_eof(self) -> None:
        """Queue the end of file, once; raise LocalProtocolError if the tunnel is not open."""
        after = following(self.state, Input.SEND_EOF)
        if after is not self.state:
            self.state = after
            self.sending.add_eof()
            self._touched = True

    def hurry(self) -> None:
        """Ask for an acknowledgement once all that can be sent is on the link, because a task waits for it."""
        self._hurry = True

    def stop_reading(self) -> None:
        """Drop what is unread and what still comes: two ends that both leave must not wait for each other's credit."""
        self._deaf = True
        self.receiving.discard()

    def close(self, code: CloseCode, reason: str) -> None:
        """End the tunnel here and drop what is unread.  A second call has no effect."""
        self.receiving.discard()
        if self.state is not TunnelState.CLOSED:
            self._end(Input.CLOSE, code, reason, by_peer=False)

    @property
    def asked(self) -> str | None:
        """The cluster that this end asked for the tunnel; None at the end that was asked."""
        return None if self._opening is None else self._opening.cluster

    def lost(self, reason: str) -> None:
        """End the tunnel, as the node at the other end was given up.  If it asks, it gets the final message."""
        if self.state is not TunnelState.CLOSED:
            words = f"the other end had given this node up: {reason}"
            self.final_message = close_message(self._identifier, CloseCode.LOST, self.receiving.received, words)
            self._end(Input.LOST, CloseCode.LOST, reason, by_peer=True)

    def reset(self) -> None:
        """Messages on the link, in either direction, may be lost: compare the progress with the other end."""
        if self.state is TunnelState.OPENING:
            self._opening_due = True
        elif self.state is not TunnelState.CLOSED:
            self._ask_due = True
            self.receiving.ask_again()

    def opened_again(self) -> None:
        """Accept once more: the opener has not received the acceptance."""
        if self.state is not TunnelState.CLOSED:
            self._accept_due = self._ask_due = True

    # -- what is put on the link ----------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """True if ``pop`` would return something else than data."""
        if self.state is TunnelState.OPENING:
            return self._opening_due
        if self.state is TunnelState.CLOSED:
            return False
        if self._accept_due or self._ack_due or self._ask_due:
            return True
        return (self._hurry and self.sending.is_only_unacknowledged) or self.receiving.owes_news

    @property
    def has_urgent_news(self) -> bool:
        """True if ``pop`` would return something besides the receipt of chunks and credit for them."""
        if self._accept_due or self._ack_due or self._ask_due or self.receiving.wants_resend:
            return True
        return (self._hurry and self.sending.is_only_unacknowledged) or self.sending.has_next

    def pop(self, limit: int, *, data: bool = True) -> tuple[kinds.OfTunnel, int] | None:
        """Return the next message to put on the link, with about ``limit`` bytes of data, and its size.

        With ``data`` False chunks stay here.
        """
        state = self.state
        if state is TunnelState.CLOSED or state is TunnelState.OPENING:
            if not self._opening_due or state is TunnelState.CLOSED:
                return None
            self._opening_due = False
            assert self._opening is not None
            return self._opening, 256
        if self._accept_due:
            self._accept_due = False
            return kinds.TunnelAccept(self._identifier, self._window, self._config.max_payload), 16
        if self._ack_due or self._ask_due or self.receiving.owes_news:
            return self._acknowledgement(), 16
        chunk = self.sending.pop(limit) if data else None
        if chunk is not None:
            sequence, flags, content = chunk
            if flags == END_OF_FILE:
                return kinds.TunnelEof(self._identifier, sequence), 8
            # A view is encoded as the bytes that it shows.
            return kinds.TunnelChunk(self._identifier, sequence, flags, cast("bytes", content)), len(content)
        if self._hurry and self.sending.is_only_unacknowledged:
            self._hurry = False
            self._ask_due = True
            return self._acknowledgement(), 16
        return None

    def _acknowledgement(self) -> kinds.TunnelAck:
        granted, resend = self.receiving.announce()
        flags = (ASK if self._ask_due else 0) | (RESEND if resend else 0)
        self._ack_due = self._ask_due = False
        # ``received`` counts chunks in order only. It is a promise: the other end drops everything below it and cannot
        # send it again.
        return kinds.TunnelAck(self._identifier, self.receiving.received, granted, self.sending.sent, flags)

    # -- what the other end says ----------------------------------------------------------------------------

    def receive(self, message: kinds.OfTunnel, now: float) -> None:
        """Accept a message of the other end.  If it breaks the protocol, the tunnel ends with the reason."""
        if self.state is TunnelState.CLOSED:
            return
        self._received_at = now
        self._asks = 0
        try:
            self._receive_untrusted(message, now)
        except RemoteProtocolError as error:
            self._end(Input.CLOSE, CloseCode.VIOLATION, str(error), by_peer=False)
            return
        if not self.receiving.has_gap:
            self._gap = float("inf")
        elif self._gap > now:
            self._gap = now

    def _receive_untrusted(self, message: kinds.OfTunnel, now: float) -> None:
        match message:
            case kinds.TunnelChunk(sequence=sequence):
                if self._accepts(Input.CHUNK, sequence):
                    if self.receiving.add(message):
                        self._moved = now
                        self._gap = float("inf")
                        if self._deaf:
                            self.receiving.discard()
                    else:
                        self._ack_due |= self.receiving.is_repeated(sequence)
            case kinds.TunnelAck(received=received, flags=flags):
                self.state = following(self.state, Input.ACK)
                if self.state is not TunnelState.OPENING:
                    if self.sending.acknowledge(received, message.granted):
                        self._moved = now
                    if flags & RESEND:
                        self.sending.go_back(received)
                    self._ack_due |= bool(flags & ASK)
                    # Links keep the order: what the other end had sent before this message and is not here yet was
                    # lost.
                    self.receiving.compare(message.sent)
            case kinds.TunnelEof(sequence=sequence):
                if self._accepts(Input.END_OF_FILE, sequence):
                    if self.receiving.add_eof(sequence):
                        self.state = following(self.state, Input.END_OF_FILE)
                        self._moved = now
                    self._ack_due = True
            case kinds.TunnelAccept():
                self._opener_only()
                if self.state is TunnelState.OPENING:
                    self.begin(message.window, message.limit)
                    # What came before the acceptance was dropped; if anything did, its sender has to learn of it.
                    self._ask_due = self.receiving.chunks_misrouted > 0
                self.state = following(self.state, Input.ACCEPT)
                self.accepted = True
            case kinds.TunnelRefuse():
                self._opener_only()
                refusal = Refusal.of(message)
                following(self.state, Input.REFUSE)
                self.refusal = refusal
                self._end(Input.REFUSE, CloseCode.REFUSED, refusal.text or refusal.code, by_peer=True)
            case kinds.TunnelClose(received=received):
                if self.state is not TunnelState.OPENING:
                    # What had arrived before the peer closed counts as delivered and not as lost.
                    self.sending.acknowledge(received, 0)
                self._end(Input.PEER_CLOSE, CloseCode(message.code), readable(message.reason), by_peer=True)
            case kinds.TunnelOpen():
                raise RemoteProtocolError("a tunnel is opened within a tunnel")

    def _accepts(self, input_: Input, sequence: int) -> bool:
        """Return whether a numbered message goes to the receiving half."""
        if self.state is TunnelState.OPENING:
            self.state = following(self.state, input_)
            self.receiving.chunks_misrouted += 1
            return False
        if self.receiving.has_eof:
            self.state = following(self.state, Input.REPEATED if self.receiving.is_repeated(sequence) else input_)
        return True

    def _opener_only(self) -> None:
        if self._opening is None:
            raise RemoteProtocolError("an answer to an opening came from the end that opened")

    def _end(self, input_: Input, code: CloseCode, reason: str, *, by_peer: bool) -> None:
        if not by_peer:
            self.final_message = close_message(self._identifier, code, self.receiving.received, reason)
        self.state = following(self.state, input_)
        self.ending = Ending(code=code, reason=reason, by_peer=by_peer, lost=self.sending.abandon())

    # -- time -----------------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Cost of what the other end may send unread."""
        return self._window

    @property
    def deadline(self) -> float:
        """Time at which to call ``expire``; infinity if never."""
        if self.state is TunnelState.CLOSED:
            return float("inf")
        return min(self._next_ask, self._moved + self._config.tunnel_idle)

    @property
    def _next_ask(self) -> float:
        expects = self.state is TunnelState.OPENING or self._asks or self.sending.is_waiting or self.receiving.has_gap
        pause = self._config.tunnel_retry if expects else self._config.tunnel_keepalive
        return max(self._received_at, self._asked) + pause

    def expire(self, now: float) -> None:
        """Ask the other end if an answer is overdue; end the tunnel if too much is."""
        if self.state is TunnelState.CLOSED:
            return
        if self._touched or self.receiving.was_read:
            self._touched = self.receiving.was_read = False
            self._moved = now
        silence = self._config.tunnel_silence
        if now - self._moved >= self._config.tunnel_idle:
            self._give_up(CloseCode.IDLE, f"nothing moved for {self._config.tunnel_idle:g} s")
        elif self._asks >= _ASKS_BEFORE_SILENT and now - self._received_at >= silence:
            self._give_up(CloseCode.SILENT, f"the other end was silent for {silence:g} s")
        elif now - self._gap >= silence:
            self._give_up(CloseCode.VIOLATION, f"chunk {self.receiving.received} was lost and never sent again")
        elif now >= self._next_ask:
            self._asked = now
            self._asks += 1
            if self.state is TunnelState.OPENING:
                self._opening_due = True
            else:
                self._ask_due = True
                self.receiving.ask_again()

    def _give_up(self, code: CloseCode, reason: str) -> None:
        self._end(Input.CLOSE, code, reason, by_peer=False)

    def statistics(self) -> TunnelStatistics:
        """Return a snapshot of the counters."""
        sending, receiving = self.sending, self.receiving
        lost = self.ending.lost if self.ending is not None else 0
        return TunnelStatistics(
            messages_sent=sending.messages_sent,
            messages_delivered=sending.messages_delivered,
            messages_lost=lost,
            messages_waiting=sending.messages_sent - sending.messages_delivered - lost,
            messages_received=receiving.messages_received,
            messages_read=receiving.messages_read,
            bytes_sent=sending.bytes_sent,
            bytes_received=receiving.bytes_received,
            chunks_sent=sending.chunks_sent,
            chunks_resent=sending.chunks_resent,
            chunks_repeated=receiving.chunks_repeated,
            chunks_misrouted=receiving.chunks_misrouted,
            bytes_held=sending.held + receiving.held,
        )
