"""Queue of the broadcasts at a member: accepts by credit, pops from senders round robin, reports to them."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol, final

import trio

from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.patterns.books import Account
from iris.patterns.messages import Message
from iris.patterns.multicast import ReceiveWindow, ReceiveWindows

_PAUSE: Final = 0.05
"""Seconds for which refusals are gathered: a flooding sender gets a report now and then, not one for each message."""


class CreditReporter(Protocol):
    """Node that a queue of broadcasts is of."""

    def report_credit(self, node: NodeId, report: kinds.BroadcastCredit) -> bool:
        """Post a report to a sender; return False if its link has no room, or it is gone.  Does not block."""
        ...


@final
class BroadcastQueue:
    """The broadcasts that wait at one member.

    Args:
        cluster: cluster of the member.
        window: cost that one sender may have waiting here.
        limit: cost that all senders together may have waiting here.
        reporter: posts reports to senders.

    Attributes:
        received, refused, cancelled: counters.
    """

    def __init__(self, cluster: str, window: int, limit: int, reporter: CreditReporter) -> None:
        self._cluster = cluster
        self._reporter = reporter
        self._windows = ReceiveWindows(window, limit)
        self._turns: deque[ReceiveWindow] = deque()
        """Senders that have something waiting; the first one is the next."""
        self._news = Wakeup()
        self._unreported: set[NodeId] = set()
        self._report_news = Wakeup()
        self.received = self.refused = self.cancelled = 0

    def __len__(self) -> int:
        """Return the number of those that wait, with the one that the handlers are at."""
        return sum(len(window.waiting) for window in self._turns)

    def __bool__(self) -> bool:
        """Return whether any wait."""
        return bool(self._turns)

    # -- what arrives ---------------------------------------------------------------------------------------

    def accept(self, message: Message, account: Account, position: int, cost: int) -> None:
        """Accept a broadcast; one without room is refused, counted, and reported to its sender.

        Args:
            message: broadcast, its payload as it travelled.  That size bounds what waits; decoded it may be 20 times.
            account: account of its sender, in which it has arrived.
            position: position at which it begins.
            cost: its cost.
        """
        self.received += 1
        window = self._windows.of(message.sender.node, message.sender.cluster)
        window.account = account
        if self._windows.accept(window, position, cost):
            if not window.waiting:
                self._turns.append(window)
            window.waiting.append((message, cost))
            self._news.wake()
        else:
            self.refused += 1
            account.refused += 1
            self._report_soon(window.sender)

    def refuse(self, sender: NodeId, account: Account, end: int) -> None:
        """Refuse a broadcast for another reason than room, and report it to its sender."""
        self.received += 1
        self.refused += 1
        account.refused += 1
        window = self._windows.of(sender)
        window.refused += 1
        self._windows.see(window, end)
        self._report_soon(sender)

    def ask(self, sender: NodeId, end: int) -> None:
        """Report to a sender that has sent up to ``end`` and asks for credit, as soon as there is some."""
        window = self._windows.of(sender)
        if self._windows.ask(window, end):
            self._report(window)

    # -- taking ---------------------------------------------------------------------------------------------

    async def wait(self) -> Message:
        """Wait until there is a broadcast, and return the next one, whose payload is not decoded yet.

        It is in the queue until ``finish`` or ``refuse_malformed``.
        """
        while not self._turns:
            await self._news.wait()
        return self._turns[0].waiting[0][0]

    def finish(self) -> None:
        """Drop the broadcast that was handled: its sender may send another one, and the next sender has its turn."""
        window = self._turns.popleft()
        window.account.received += 1
        _, cost = window.waiting.popleft()
        if window.waiting:
            self._turns.append(window)
        if self._windows.consumed(window, cost):
            self._report(window)

    def refuse_malformed(self) -> None:
        """Refuse the broadcast whose turn it is, as it cannot be decoded: count it, and report it to its sender."""
        window = self._turns[0]
        self.refused += 1
        window.refused += 1
        window.account.refused += 1
        window.account.received -= 1  # ``finish`` counts it
        self._report_soon(window.sender)
        self.finish()

    def cancel(self) -> None:
        """Count queued broadcasts as cancelled, and report them to their senders: the handlers have ended."""
        self.cancelled += len(self)
        while self._turns:
            window = self._turns.popleft()
            window.refused += len(window.waiting)
            window.account.ended += len(window.waiting)
            while window.waiting:
                self._windows.consumed(window, window.waiting.popleft()[1])
            self._report(window)

    # -- reports --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send reports that are not urgent, and those that a full link did not accept; run it in exactly one task."""
        while True:
            await self._report_news.wait()
            await trio.sleep(_PAUSE)
            unreported, self._unreported = self._unreported, set()
            for sender in unreported:
                self.report_again(sender)

    def report_again(self, sender: NodeId) -> None:
        """Report what may have been reported already: frames were lost, or the link was full."""
        window = self._windows.find(sender)
        if window is not None:
            self._report(window)

    def forget(self, sender: NodeId) -> None:
        """Forget a sender that is gone."""
        self._windows.forget(sender)
        self._unreported.discard(sender)

    def _report(self, window: ReceiveWindow) -> None:
        if window is not self._windows.find(window.sender):
            return  # of a sender that was gone in the meantime
        wanted = window.wanted
        if not self._reporter.report_credit(window.sender, self._windows.report(window, self._cluster)):
            window.wanted = wanted
            self._report_soon(window.sender)

    def _report_soon(self, sender: NodeId) -> None:
        self._unreported.add(sender)
        self._report_news.wake()
