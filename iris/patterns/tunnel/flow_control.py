"""Congestion control (TCP Vegas): how many bytes of tunnel data may be in flight to one node.

The limit keeps the link busy with almost no queue.  Requests and probes overtake tunnels in this node's queues, but not
in the buffers of the transport or unread at the other end.  A window of each of eight transfers there made requests ten
times slower, and the failure detector declared the node dead.

So a chunk carries a *mark* after each ``STEP`` bytes, but for those that others follow in the same frame: they would
come back together, and each is 40 us of work for either end.  The other end sends the mark back when it reads it.  The
round-trip time, compared with the shortest one ever, gives the share of the bytes in flight that only queues:
``in flight * (1 - shortest / time)``.  The limit grows while that share is small and shrinks while it is large.

Source: Brakmo, O'Malley and Peterson, "TCP Vegas", SIGCOMM 1994, in bytes and with the shortest time of each round.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Protocol, final

STEP: Final = 64 * 1024
"""Distance between two marks, in bytes, or a frame if that is more.  The unit of what follows."""

LEAST: Final = 2
"""One frame in flight and one being made."""

MOST: Final = 1024

LITTLE: Final = 1
MUCH: Final = 3
"""Bounds of the queue between which the limit stays as it is.  At 300 MB/s three frames are 0.6 ms."""

QUICK: Final = 0.003
"""Seconds for which data may stand in the queue while no requests share the link: on a fast one that is more than three
frames, with which two processes of one machine wait for each other a third of the time."""

SHARE: Final = 4
"""While requests share the link, all of these are so many times smaller."""

REMOTE_SITE: Final = 8
"""Factor of the queue to nodes of other sites, which may be longer: with several gateways on the way, each at work on a
frame, three frames are none; and over 40 ms, 1 ms of jitter looks like 1.6 frames at 100 MB/s."""

_MEMORY: Final = 10.0
"""Seconds after which the shortest time may be forgotten: the route may have become longer."""


class BlockedSender(Protocol):
    """A sender that has data and waits for room."""

    def offer(self) -> None:
        """Note that there may be room."""
        ...


@final
class InflightLimit:
    """Limit of the bytes of all tunnels in flight to one node.  Sans-IO: marks go in and out as numbers.

    Args:
        slack: factor by which the queue may be longer than usual.
    """

    __slots__ = (
        "_fast",
        "_former",
        "_marked",
        "_marks",
        "_number",
        "_round_end",
        "_round_shortest",
        "_sent",
        "_sent_at_mark",
        "_shared",
        "_shortest",
        "_since",
        "_slack",
        "_unit",
        "blocked",
        "limit",
    )

    def __init__(self, slack: int = 1) -> None:
        self.limit = 4 * STEP
        """Size limit of what is in flight, in bytes."""
        self._slack = slack
        self._unit = STEP
        self._shared = False
        self._sent = 0  # bytes, since ever
        self._sent_at_mark = 0  # bytes sent when a mark last became due
        self._marked = 0  # bytes that have arrived
        self._number = 0  # of the last mark
        self._marks: deque[tuple[int, int, int, float]] = deque()  # number, bytes before it, those in flight, when
        self._shortest = self._former = float("inf")  # since _since, and in the time before that
        self._since = 0.0
        self._round_end = 0  # the round ends with the mark of this number
        self._round_shortest = float("inf")
        self._fast = True  # double the limit in each round, until there is a queue for the first time
        self.blocked: Final[OrderedDict[BlockedSender, None]] = OrderedDict()
        """Senders that wait for room, in order of arrival.  Read only."""

    @property
    def in_flight(self) -> int:
        """Size of what is not known to have arrived, in bytes."""
        return self._sent - self._marked

    @property
    def has_room(self) -> bool:
        """True if more data may leave."""
        # Without a mark in flight nothing would ever report room; the next one is at most a step away.
        return self._sent - self._marked < self.limit or not self._marks

    def add(self, size: int) -> bool:
        """Count data that leaves now; return whether it has to carry a mark."""
        self._sent += size
        return self._sent - self._sent_at_mark >= self._unit

    def share(self, shared: bool) -> int:
        """Note whether requests share the link.  To other sites they take so long that it makes no difference.

        Returns:
            Size of a piece for which there is room, in bytes, or of a step, if that is more.  0: there is none.
        """
        self._shared = shared and self._slack == 1
        unit = STEP // SHARE if self._shared else STEP
        if unit != self._unit:
            self._unit = unit
            self.limit = max(self.limit, LEAST * unit)
        left = self.limit - self._sent + self._marked
        return max(left, unit) if left > 0 or not self._marks else 0

    def mark(self, now: float) -> int:
        """Return the mark that leaves now, with the data counted last."""
        self._sent_at_mark = self._sent
        self._number += 1
        self._marks.append((self._number, self._sent, self._sent - self._marked, now))
        return self._number

    def arrived(self, number: int, now: float) -> None:
        """Note that a mark is back; those before it were lost or are late, which makes no difference."""
        if number > self._number:
            return  # it never left; those that did would be forgotten with it, and their data be in flight for ever
        while self._marks and self._marks[0][0] <= number:
            mark, sent, flight, left = self._marks.popleft()
            if mark == number:
                self._marked = sent
                self._learn(number, flight, max(now - left, 1e-6), now)
        self._unblock()

    def reset(self) -> None:
        """Forget what is in flight: nothing is, or it is unknown, and lost marks must not block a sender."""
        self._marked = self._sent_at_mark = self._sent
        self._marks.clear()
        self._round_end = self._number
        self._unblock()

    def expire(self, now: float, patience: float) -> None:
        """Do as after a reset if the last mark has been away for ``patience`` seconds."""
        if self._marks and now - self._marks[-1][3] > patience:
            self.reset()

    def _learn(self, number: int, flight: int, time: float, now: float) -> None:
        if now - self._since > _MEMORY:
            self._former, self._shortest, self._since = self._shortest, float("inf"), now
        self._shortest = min(self._shortest, time)
        self._round_shortest = min(self._round_shortest, time)
        if number < self._round_end:
            return
        queued = flight * (1 - min(self._shortest, self._former) / self._round_shortest)
        unit = self._unit
        much = self._slack * MUCH * unit
        little = self._slack * LITTLE * unit
        if not self._shared:
            much = max(much, int(QUICK * flight / self._round_shortest))
            little = max(little, much * LITTLE // MUCH)
        self._round_end = self._number
        self._round_shortest = float("inf")
        if queued > much:
            self._fast = False
            self.limit = max(LEAST * unit, self.limit - max(unit, int(queued - much) // 2))
        elif queued < little and flight * 2 > self.limit:
            self.limit = min(MOST * unit, self.limit * 2 if self._fast else self.limit + unit)

    # -- those who wait -------------------------------------------------------------------------------------

    def block(self, one: BlockedSender) -> None:
        """Wake ``one`` when there is room."""
        self.blocked[one] = None

    def forget(self, one: BlockedSender) -> None:
        """Do not wake ``one`` any more."""
        self.blocked.pop(one, None)

    def _unblock(self) -> None:
        """Wake as many as the room may suffice for; each of them that needs little leaves room for another."""
        for _ in range(min(len(self.blocked), (self.limit - self.in_flight) // (STEP // 2) + 1)):
            self.unblock_one()

    def unblock_one(self) -> None:
        """Wake the one that has waited longest, if there is room."""
        if self.blocked and self.has_room:
            one, _ = self.blocked.popitem(last=False)
            one.offer()
