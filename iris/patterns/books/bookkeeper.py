"""Bookkeeper: the trio shell of the books.  Reports what this node has received, asks what others have, compares.

As a receiver it reports every ``_PAUSE`` seconds while anything changes, one message for each sender and 64 names, on
links that carry other things meanwhile.  As a sender it asks when a program wants to know; by itself only when events
for groups may have been lost on their way.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, final

import trio

from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.kernel import wire
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.patterns.books.columns import RELAYED_EVENT
from iris.patterns.books.ledger import NOBODY, LedgerRow, SendLedger
from iris.patterns.books.receipts import RELAYED_PAUSE, Receipts
from iris.patterns.books.shown import BookRow, Books

_FIRST: Final = 0.005
"""Seconds after which the first message after a pause is reported."""

_PAUSE: Final = 0.1
"""Seconds between two reports to a sender, which have 64 names."""

_AT_ONCE: Final = 16
"""Reports in one ``_PAUSE``; where there are more, the pauses are longer."""

_LONGEST: Final = 1.0
"""Seconds between two looks at messages that wait for their program, and of which there is no news."""

_AGAIN: Final = 0.25
"""Seconds after which a receiver is asked again: it still had something in hand, or a message was lost."""

_REST: Final = 4
"""Pause before the next look at the books, as a multiple of the time that the last one took.  With 60,000 rows a look
takes 60 ms, and 1,000 receivers may report at the same time."""

_ELEMENTS: Final = 9 * wire.ELEMENT


class PendingCounts(Protocol):
    """Receivers whose messages are counted only now and then."""

    def count_received(self) -> None:
        """Count what was received until now.  Called before each report; does not block."""
        ...


@final
class Bookkeeper(PeerObserver):
    """The books of one node, as a sender and as a receiver.

    Args:
        pending: receivers whose messages are counted only now and then.  None if all are counted at once.
    """

    def __init__(self, mesh: Mesh, pending: PendingCounts | None = None) -> None:
        self._pending = pending
        self.ledger: Final = SendLedger(self)
        """Sending side: what this node has sent, by receiver, pattern and name."""
        self.in_progress: Final[list[Callable[[], Iterable[BookRow]]]] = []
        """Functions that return rows of what the ledger does not have yet: requests without a reply, open tunnels."""
        self._mesh = mesh
        self._rng = random.Random(mesh.node)  # decides about nothing but when to report
        self._due = Wakeup()
        self._receipts = Receipts(self)
        self.account: Final = self._receipts.account
        """``Receipts.account``: returns the account of messages that have just come."""
        self.due_of: Final = self._receipts.due_of
        self.report_soon: Final = self._due.wake
        """Report, within ``_PAUSE``, what is due already and would else wait for up to ``_LONGEST``."""
        self._marks = 0
        self._unasked: set[NodeId] = set()
        """Nodes that are to be asked about events for groups, and whose links had no room."""
        self._wanted: dict[NodeId, int] = {}
        """Mark of the last question by node, of the frame that is being dealt with."""
        self._news = trio.lowlevel.ParkingLot()
        mesh.register(kinds.Received, self._receive)
        mesh.register(kinds.ReceivedWanted, self._receive_wanted)

    def is_linked(self, node: NodeId) -> bool:
        """See ``LinkTable``."""
        return self._mesh.peer(node) is not None

    def owner_of(self, node: NodeId) -> str:
        """See ``LinkTable`` and ``Reporter``."""
        peer = self._mesh.peer(node)
        return "" if peer is None else peer.identity.owner

    def report_due(self) -> None:
        """See ``Reporter``."""
        self._due.wake()

    def relayed_due(self) -> float:
        """See ``Reporter``."""
        return trio.current_time() + RELAYED_PAUSE * self._rng.random()

    # -- as a receiver --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Report to senders; run it in exactly one task."""
        earliest = -math.inf
        while True:
            await self._due.wait()
            # Also where a program takes each message at once, so that nothing is left in hand after a report: else a
            # publisher of 1,000 a second would get 150 of them, each a frame that costs both ends 160 us.
            await trio.sleep_until(max(trio.current_time() + _FIRST, earliest))
            pause = _PAUSE
            while True:
                sent = self._report_all(trio.current_time())
                pause = _PAUSE * max(1.0, sent / _AT_ONCE) if sent else min(2 * pause, _LONGEST)
                for node in tuple(self._unasked):
                    self._ask_of_groups(node)
                if not self._receipts.reporting and not self._unasked:
                    break
                least = pause if sent else _PAUSE
                await trio.sleep(least)
                with trio.move_on_after(pause - least):
                    await self._due.wait()
            earliest = trio.current_time() + (pause if sent else 0.0)

    def flush(self) -> None:
        """Report to all senders now."""
        self._report_all(math.inf)

    def _report_all(self, now: float) -> int:
        """Report what is due; return how many messages that took."""
        if self._pending is not None:
            self._pending.count_received()
        return sum(self._report(node, now) for node in self._receipts.reporting)

    def _report(self, node: NodeId, now: float, mark: int = 0) -> int:
        sent = 0
        for message in self._receipts.report(node, now, mark):
            size = sum(len(entry.name) for entry in message.names) + _ELEMENTS * (1 + len(message.names))
            try:
                self._mesh.post(node, message, size, CONTROL_RESERVE)
            except NotSent:
                if self.is_linked(node):
                    self._receipts.repeat(node)
                else:
                    self._receipts.sender_gone(node)
                break
            sent += 1
        return sent

    def _receive_wanted(self, peer: Peer, wanted: kinds.ReceivedWanted) -> None:
        self._wanted[peer.node] = wanted.mark
        self._mesh.work.once(("books", peer.node), partial(self._answer, peer.node))

    def _answer(self, node: NodeId) -> None:
        """Answer a question, when all that came in the same frame has been dealt with."""
        if self._pending is not None:
            self._pending.count_received()
        self._report(node, math.inf, self._wanted.pop(node))

    # -- as a sender ----------------------------------------------------------------------------------------

    def _receive(self, peer: Peer, report: kinds.Received) -> None:
        if report.pattern == RELAYED_EVENT and peer.other_realm:
            raise RemoteProtocolError("nodes of another realm hand on no events of this one")
        self.ledger.receive(peer.node, report)
        self._news.unpark_all()

    def books(self, matches: Callable[[str], bool]) -> Books:
        """Return the books as they are now."""
        rows = [row.shown(is_linked=self._is_there(row)) for row in self.ledger.rows(matches)]
        rows += [row for source in self.in_progress for row in source() if matches(row.name)]
        return Books(tuple(sorted(_added_up(rows), key=lambda row: (row.pattern, row.name, row.receiver or ""))))

    async def settled(self, matches: Callable[[str], bool], within: float) -> Books:
        """Return the books when all that was sent has an outcome, or ``within`` seconds are over."""
        deadline = trio.current_time() + within
        ask_at = -math.inf
        while True:
            now = trio.current_time()
            open_ = [row for row in self.ledger.rows(matches) if self._is_there(row) and not row.is_settled()]
            waits = any(row.waiting for source in self.in_progress for row in source() if matches(row.name))
            if not open_ and not waits:
                await trio.lowlevel.checkpoint()
                return self.books(matches)
            if now >= deadline:
                for node in {row.node for row in open_}:
                    self.ledger.confirm(node)
                await trio.lowlevel.checkpoint()
                return self.books(matches)
            if now >= ask_at:
                self._ask(open_)
                ask_at = now + _AGAIN
            next_look = min(deadline, trio.current_time() + _REST * (trio.current_time() - now))
            with trio.move_on_at(min(deadline, ask_at)):
                await self._news.park()
            await trio.sleep_until(next_look)

    def _is_there(self, row: LedgerRow) -> bool:
        return row.node == NOBODY or self.is_linked(row.node)

    def _ask(self, rows: Iterable[LedgerRow]) -> None:
        for node in dict.fromkeys(row.node for row in rows if row.node != NOBODY):
            self._ask_node(node)  # again later, where it is not asked now

    def _ask_node(self, node: NodeId) -> bool:
        """Ask a receiver for its report; return whether its link has room for that."""
        self._marks += 1
        try:
            self._mesh.post(node, kinds.ReceivedWanted(self._marks), 16, CONTROL_RESERVE)
        except NotSent:
            return False
        self.ledger.ask(node, self._marks)
        return True

    def _ask_of_groups(self, node: NodeId) -> None:
        """Ask a member of groups what has come of the events without an outcome: the others are lost."""
        self._unasked.discard(node)
        if self.is_linked(node) and self.ledger.is_open(node) and not self._ask_node(node):
            self._unasked.add(node)
            self._due.wake()

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def holds(self, node: NodeId) -> bool:
        """Return whether something of a node has no outcome here yet, or events for groups would count as lost."""
        return self.ledger.is_open(node) or self._receipts.is_due(node)

    def peer_connected(self, peer: Peer) -> None:
        """Go on with the books that the node had."""
        self.ledger.receiver_back(peer.node)
        self._receipts.sender_back(peer.node)
        self._ask_of_groups(peer.node)

    def frames_lost(self, peer: Peer) -> None:
        """Report everything to the peer again: reports may be lost.  So may be events for groups."""
        self._receipts.repeat(peer.node)
        self._ask_of_groups(peer.node)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """Leave in doubt what the node has not accounted for."""
        self.ledger.receiver_gone(peer.node)
        self._receipts.sender_gone(peer.node)
        self._news.unpark_all()


def _added_up(rows: Iterable[BookRow]) -> Iterable[BookRow]:
    """Return one row for each pattern, name and receiver."""
    together: dict[tuple[str, str, NodeId | None], BookRow] = {}
    for row in rows:
        key = row.pattern, row.name, row.receiver
        before = together.get(key)
        together[key] = row if before is None else before + row
    return together.values()
