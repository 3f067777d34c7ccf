"""Link: the ordered queue of messages to one peer.  A batch is sealed once, and frames leave in order.

Promises: messages leave in the order in which they were posted; at most ``Config.link_bytes`` wait, and what exceeds
them is refused with ``NotSent`` and counted; *posted = sent + lost + waiting* (``LinkStatistics``).  A link outlives
its connection and its session.  While it has neither, messages wait; when the peer is given up, they count as lost.
*Sent* means that the transport took the frame, and not that the peer has received it.

Batching has no timer: whatever was posted when the scheduler comes round to the link's flusher is one batch.  So an
idle link sends its first message at once, and a busy one sends full batches.

Two classes of traffic share a link.  *Messages* are posted and kept here.  *Bulk* stays with its source, which is asked
for the next piece when no message waits: a transfer of any size neither fills the link nor delays a request by more
than the frames already handed to the transport.  While somebody waits for answers to messages on the link, these frames
carry less bulk, and its sources are notified.

``post`` is the fast path and takes plain calls: with an effect object for each message it cost three times as much
(0.25 us against 0.8 us).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol, final

import trio

from iris.kernel.buffer_pool import LARGE, give_back, is_sparse
from iris.kernel.config import MIB, Config
from iris.kernel.errors import LocalProtocolError, NotSent
from iris.kernel.link.bulk import BulkQueue, BulkSource
from iris.kernel.link.run import OpenRun
from iris.kernel.names import NodeId
from iris.kernel.statistics import Statistics
from iris.kernel.tasks import Wakeup
from iris.kernel.transport import OutgoingConnection
from iris.kernel.wire import MAX_CARRIED, Message, encode_batch


@final
class LinkStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of one link since it was made.  posted = sent + lost + waiting, in messages."""

    posted: int
    sent: int
    lost: int
    waiting: int
    refused: int
    frames_sent: int
    bytes_sent: int
    bytes_waiting: int

    def __add__(self, other: LinkStatistics) -> LinkStatistics:
        """Return the counters of both together."""
        return LinkStatistics(
            posted=self.posted + other.posted,
            sent=self.sent + other.sent,
            lost=self.lost + other.lost,
            waiting=self.waiting + other.waiting,
            refused=self.refused + other.refused,
            frames_sent=self.frames_sent + other.frames_sent,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            bytes_waiting=self.bytes_waiting + other.bytes_waiting,
        )


_MESSAGE_OVERHEAD: Final = 32
"""Size in bytes that is counted for a message besides its payload, so that empty ones are bounded too."""

CONTROL_RESERVE: Final = MIB
"""Room on a full link for what two nodes need to stay in agreement: interest, holds, cancellations, confirmations."""

_QUIET: Final = 0.00005
"""Seconds without a frame after which a message goes out within ``post`` if the one before it went alone: a caller that
asks one thing at a time gets its reply 30 us sooner than by way of the flusher.

One that nobody waits for does so once until the flusher comes round.  A publisher that does not yield would else send
each event by itself once it takes longer than this for one round of its subscribers, and so never be faster again."""

_EAGER: Final = 16
"""Messages for which somebody waits that make a frame.  With 64 requests in progress they then travel in several parts,
and either end works on one while the other end works on the next: 36,000 requests/s instead of 20,000."""

_SHARED: Final = 0.02
"""Seconds for which a message that somebody waits for makes bulk give way: longer than between two of one who asks
again and again."""

_MAX_URGENT: Final = 8
"""Frames of handshakes on one connection.  There is one handshake at a time, with two frames of each side."""


class FrameSession(Protocol):
    """The part of a session (``iris.security.channel.Session``) that a link needs: it makes one frame of one batch."""

    def seal(self, body: bytes | bytearray | memoryview) -> bytes | memoryview:
        """Return the whole frame for a batch; a view is the caller's, as the buffer behind it is."""
        ...


class LinkOwner(Protocol):
    """The part that runs a link, and has to know what it could not send: ``iris.cluster.mesh.Mesh``."""

    def link_failed(self, link: Link, error: Exception) -> None:
        """Messages could not be encoded or sealed, and are lost.

        Called from within ``Link.post`` or by the task that runs the link.  It must not block, nor close the link.
        """
        ...


@final
class Link:
    """The ordered queue of messages to one peer.  Owned by the mesh, which runs its flusher.

    Args:
        node: the peer.
        config: limits.
        owner: receiver of failures.  None: they are raised, to the caller of ``post`` or in the task of ``run``.
    """

    __slots__ = (
        "_alone",
        "_asked",
        "_asked_before",
        "_batches",
        "_bulk",
        "_bytes_sent",
        "_carried",
        "_closed",
        "_frame",
        "_frame_messages",
        "_frames_sent",
        "_gathered",
        "_grew",
        "_growing",
        "_limit",
        "_lost",
        "_most",
        "_offering",
        "_open",
        "_open_bytes",
        "_outgoing",
        "_owner",
        "_pushed",
        "_refused",
        "_room",
        "_sent",
        "_session",
        "_shared_until",
        "_size",
        "_urgent",
        "_waiting_bytes",
        "_wakeup",
        "last_progress",
        "node",
    )

    copies: Final = 1
    """Nodes that it leads to."""

    def __init__(self, node: NodeId, config: Config, owner: LinkOwner | None = None) -> None:
        self.node: Final = node
        self._owner = owner
        self._size = config.batch_bytes
        self._most = config.batch_messages
        self._limit = config.link_bytes
        self._session: FrameSession | None = None
        self._outgoing: OutgoingConnection | None = None
        self._open: list[Message] = []
        self._open_bytes = 0  # without what a message has grown by
        self._carried = 0  # messages that those of the open batch carry, at most
        self._growing: OpenRun | None = None
        self._batches: deque[tuple[list[Any], int]] = deque()  # of messages; bytes: one, encoded already
        self._waiting_bytes = 0  # of closed batches
        self._bulk = BulkQueue(config)
        self._frame: bytes | memoryview | None = None  # sealed, but not yet taken by the transport
        self._frame_messages = 0
        self._urgent: deque[bytes | memoryview] = deque()  # frames of the mesh itself, for the present connection
        self._offering = False
        self._alone = True  # the last frame carried a single message that had not grown
        self._grew = False  # a message in the open batch has grown
        self._gathered = False  # the present frame carries several messages, or one that has grown
        self._pushed = False  # a message that nobody waits for has left within ``post`` since the flusher last ran
        self._asked = self._asked_before = 0  # messages that somebody waits for, now and at the last look
        self._shared_until = 0.0
        self._wakeup = Wakeup()
        self._room = trio.lowlevel.ParkingLot()
        self._closed: str | None = None
        self.last_progress = 0.0
        """Time when the transport last took a frame, or the first message of an idle link was posted; trio's clock."""
        self._sent = self._lost = self._refused = self._frames_sent = self._bytes_sent = 0

    def __repr__(self) -> str:
        state = self._closed or ("up" if self._session and self._outgoing else "down")
        return f"<Link to {self.node[:8]} {state}, {self.waiting_bytes} bytes waiting>"

    @property
    def waiting_bytes(self) -> int:
        """Size of the messages that wait here, in bytes."""
        return self._waiting_bytes + self._held()

    @property
    def outgoing(self) -> OutgoingConnection | None:
        """The connection in use, if there is one."""
        return self._outgoing

    @property
    def is_up(self) -> bool:
        """True if frames can leave now."""
        return self._session is not None and self._outgoing is not None

    @property
    def is_idle(self) -> bool:
        """True if nothing waits here, and the link has not ended."""
        waiting = self._open or self._batches or self._urgent or self._frame is not None
        return not (waiting or self._offering or self._closed is not None)

    def statistics(self) -> LinkStatistics:
        """Return a snapshot of the counters."""
        waiting = len(self._open) + sum(len(batch) for batch, _ in self._batches) + self._frame_messages
        return LinkStatistics(
            posted=self._sent + self._lost + waiting,
            sent=self._sent,
            lost=self._lost,
            waiting=waiting,
            refused=self._refused,
            frames_sent=self._frames_sent,
            bytes_sent=self._bytes_sent,
            bytes_waiting=self.waiting_bytes,
        )

    # -- what patterns call ---------------------------------------------------------------------------------

    def post(
        self, message: Message, size: int, reserve: int = 0, growing: OpenRun | None = None, *, flush: bool = False
    ) -> None:
        """Append a message; it leaves with the next batch.

        Args:
            message: a kind and its fields.
            size: bytes of its payload, headers and names.
            reserve: bytes by which the limit may be exceeded; ``CONTROL_RESERVE`` for what must not be refused lightly.
            growing: a run that may grow until the link encodes it; its ``room`` is cut to what the batch has.
            flush: somebody waits for what the other end makes of it: with ``_EAGER`` messages the batch leaves at once.

        Raises:
            NotSent: ``Config.link_bytes`` are waiting already, or the link has ended.  The message was not taken.
        """
        size += _MESSAGE_OVERHEAD
        held = self._open_bytes if self._growing is None else self._held()
        if self._closed is not None or self._waiting_bytes + held + size > self._limit + reserve:
            raise self._refusal()
        # From here on the message is the link's, and counts as posted: nothing below may refuse it.  What cannot be
        # encoded later is lost, and counted so.
        quiet, now = False, None
        if held and (held + size > self._size or len(self._open) >= self._most):
            self._close_batch()
        elif not held and not self._batches and self._frame is None:
            now = trio.current_time()
            quiet = self._alone and now - self.last_progress > _QUIET and not self._pushed
            if now > self.last_progress:
                self.last_progress = now
            if quiet and flush and growing is None and self._send_first(message, now):
                return
        self._open.append(message)
        self._open_bytes += size
        self._asked += flush
        if growing is not None:
            self._grow_no_more()
            self._growing = growing
            growing.room = min(growing.room, self._size - self._open_bytes)
        if (quiet or (flush and len(self._open) >= _EAGER)) and self._push(now) and not self._open:
            if flush:
                return  # nothing is left for the flusher
            self._pushed = True
        if len(self._open) <= 1:  # else the flusher was woken for the first one
            self._wakeup.wake()

    def post_apart(self, message: Message, size: int, reserve: int = 0) -> None:
        """Post a message in a frame of its own, and offer the transport what waits: no task may come round for it soon.

        Args:
            message: see ``post``.
            size: see ``post``.
            reserve: see ``post``.

        Raises:
            NotSent: see ``post``.
        """
        self.end_batch()
        self.post(message, size, reserve)
        self.end_batch()
        while not self.is_idle and self._push():
            pass

    def post_carrying(self, message: Message, size: int, carried: int, reserve: int = 0) -> None:
        """Append a message that carries others; a batch has no more of those than its receiver takes for a frame.

        Args:
            message: see ``post``.
            size: see ``post``.
            carried: messages in it, at most; see ``wire.carried_by``.
            reserve: see ``post``.

        Raises:
            NotSent: see ``post``.
        """
        if self._carried and self._carried + carried > MAX_CARRIED:
            self.end_batch()
        self.post(message, size, reserve)
        if self._open:  # else it has left
            self._carried += carried

    def _send_first(self, message: Message, now: float) -> bool:
        """Do what ``_push`` would for the first message of an idle link, in five calls less; return whether it did."""
        outgoing, session = self._outgoing, self._session
        if outgoing is None or session is None or self._offering or self._urgent or self._bulk.sources:
            return False
        self._asked += 1
        try:
            frame = encode_batch([message], session.seal)
        except LocalProtocolError:  # of the session: this is the child of a fork
            raise
        except Exception as error:  # noqa: BLE001 -- what is in it may be a peer's
            self._lose([message], error)
        else:
            self._send_now(frame, outgoing, now)
        return True

    def send_alone(self, batch: bytes | bytearray | memoryview, size: int) -> bool:
        """Send one message that is encoded already, now and in a frame of its own; return whether it was sent.

        It is not, and the message is still the caller's, while others wait here or nothing can leave: then it is for
        ``post_encoded``; or if the link is not quiet and the message small: then for ``post``, which gathers.

        Args:
            batch: the message as ``encode_batch`` would give it.
            size: bytes of its payload.
        """
        outgoing, session = self._outgoing, self._session
        if outgoing is None or session is None or not self.is_idle:
            return False
        now = trio.current_time()
        if size < min(self._size // 2, LARGE) and not (self._alone and now - self.last_progress > _QUIET):
            return False
        if now > self.last_progress:
            self.last_progress = now
        self._send_now(session.seal(batch), outgoing, now)
        return True

    def post_encoded(self, batch: bytes, size: int) -> None:
        """Append one message that is encoded already; it leaves in a frame of its own, in order.

        Args:
            batch: the message as ``encode_batch`` would give it.
            size: bytes of its payload.

        Raises:
            NotSent: see ``post``.
        """
        size += _MESSAGE_OVERHEAD
        waiting = self.waiting_bytes
        if self._closed is not None or waiting + size > self._limit:
            raise self._refusal()
        if self._held():
            self._close_batch()
        elif not waiting and self._frame is None:
            self.last_progress = max(self.last_progress, trio.current_time())
        self._batches.append(([batch], size))
        self._waiting_bytes += size
        self._wakeup.wake()

    def add_bulk_source(self, source: BulkSource) -> None:
        """Ask ``source`` for its data whenever no message waits, until it has none.  Several are asked round robin."""
        if self._bulk.add(source):
            self._wakeup.wake()

    def end_batch(self) -> int:
        """Have what is posted next travel in another frame; return how many frames are made before that one."""
        if self._held():
            self._close_batch()
        return self._frames_sent + len(self._batches) + (self._frame is not None)

    def has_room(self) -> bool:
        """Return whether less than half of the limit is waiting."""
        return self._waiting_bytes + self._held() < self._limit // 2

    def is_stalled(self, after: float) -> bool:
        """Return whether messages wait and the transport has taken nothing for ``after`` seconds."""
        return self.waiting_bytes > 0 and trio.current_time() - self.last_progress > after

    async def wait_room(self) -> None:
        """Wait until the link has room or has ended.  Cancelling leaves nothing behind."""
        while not self.has_room() and self._closed is None:
            await self._room.park()

    async def wait_drained(self, below: int) -> None:
        """Wait until at most ``below`` bytes wait or the link has ended.  Cancelling leaves nothing behind."""
        while self.waiting_bytes > below and self._closed is None:
            await self._room.park()

    # -- what the mesh calls --------------------------------------------------------------------------------

    def use(self, session: FrameSession) -> None:
        """Seal everything from here on under ``session``.  A frame sealed but not yet taken goes out as it is."""
        self._session = session
        self._wakeup.wake()

    def attach(self, outgoing: OutgoingConnection) -> None:
        """Send through ``outgoing`` from here on; the former one is closed."""
        if self._closed is not None:
            outgoing.close()
            return
        former, self._outgoing = self._outgoing, outgoing
        if former is not None and former is not outgoing:
            # Frames of a handshake belong to the connection that it was begun over; over another they mean nothing.
            self._urgent.clear()
            former.close()
        self._wakeup.wake()

    def detach(self) -> None:
        """The connection is lost: messages wait for the next one."""
        former, self._outgoing = self._outgoing, None
        self._urgent.clear()
        if former is not None:
            former.close()

    def send_control(self, frame: bytes | memoryview) -> None:
        """Send a frame of the mesh ahead of everything that is not sealed yet.

        It goes over the present connection or not at all.

        Raises:
            NotSent: too many wait already.
        """
        if len(self._urgent) >= _MAX_URGENT:
            raise NotSent(f"the connection to node {self.node} is stuck")
        self._urgent.append(frame)
        self._wakeup.wake()

    def close(self, reason: str) -> int:
        """End the link; return how many messages were still waiting and are lost now."""
        if self._closed is not None:
            return 0
        lost = len(self._open) + sum(len(batch) for batch, _ in self._batches) + self._frame_messages
        self._closed = reason
        self._lost += lost
        self._swap_batch()
        self._batches.clear()
        self._bulk.clear()
        self._waiting_bytes = self._frame_messages = 0
        self._frame = None
        self.detach()
        self._room.unpark_all()
        self._wakeup.wake()
        return lost

    async def run(self) -> None:
        """Send what is posted until the link is closed.  Run it in exactly one task."""
        while self._closed is None:
            self._pushed = False
            outgoing = self._outgoing
            if outgoing is None or self._session is None or not self._next_frame(self._session):
                await self._wakeup.wait()
                continue
            try:
                if self._offer(outgoing):
                    # If nothing else waits, the wait for it is the checkpoint: a turn of the scheduler less, 20 us.
                    if self._open or self._batches or self._bulk.sources or self._urgent:
                        await trio.lowlevel.checkpoint()
                    else:
                        await self._wakeup.wait()
                else:
                    await outgoing.wait_writable()
            except trio.ClosedResourceError:
                if self._outgoing is outgoing:
                    self._outgoing = None

    # -- inside ---------------------------------------------------------------------------------------------

    def _held(self) -> int:
        """Return the size of the open batch in bytes."""
        return self._open_bytes if self._growing is None else self._open_bytes + self._growing.grown

    def _refusal(self) -> NotSent:
        """Count a message that is not taken, and return why."""
        self._refused += 1
        if self._closed is not None:
            return NotSent(f"the link to node {self.node} has ended: {self._closed}")
        return NotSent(f"{self.waiting_bytes} bytes wait on the link to node {self.node}: the limit is {self._limit}")

    def _grow_no_more(self) -> None:
        if self._growing is not None:
            self._growing.end()
            self._open_bytes += self._growing.grown
            self._grew |= self._growing.grown > 0
            self._growing = None

    def _swap_batch(self) -> tuple[list[Message], int]:
        """Take the open batch, with its size, and begin another."""
        if self._growing is not None:
            self._grow_no_more()
        batch, size = self._open, self._open_bytes
        self._open = []
        self._open_bytes = self._carried = 0
        return batch, size

    def _close_batch(self) -> None:
        batch, size = self._swap_batch()
        self._batches.append((batch, size))
        self._waiting_bytes += size
        # A publisher that never yields still has its full batches on the way, not in memory.
        self._push()

    def _send_now(self, frame: bytes | memoryview, outgoing: OutgoingConnection, now: float) -> None:
        """Pass the frame of the first message of an idle link on; if it is not accepted, the flusher sends it."""
        self._frame, self._frame_messages, self._gathered = frame, 1, False
        try:
            if self._offer(outgoing, now):
                return
        except trio.ClosedResourceError:
            self._outgoing = None
        self._wakeup.wake()

    def _push(self, now: float | None = None) -> bool:
        """Send the next frame from within ``post``, if nothing stands in the way; return whether it was taken."""
        if self._offering or self._outgoing is None or self._session is None:
            return False
        if self._next_frame(self._session):
            try:
                return self._offer(self._outgoing, now)
            except trio.ClosedResourceError:
                self._outgoing = None
        return False

    def _next_frame(self, session: FrameSession) -> bool:
        """Put the next frame into ``_frame``; False if nothing waits."""
        if self._frame is not None:
            return True
        if self._urgent:
            self._frame = self._urgent.popleft()
            return True
        if self._batches:
            batch, size = self._batches.popleft()
            self._waiting_bytes -= size
        elif not (self._open or self._bulk.sources):
            return False
        else:
            batch, size = self._swap_batch()
            if self._bulk.sources:
                self._bulk.fill(batch, size, shared=self._is_shared())
        if self._room and self.has_room():
            self._room.unpark_all()
        if not batch:
            return False
        self._gathered, self._grew = self._grew or len(batch) > 1, False
        first = batch[0]
        try:
            self._frame = session.seal(first) if type(first) is bytes else encode_batch(batch, session.seal)
        except LocalProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 -- as above
            self._lose(batch, error)
            return False
        self._frame_messages = len(batch)
        return True

    def _lose(self, batch: list[Message], error: Exception) -> None:
        """Count messages that cannot be encoded, or sealed, and go on with those behind them."""
        self._lost += len(batch)
        self._wakeup.wake()
        if self._owner is None:
            raise error
        self._owner.link_failed(self, error)

    def _is_shared(self) -> bool:
        """Return whether somebody waits, or did a moment ago, for answers to messages on this link."""
        now = trio.current_time()
        if self._asked != self._asked_before:
            self._asked_before = self._asked
            self._shared_until = now + _SHARED
        return now < self._shared_until

    def _offer(self, outgoing: OutgoingConnection, now: float | None = None) -> bool:
        """Pass the next frame to the transport, at ``now`` if the clock was read; return whether it was accepted.

        The loopback of a node to itself delivers within this call.  What is posted there meanwhile waits for the
        flusher: offered from within, the same frame would go out twice.
        """
        assert self._frame is not None
        self._offering = True
        try:
            # The frame is sealed, and its counter used.  A frame that is not taken is offered again as it is: sealed
            # anew it would have another counter, and the peer would count the first one as a lost frame.
            taken = outgoing.send_nowait(self._frame)
        finally:
            self._offering = False
        frame = self._frame
        if taken and frame is not None:  # else the link was closed by what the frame brought about
            # From here on the messages count as handed over: this node keeps no copy, and a connection that breaks now
            # may lose them.  Whether they arrived only the peer can say.
            self._alone = self._frame_messages == 1 and not self._gathered
            self._sent += self._frame_messages
            self._frames_sent += 1
            self._bytes_sent += len(frame)
            self._frame = None
            self._frame_messages = 0
            self.last_progress = trio.current_time() if now is None else now
        elif frame is not None and is_sparse(frame):
            self._frame = bytes(frame)
            give_back(frame)
        return taken
