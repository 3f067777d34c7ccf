"""Receipts: the receiving side of the books (sans-IO).  Counts what came from each sender, and says what to report.

Names are the sender's to choose, so they are bounded: of one sender and pattern the first ``NAMES`` have accounts of
their own, and all others share one.  A name has its own from its first message on or never, so that no message is in
two.  A report has the total of all names as well: what a sender counts under a name that this node has no account for,
or the other way round, is so compared all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, Protocol, final

from iris.kernel.config import MIB
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books.columns import BROADCAST, NOTHING, OTHER, REPORTED, Account, Columns
from iris.patterns.books.shares import FormerNodes, MemoryShares

NAMES: Final = 1024
"""Names of one sender and pattern that have accounts of their own."""

MAX_BYTES: Final = 32 * MIB
"""Memory of the accounts of all senders; those of one owner share what is left free (``MemoryShares``)."""

ACCOUNT_BYTES: Final = 512
"""Memory of an account with what was reported of it, beside its name (CPython 3.11)."""

FORMER: Final = 1024
"""Senders that are gone and may come back, of which the accounts are kept."""

_AT_ONCE: Final = 64
"""Names in one message."""

RELAYED_PAUSE: Final = 2.0
"""Seconds between two reports of what came over a tree: its sender may have thousands of receivers."""


@final
class _Sender:
    """The accounts of one sender, by pattern."""

    __slots__ = ("accounts", "due", "others", "owner", "totals")

    def __init__(self, owner: str) -> None:
        self.owner: Final = owner
        self.accounts: tuple[dict[str, Account], ...] = tuple({} for _ in REPORTED)
        self.others: list[Account | None] = [None for _ in REPORTED]
        self.totals = [NOTHING for _ in REPORTED]
        """Columns of all names together as reported so far, by pattern."""
        self.due: tuple[dict[str, Account], ...] = tuple({} for _ in REPORTED)
        """Accounts with something to report now, or later: with messages that wait.  All names that have no account of
        their own are due together, as ``OTHER``."""


class Reporter(Protocol):
    """Node that reports what it has received.  No method blocks."""

    def report_due(self) -> None:
        """Report soon.  Called when there is something to report, and was not before."""
        ...

    def owner_of(self, node: NodeId) -> str:
        """Return the owner of a node's key.  Called when something comes from a node of which nothing is kept."""
        ...

    def relayed_due(self) -> float:
        """Return the time of a first report of relayed messages, another one each time: not all come at once."""
        ...


@final
class Receipts:
    """Accounts of what one node has received, by sender, pattern and name.

    Args:
        reporter: node that reports.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._senders: dict[NodeId, _Sender] = {}
        self._former: Final = FormerNodes()
        self.memory: Final = MemoryShares(MAX_BYTES, ACCOUNT_BYTES)
        self._reporting: dict[NodeId, _Sender] = {}
        """Senders with accounts that are due."""

    def __repr__(self) -> str:
        return f"<Receipts of {len(self._senders)} senders, {self.memory.total} bytes>"

    def account(self, node: NodeId, pattern: int, name: str, *, relayed: bool = False) -> Account:
        """Return the account of what has just come, or is about to get its outcome.  It is reported soon."""
        sender = self._sender(node)
        account = sender.accounts[pattern].get(name)
        if account is None:
            account = self._open(sender, pattern, name)
        if account.name not in sender.due[pattern]:
            if relayed and not account.relayed:
                account.relayed, account.quiet_until = True, self._reporter.relayed_due()
            self._make_due(node, sender, pattern, account)
        return account

    def due_of(self, node: NodeId, pattern: int) -> Mapping[str, Account]:
        """Return the accounts of a sender that are due, for a look without a call; others are had from ``account``."""
        return self._sender(node).due[pattern]

    def _sender(self, node: NodeId) -> _Sender:
        sender = self._senders.get(node)
        if sender is None:
            sender = self._senders[node] = _Sender(self._reporter.owner_of(node))
        return sender

    def _open(self, sender: _Sender, pattern: int, name: str) -> Account:
        other = sender.others[pattern]
        if other is not None:  # a name that came first when there was no room has gone there, and stays there
            return other
        if len(sender.accounts[pattern]) < NAMES and self._make_room(sender.owner, name):
            account = sender.accounts[pattern][name] = Account(name)
        else:
            account = sender.others[pattern] = Account(OTHER)
        self.memory.add(sender.owner, account.name)
        return account

    def _make_room(self, owner: str, name: str) -> bool:
        """Return whether an owner may have another account; it may in the place of those of its nodes that are gone."""
        while not self.memory.has_room(owner, name):
            oldest = self._former.oldest(owner)
            if oldest is None:
                return False
            self._forget(oldest)
        return True

    def _make_due(self, node: NodeId, sender: _Sender, pattern: int, account: Account) -> None:
        sender.due[pattern][account.name] = account
        if not self._reporting:
            self._reporter.report_due()
        self._reporting[node] = sender

    # -- reports --------------------------------------------------------------------------------------------

    def is_due(self, node: NodeId) -> bool:
        """Return whether something is due for a sender, now or once its program has taken what waits here."""
        return node in self._reporting

    @property
    def reporting(self) -> list[NodeId]:
        """The senders for which something is due."""
        return list(self._reporting)

    def report(self, node: NodeId, now: float, mark: int = 0) -> Iterator[kinds.Received]:
        """Yield the reports for a sender.  If one is not sent after all, make all due again with ``repeat``.

        What still waits here, or is relayed and was reported a moment ago, stays due.

        Args:
            node: the sender.
            now: the time; infinity if nothing may be put off, else it is one message for each pattern.
            mark: the number of its question, if it has asked.
        """
        sender = self._reporting.get(node)
        messages: list[kinds.Received] = []
        if sender is not None:
            for pattern in REPORTED:
                messages += self._report(sender, pattern, sender.due[pattern], now)
            if not any(sender.due):
                del self._reporting[node]
        if mark and not messages:
            messages.append(kinds.Received(BROADCAST, 0, False, NOTHING, ()))
        for message in messages:
            message.mark = mark if message is messages[-1] else 0
            yield message

    def _report(self, sender: _Sender, pattern: int, due: dict[str, Account], now: float) -> list[kinds.Received]:
        entries: list[kinds.ReceivedEntry] = []
        total: Columns = sender.totals[pattern]
        changed = False
        for name, account in list(due.items()):
            if len(entries) == _AT_ONCE and now < math.inf:
                break  # the next time, so that one sender does not hold up the reports to others
            if account.relayed and now < account.quiet_until:
                continue
            columns = account.columns()
            before = account.reported
            if columns != before or account.relayed:
                account.quiet_until = now + RELAYED_PAUSE
            if columns != before:
                changed = True
                total = total.moved(before, columns)
                account.reported = columns
                if account.name != OTHER:
                    entries.append(kinds.ReceivedEntry(account.name, *columns))
            del due[name]
            if columns.arrived + columns.copied > columns.settled:
                due[name] = account  # behind the others
        sender.totals[pattern] = total
        full = sender.others[pattern] is not None
        if not changed:
            return []
        parts = [tuple(entries[at : at + _AT_ONCE]) for at in range(0, max(1, len(entries)), _AT_ONCE)]
        # The total comes last: a sender that has it would else hold all for settled, with names still on the way.
        totals = [NOTHING] * (len(parts) - 1) + [total]
        return [kinds.Received(pattern, 0, full, of, names) for of, names in zip(totals, parts, strict=True)]

    def repeat(self, node: NodeId) -> None:
        """Make everything due again for a sender: reports to it may be lost."""
        sender = self._senders.get(node)
        if sender is None:
            return
        for pattern in REPORTED:
            other = sender.others[pattern]
            for account in (*sender.accounts[pattern].values(), *(() if other is None else (other,))):
                account.reported, account.quiet_until = NOTHING, 0.0
                if account.name not in sender.due[pattern]:
                    self._make_due(node, sender, pattern, account)
            sender.totals[pattern] = NOTHING

    # -- senders come and go --------------------------------------------------------------------------------

    def sender_gone(self, node: NodeId) -> None:
        """Note that a sender is given up.  It may come back and go on, so its accounts are kept for a while."""
        self._reporting.pop(node, None)
        sender = self._senders.get(node)
        if sender is None:
            return
        for due in sender.due:
            due.clear()
        self._former.add(node, sender.owner)
        if len(self._former) > FORMER and (oldest := self._former.oldest()) is not None:
            self._forget(oldest)

    def sender_back(self, node: NodeId) -> None:
        """Report everything to a sender that is linked, perhaps again."""
        self._former.remove(node)
        self.repeat(node)

    def _forget(self, node: NodeId) -> None:
        self._former.remove(node)
        sender = self._senders.pop(node)
        for accounts, other in zip(sender.accounts, sender.others, strict=True):
            for name in accounts if other is None else (*accounts, OTHER):
                self.memory.remove(sender.owner, name)
