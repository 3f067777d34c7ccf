"""Credit-based flow control for broadcasts: how much each member of a cluster still takes from one sender (sans-IO).

Rules of this file:

- The *cost* of a broadcast is its bytes, headers included, plus 4 KiB.  A window of 4 MiB holds 1,024 small ones.
- A sender gives each broadcast to a cluster its *position*: the sum of the costs of those before.  The position is the
  same for all members, because over a relay tree all members get the same bytes.  A lost broadcast therefore leaves no
  gap: a member that has seen a position waits for nothing before it.
- A member reports its state and not a change, so a lost or repeated report does no harm.  The report holds the position
  up to which the member has seen the sender's broadcasts, how much of that its handlers have not taken yet, and its
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
"""What a broadcast costs besides its bytes, so that small ones are bounded in number, too."""

INITIAL: Final = 256 * KIB
"""Bytes that a sender may have in flight to a member from which it has no report: 64 small broadcasts."""

_FAR: Final = wire.MAX_NUMBER
"""No position is as great: 2**50 broadcasts come before."""


def cost(payload: wire.Payload, headers: wire.Headers) -> int:
    """Return what a broadcast costs."""
    return wire.payload_size(payload) + wire.headers_size(headers) + OVERHEAD


@final
class SendWindow:
    """Send window: the credit of one member, as the sender knows it.

    Attributes:
        limit: broadcasts whose position is below may be sent.
        asked_at: when the member was asked for credit and has granted none since; None if it was not.
        blocked_since: when a broadcast first found no credit; None while there is some.
        passed_over: whether broadcasts go on without this member, as it grants too little credit.
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
        """The end of what it was sent, if that differs from the others."""
        return self._left_at

    def leave(self, position: int) -> None:
        """It does not get what follows."""
        if self._left_at is None:
            self._left_at = position

    def resume(self, position: int) -> None:
        """It gets what follows again.  What it did not get is not in flight to it."""
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
        """What the member grants when nothing waits there."""
        return self._size

    @property
    def is_half_free(self) -> bool:
        """Whether a member that was passed over takes half a window again: with less it would soon be waited for."""
        return self._left_at is not None and 2 * (self.limit - self._left_at) >= self._size

    def receive(self, report: kinds.BroadcastCredit, position: int, count: int) -> int:
        """Take a report; return how many broadcasts it says were refused since the last one.

        Args:
            report: what the member says.
            position: the end of what was sent to the others.
            count: how many broadcasts were sent to the cluster; no member can have refused more.
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
        position: of the next broadcast.
        count: broadcasts before it.
        receivers: the members that get it.
        passed_over: those that do not, as they grant no credit.
        windows: of all members that are known.
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
        """Tell, as the fast path, whether ``receivers`` is up to date and all of them have credit."""
        return self.position < self._horizon and members == self._members

    def choose(self, members: Sequence[NodeId]) -> list[NodeId]:
        """See who gets the next broadcast; return those of them who have no credit for it."""
        for node in self.windows.keys() - set(members):
            if self.windows[node].passed_over:
                del self.windows[node]  # as a member again it begins anew
            else:
                self.windows[node].leave(self.position)
        receivers: list[NodeId] = []
        passed_over: list[NodeId] = []
        short: list[NodeId] = []
        horizon = _FAR
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
        """The next broadcast was sent."""
        self.position += cost
        self.count += 1

    def receive(self, node: NodeId, report: kinds.BroadcastCredit) -> int:
        """Take a member's report; return how many broadcasts it has refused since the last one."""
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
        """Nodes are gone."""
        for node in nodes:
            if self.windows.pop(node, None) is not None:
                self._members = None

    def left(self) -> list[NodeId]:
        """Return the nodes that were members once, and were none when this was last looked at."""
        return [node for node, window in self.windows.items() if window.end is not None and not window.passed_over]


@final
class ReceiveWindow:
    """Receive window: what one sender has queued at a member.

    Attributes:
        seen: the end of what has arrived.
        queued: the cost of what waits.
        waiting: that itself, with the cost of each, the oldest first; kept by the owner of the window.
        size: what was granted last.
        freed: the cost of what was taken since the last report.
        refused: how many broadcasts were.
        wanted: whether the sender has asked for a report and waits for it.
        account: of the sender in the books of this member.
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
        window: the greatest one; what a sender has waiting beyond it is refused.
        limit: of all together.  Half of it is for newcomers; the other half is divided among the owners of all that
            have something waiting, so that nobody can take the room of the others, with however many nodes.
    """

    def __init__(self, window: int, limit: int) -> None:
        self._window = window
        self._limit = limit
        self._queued = 0
        self._active: Counter[str] = Counter()
        """Senders of each owner that have something waiting."""
        self._owned: Counter[str] = Counter()
        """The cost of what they have."""
        self._senders: dict[NodeId, ReceiveWindow] = {}

    def of(self, sender: NodeId, owner: str = "") -> ReceiveWindow:
        """Return the window of a sender, and of who can make any number of such nodes."""
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
        """A sender is gone.  Its queued broadcasts are still handled."""
        self._senders.pop(sender, None)

    def accept(self, window: ReceiveWindow, position: int, cost: int) -> bool:
        """Take a broadcast that has arrived, if there is room; tell whether there was."""
        self.see(window, position + cost)
        # What is above the limit by itself is taken when nothing else waits.
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
        """Return what a sender may have waiting as one of all that do."""
        share = self._half_of(window.owner) // (self._active[window.owner] + (not window.queued))
        return max(INITIAL, min(self._window, share))

    def _half_of(self, owner: str) -> int:
        """Return what the senders of an owner may have waiting together."""
        return self._limit // 2 // (len(self._active) + (owner not in self._active))

    def see(self, window: ReceiveWindow, end: int) -> None:
        """What a sender has sent up to here has arrived, or was lost."""
        window.seen = max(window.seen, end)

    def take(self, window: ReceiveWindow, cost: int) -> bool:
        """The handlers have taken a broadcast; tell whether its sender is to have a report."""
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
        """A sender asks for credit, having sent so much; tell whether it is to have a report now, and not later."""
        self.see(window, end)
        window.wanted = True
        return window.freed > 0 or not window.queued

    def report(self, window: ReceiveWindow, cluster: str) -> kinds.BroadcastCredit:
        """Return the report to a sender now."""
        window.size = self._share(window)
        window.freed = 0
        window.wanted = False
        return kinds.BroadcastCredit(cluster, window.seen, window.queued, window.size, window.refused)
