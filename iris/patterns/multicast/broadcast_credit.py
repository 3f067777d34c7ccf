"""Credit-based flow control for broadcasts: how much each member of a cluster still accepts from one sender (sans-IO).

Rules of this file:

- The *cost* of a broadcast is its bytes, headers included, plus 4 KiB.  A window of 4 MiB holds 1,024 small ones.
- A sender gives each broadcast to a cluster its *position*: the sum of the costs of those before.  The position is the
  same for all members, because over a relay tree all members get the same bytes.  A lost broadcast therefore leaves no
  gap: a member that has seen a position waits for nothing before it.
- A member reports its state and not a change, so a lost or repeated report does no harm.  The report holds the position
  up to which the member has seen the sender's broadcasts, how much of that its handlers have not received yet, and its
  window.  The window bounds what a sender may have in flight to the member and queued there; the last broadcast may
  exceed it.
- A sender begins with ``INITIAL`` at every member.  A member reports when its handlers have taken half a window.  A
  member that was asked reports as soon as there is something to report.
- A member keeps one window for each sender.  All windows share a budget of bytes.  The handlers take from the senders
  round robin, so the backlog of one sender delays the others by one broadcast, not by the whole backlog.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final, final

from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books import UNCOUNTED, Account
from iris.patterns.messages import Message

OVERHEAD: Final = 4 * KIB
"""Cost of a broadcast besides its bytes, so that small ones are bounded in number, too."""

INITIAL: Final = 256 * KIB
"""Limit of what may be in flight to a member that has sent no report, in bytes: 64 small broadcasts."""

_REMOTE_SITE: Final = wire.MAX_NUMBER
"""Position beyond every other: 2**50 broadcasts come before."""


def cost(payload: wire.Payload, headers: wire.Headers) -> int:
    """Return the cost of a broadcast, in bytes."""
    return wire.payload_size(payload) + wire.headers_size(headers) + OVERHEAD


@final
class SendWindow:
    """Send window: the credit of one member, as the sender knows it.

    Attributes:
        limit: position from which on broadcasts may not be sent.
        asked_at: time at which the member was asked for credit, if it has granted none since; else None.
        blocked_since: time at which a broadcast first found no credit; None while there is some.
        passed_over: True while broadcasts go on without this member, as it grants too little credit.
    """

    __slots__ = (
        "_began", "_gap", "_left_at", "_refused", "_resumed_at", "_seen", "_size", "asked_at", "blocked_since", "limit",
        "passed_over",
    )  # fmt: skip

    def __init__(self, position: int, count: int) -> None:
        self.limit = position + INITIAL
        self.asked_at: float | None = None
        self.blocked_since: float | None = None
        self.passed_over = False
        self._size = INITIAL
        self._seen = position
        self._began = count
        self._refused = 0
        self._left_at: int | None = None
        self._resumed_at = position
        self._gap = 0

    @property
    def end(self) -> int | None:
        """Position at which it stopped getting broadcasts.  None while it gets them like the others."""
        return self._left_at

    def leave(self, position: int) -> None:
        """Send it nothing from this position on."""
        if self._left_at is None:
            self._left_at = position

    def resume(self, position: int) -> None:
        """Send it what follows again.  What it did not get is not in flight to it."""
        if self._left_at is not None:
            self._gap = position - self._left_at
            self._seen += self._gap
            self.limit += self._gap
            self._resumed_at = position
            self._left_at = None
        self.passed_over = False
        self.asked_at = self.blocked_since = None

    @property
    def size(self) -> int:
        """Window that the member grants when nothing waits there, in bytes."""
        return self._size

    @property
    def is_half_free(self) -> bool:
        """True if a member that was passed over has half its window free: with less it would soon be waited for."""
        return self._left_at is not None and 2 * (self.limit - self._left_at) >= self._size

    def receive(self, report: kinds.BroadcastCredit, position: int, count: int) -> int:
        """Accept a report; return how many broadcasts were refused since the last one.

        Args:
            report: state of the member.
            position: end of what was sent to the others.
            count: broadcasts that were sent to the cluster; no member can have refused more.
        """
        seen = report.seen if report.seen > self._resumed_at else report.seen + self._gap
        self._seen = max(self._seen, min(seen, position if self._left_at is None else self._left_at))
        self._size = max(INITIAL, report.size)  # no member grants less when nothing waits there
        self.limit = self._seen + report.size - report.queued
        if self._left_at is None and self.limit > position:
            self.asked_at = self.blocked_since = None
        total = min(report.refused, count - self._began)
        more = total - self._refused if total >= self._refused else total  # less: the member has begun to count anew
        self._refused = total
        return more


@final
class Flow:
    """The broadcasts of one sender to one cluster: their positions, and who may get the next one.

    Attributes:
        position: position of the next broadcast.
        count: broadcasts before it.
        receivers: members that get it.
        passed_over: members that do not, as they grant no credit.
        windows: send windows of all members that are known.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.count = 0
        self.receivers: tuple[NodeId, ...] = ()
        self.passed_over: tuple[NodeId, ...] = ()
        self.windows: Final[dict[NodeId, SendWindow]] = {}
        self._members: Sequence[NodeId] | None = None
        self._horizon = 0

    def is_open(self, members: Sequence[NodeId]) -> bool:
        """Return whether ``receivers`` is up to date and all of them have credit.  It is the fast path."""
        return self.position < self._horizon and members == self._members

    def choose(self, members: Sequence[NodeId]) -> list[NodeId]:
        """Choose the receivers of the next broadcast; return those that have no credit for it."""
        for node in self.windows.keys() - set(members):
            if self.windows[node].passed_over:
                del self.windows[node]  # as a member again it begins anew
            else:
                self.windows[node].leave(self.position)
        receivers: list[NodeId] = []
        passed_over: list[NodeId] = []
        short: list[NodeId] = []
        horizon = _REMOTE_SITE
        for node in members:
            window = self.windows.get(node)
            if window is None:
                window = self.windows[node] = SendWindow(self.position, self.count)
            elif window.passed_over and not window.is_half_free:
                passed_over.append(node)
                continue
            elif window.end is not None:
                window.resume(self.position)
            receivers.append(node)
            horizon = min(horizon, window.limit)
            if window.limit <= self.position:
                short.append(node)
        self._members, self._horizon = members, horizon
        self.receivers, self.passed_over = tuple(receivers), tuple(passed_over)
        return short

    def sent(self, cost: int) -> None:
        """Count the next broadcast as sent."""
        self.position += cost
        self.count += 1

    def receive(self, node: NodeId, report: kinds.BroadcastCredit) -> int:
        """Accept a member's report; return how many broadcasts it has refused since the last one."""
        window = self.windows.get(node)
        if window is None:
            return 0
        if window.passed_over:
            self._members = None  # it may come back
        return window.receive(report, self.position, self.count)

    def pass_over(self, node: NodeId) -> None:
        """Let broadcasts go on without a member that has no credit, until half of its window is free again."""
        window = self.windows.get(node)
        if window is not None and window.limit <= self.position:
            window.passed_over = True
            window.leave(self.position)
            self._members = None

    def forget(self, nodes: Iterable[NodeId]) -> None:
        """Forget nodes that are gone."""
        for node in nodes:
            if self.windows.pop(node, None) is not None:
                self._members = None

    def left(self) -> list[NodeId]:
        """Return the nodes that were members once, and were none when this was last looked at."""
        return [node for node, window in self.windows.items() if window.end is not None and not window.passed_over]


@final
class ReceiveWindow:
    """Receive window: the broadcasts that one sender has queued at a member.

    Attributes:
        seen: end of what has arrived.
        queued: cost of the broadcasts that wait.
        waiting: those broadcasts and the cost of each, the oldest first; kept by the owner of the window.
        size: bytes granted last.
        freed: cost of the broadcasts that left the queue since the last report.
        refused: broadcasts that were refused.
        wanted: True while the sender waits for a report that it has asked for.
        account: account of the sender in the books of this member.
    """

    __slots__ = ("account", "freed", "owner", "queued", "refused", "seen", "sender", "size", "waiting", "wanted")

    def __init__(self, sender: NodeId, owner: str) -> None:
        self.sender = sender
        self.owner = owner
        self.account: Account = UNCOUNTED
        self.seen = self.queued = self.refused = 0
        self.size = INITIAL
        self.freed = 0
        self.wanted = False
        self.waiting: Final[deque[tuple[Message, int]]] = deque()


@final
class ReceiveWindows:
    """The windows of all senders at one member.

    Args:
        window: greatest window in bytes; what a sender has waiting beyond it is refused.
        limit: bytes of all together.  Half of it is for newcomers; the other half is divided among the owners of all
            that have something waiting, so that nobody can take the room of the others, with however many nodes.
    """

    def __init__(self, window: int, limit: int) -> None:
        self._window = window
        self._limit = limit
        self._queued = 0
        self._active: Counter[str] = Counter()
        """Senders of each owner that have something waiting."""
        self._owned: Counter[str] = Counter()
        """Cost of what waits, by owner."""
        self._senders: dict[NodeId, ReceiveWindow] = {}

    def of(self, sender: NodeId, owner: str = "") -> ReceiveWindow:
        """Return the window of a sender; ``owner`` is the cluster that may run any number of such nodes."""
        window = self._senders.get(sender)
        if window is None:
            window = self._senders[sender] = ReceiveWindow(sender, owner or sender)
        elif owner and not window.queued:
            window.owner = owner
        return window

    def find(self, sender: NodeId) -> ReceiveWindow | None:
        """Return the window of a sender, if it has one."""
        return self._senders.get(sender)

    def forget(self, sender: NodeId) -> None:
        """Forget a sender that is gone.  Its queued broadcasts are still handled."""
        self._senders.pop(sender, None)

    def accept(self, window: ReceiveWindow, position: int, cost: int) -> bool:
        """Accept a broadcast that has arrived, if there is room; return whether there was."""
        self.see(window, position + cost)
        # What is above the limit by itself is accepted when nothing else waits.
        full = self._queued > 0 and self._queued + cost > self._limit
        scarce = 2 * self._queued > self._limit
        mine = self._owned[window.owner] >= max(INITIAL, self._half_of(window.owner)) and scarce
        if full or mine or window.queued >= (self._share(window) if scarce else self._window):
            window.refused += 1
            return False
        self._active[window.owner] += not window.queued
        self._owned[window.owner] += cost
        window.queued += cost
        self._queued += cost
        return True

    def _share(self, window: ReceiveWindow) -> int:
        """Return the cost that a sender may have waiting, as one of all that do."""
        share = self._half_of(window.owner) // (self._active[window.owner] + (not window.queued))
        return max(INITIAL, min(self._window, share))

    def _half_of(self, owner: str) -> int:
        """Return the cost that the senders of an owner may have waiting together."""
        return self._limit // 2 // (len(self._active) + (owner not in self._active))

    def see(self, window: ReceiveWindow, end: int) -> None:
        """Note that what a sender has sent up to ``end`` has arrived, or was lost."""
        window.seen = max(window.seen, end)

    def consumed(self, window: ReceiveWindow, cost: int) -> bool:
        """Free the room of a broadcast that was handled; return whether its sender is to have a report."""
        window.queued -= cost
        self._queued -= cost
        self._owned[window.owner] -= cost
        if not window.queued:
            self._active[window.owner] -= 1
            if not self._active[window.owner]:
                del self._active[window.owner], self._owned[window.owner]
        window.freed += cost
        return window.wanted or 2 * window.freed >= window.size

    def ask(self, window: ReceiveWindow, end: int) -> bool:
        """Note that a sender that has sent up to ``end`` asks for credit; return whether to report at once."""
        self.see(window, end)
        window.wanted = True
        return window.freed > 0 or not window.queued

    def report(self, window: ReceiveWindow, cluster: str) -> kinds.BroadcastCredit:
        """Return the report to a sender, as of now."""
        window.size = self._share(window)
        window.freed = 0
        window.wanted = False
        return kinds.BroadcastCredit(cluster, window.seen, window.queued, window.size, window.refused)
