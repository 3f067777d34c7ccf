"""Delivery accounting of groups: outstanding and lost events that went to one member of a group each.

A subscriber's node counts, for each publisher, how many events for groups have arrived, and how many are *settled*.  An
event is settled when the consumer has it and has come back for the next one, or when it was dropped and reported as
dropped.  The node reports the counts every 100 ms while they change.  So the publisher knows what each node has
outstanding, and gives more to those who have less.  When a node is gone the publisher also has an upper bound of the
loss: events that the node had taken and not reported yet count as lost as well.

Counts belong to a *ledger*, which a publisher opens, and numbers, when it first sends a node an event for a group.
When frames may have been lost the publisher sends how many events it has sent.  Links keep the order, so what has not
arrived by then is lost.
"""

from __future__ import annotations

from typing import Final, Protocol, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel.errors import NotSent
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds

_PAUSE: Final = 0.1
"""Seconds for which what is settled is gathered."""

LOST_WITH_MEMBER: Final = "member of a group lost"
LOST_IN_FLIGHT: Final = "lost in flight to a group"


@final
class Ledger:
    """Ledger of one node: the events for groups that a publisher has sent it.

    Attributes:
        number: number of the ledger.
        sent, settled, missing: events; ``missing`` were lost in flight.
        begun: True once the node was sent the number of the ledger.
    """

    __slots__ = ("begun", "missing", "number", "sent", "settled")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent = self.settled = self.missing = 0
        self.begun = False

    @property
    def outstanding(self) -> int:
        """Events that the node has not settled."""
        return self.sent - self.settled - self.missing


class GroupSender(Protocol):
    """Publisher of events for groups."""

    def count_group_lost(self, reason: str, copies: int) -> None:
        """Count events as lost that were handed over to links.  Does not block."""
        ...


@final
class GroupBooks:
    """The publisher's side: one ledger for each node.

    Args:
        mesh: mesh whose links it uses.
        sender: publisher whose events they are.
    """

    def __init__(self, mesh: Mesh, sender: GroupSender) -> None:
        self._mesh = mesh
        self._sender = sender
        self._ledgers: dict[NodeId, Ledger] = {}
        self._number = 0
        mesh.register(kinds.GroupSettled, self._receive)

    def outstanding(self, node: NodeId) -> int:
        """Return how many events a node was sent and has not settled."""
        ledger = self._ledgers.get(node)
        return 0 if ledger is None else ledger.outstanding

    def ledger(self, node: NodeId) -> Ledger:
        """Return the ledger of a node that is about to be sent an event for a group; the caller counts it there."""
        ledger = self._ledgers.get(node)
        if ledger is None:
            self._number += 1
            ledger = self._ledgers[node] = Ledger(self._number)
        if not ledger.begun:
            ledger.begun = self._report(node, ledger)
        return ledger

    def frames_lost(self, node: NodeId) -> None:
        """Send the node the number of events that should have arrived: frames may be lost."""
        ledger = self._ledgers.get(node)
        if ledger is not None:
            ledger.begun = self._report(node, ledger)

    def peer_gone(self, node: NodeId) -> None:
        """Count the events that a node had not settled as lost with it: nobody knows more."""
        ledger = self._ledgers.pop(node, None)
        if ledger is not None and ledger.outstanding:
            self._sender.count_group_lost(LOST_WITH_MEMBER, ledger.outstanding)

    def _report(self, node: NodeId, ledger: Ledger) -> bool:
        try:
            self._mesh.post(node, kinds.GroupSent(ledger.number, ledger.sent), 16, CONTROL_RESERVE)
        except NotSent:
            return False  # it is sent with the next event
        return True

    def _receive(self, peer: Peer, message: kinds.GroupSettled) -> None:
        ledger = self._ledgers.get(peer.node)
        if ledger is None or ledger.number != message.ledger:
            return  # of a ledger that was closed
        ledger.settled = max(ledger.settled, min(message.settled, ledger.sent - ledger.missing))
        more = min(message.missing - ledger.missing, ledger.outstanding)
        if more > 0:
            ledger.missing += more
            self._sender.count_group_lost(LOST_IN_FLIGHT, more)


@final
class _Account:
    """Counts of the events that a node has had from one publisher."""

    __slots__ = ("ledger", "missing", "received", "settled")

    def __init__(self) -> None:
        self.ledger = 0
        self.received = self.missing = self.settled = 0


@final
class GroupReports:
    """The subscriber's side: reports of the events that were settled."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._accounts: dict[NodeId, _Account] = {}
        self._due: set[NodeId] = set()
        self._news = Wakeup()
        mesh.register(kinds.GroupSent, self._receive)

    def received(self, publisher: NodeId, count: int) -> None:
        """Note events for groups that have come."""
        account = self._accounts.get(publisher)
        if account is None:
            account = self._accounts[publisher] = _Account()
        account.received += count

    def settled(self, publisher: NodeId, count: int) -> None:
        """Note events for groups that were received by their consumer, or dropped."""
        account = self._accounts.get(publisher)
        if account is not None:  # else the publisher is gone
            account.settled += count
            self._due.add(publisher)
            self._news.wake()

    def forget(self, publisher: NodeId) -> None:
        """Forget a publisher that is gone."""
        self._accounts.pop(publisher, None)
        self._due.discard(publisher)

    def frames_lost(self, publisher: NodeId) -> None:
        """Report to a publisher again: the last report may be lost."""
        if publisher in self._accounts:
            self._due.add(publisher)
            self._news.wake()

    async def run(self) -> None:
        """Report to the publishers; run it in exactly one task."""
        while True:
            await self._news.wait()
            await trio.sleep(_PAUSE)
            self.flush()

    def flush(self) -> None:
        """Report to the publishers now."""
        due, self._due = self._due, set()
        for publisher in due:
            self._send(publisher)

    def _send(self, publisher: NodeId) -> None:
        account = self._accounts.get(publisher)
        if account is None:
            return
        message = kinds.GroupSettled(account.ledger, account.missing, account.settled)
        try:
            self._mesh.post(publisher, message, 24, CONTROL_RESERVE)
        except NotSent:
            if self._mesh.peer(publisher) is not None:
                self._due.add(publisher)
                self._news.wake()

    def _receive(self, peer: Peer, message: kinds.GroupSent) -> None:
        ledger, sent = message.ledger, message.sent
        account = self._accounts.get(peer.node)
        if account is None:
            account = self._accounts[peer.node] = _Account()
        if account.ledger != ledger:
            if account.ledger:  # what is left of a former one counts no more
                account.received = account.settled = account.missing = 0
            account.ledger = ledger
        missing = max(account.missing, sent - account.received)
        if missing != account.missing:
            account.missing = missing
            self._due.add(peer.node)
            self._news.wake()
