"""SendLedger: the sending side of the books (sans-IO).  What this node has sent to whom, and what became of it.

Rules of this file:

- A *row* is of one pattern, one name (a cluster or topic) and one receiver.  It has what this node counts, and of
  broadcasts and events the columns that the receiver has reported.  What a receiver says goes into its own rows, and
  nothing follows from it but what they show.
- What a receiver has not accounted for is *waiting* while it is linked, and *in doubt* when it is not: it may have died
  with it in hand.  That is looked up and not noted, so nothing has to be put right when the receiver comes back.
- A receiver that answers a question has had all that its link still brings of what was sent before it.  What is missing
  from its answer is *lost in flight*, unless it goes by another route (a tree, a sealed copy): then it is asked again.
- Of events, what was lost is in a row and in the running sums (``EventSums``), which ``lose`` and ``receive`` write.
- What goes to the same nodes again and again (*crowd*) has numbers: nothing else counts it, and they are read when the
  crowd changes or is looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, Protocol, final

from iris.kernel.config import MIB
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books.columns import NOTHING, OTHER, Columns
from iris.patterns.books.event_sums import LOST_IN_FLIGHT, LOST_WITH_MEMBER, EventSums, GroupSums, TurnedAway
from iris.patterns.books.shares import FormerNodes, MemoryShares
from iris.patterns.books.shown import BookRow
from iris.patterns.observer import Pattern

NAMES: Final = 1024
"""Names of one pattern and receiver that have rows of their own.  Further ones share the row ``OTHER``."""

MAX_BYTES: Final = 64 * MIB
"""Memory of the rows of all receivers; those of one owner share what is left free (``MemoryShares``)."""

ROW_BYTES: Final = 960
"""Memory of a row with what its receiver has reported, beside its name (CPython 3.11)."""

FORMER: Final = 1024
"""Receivers that are gone of which the rows are kept.  Those of further ones are added up, as of no receiver."""

NOBODY: Final = NodeId("")
"""The receiver of what was sent to nobody in particular, and of what went to receivers that are long gone."""

IN_FLIGHT: Final = "on the way"
DROPPED: Final = "dropped"
ENDED: Final = "receiver left"

_LARGEST: Final = 2**48
"""A receiver can claim no more of one name: sums of what is claimed still have a form on the wire."""

EventPattern = Literal["event", "group event", "relayed event"]
"""Events for everybody, for one of a group, and those that a node on the way did not hand on.

Programs see the first two as one, and the last one in the rows of those who did not get them.
"""

RowPattern = Pattern | EventPattern

_OF_EVENTS: Final[tuple[RowPattern, ...]] = ("event", "group event")

_REPORTED: Final[tuple[RowPattern, ...]] = ("broadcast", "event", "group event", "relayed event")
"""Patterns that receivers report on, by their number on the wire."""


@final
class LedgerRow:
    """Counts of what one receiver was sent of one pattern and name.

    Attributes:
        posted: copies that were handed to a link, or to another node on the way; the receiver reports of them.
        received, expired, refused, in_doubt, lost: copies whose outcome this node knows by itself.
        reported: columns that the receiver has reported.
        turned_away: the most copies that it has reported as dropped or refused.
        answered: True once the receiver has reported this name.
        asked: value of ``posted`` when the receiver was asked last.
        due: value of ``posted`` at the last question that the receiver has answered.
        confirmed: copies of ``due`` that had not come when the time to settle was over.
        relayed: True if some copies went by another route than the receiver's link.
        is_former: True once it is in the books no more: what is counted here from then on is seen by nobody.
    """

    __slots__ = (
        "answered", "asked", "confirmed", "due", "expired", "in_doubt", "is_former", "lost", "name", "node", "pattern",
        "posted", "received", "refused", "relayed", "reported", "turned_away",
    )  # fmt: skip

    def __init__(self, pattern: RowPattern, name: str, node: NodeId) -> None:
        self.pattern: Final = pattern
        self.name: Final = name
        self.node: Final = node
        self.posted = self.received = self.expired = self.refused = self.in_doubt = 0
        self.lost: Counter[str] = Counter()
        self.reported = NOTHING
        self.answered = self.relayed = self.is_former = False
        self.asked = self.due = self.confirmed = self.turned_away = 0

    def lose(self, reason: str, count: int = 1) -> None:
        """Count copies that did not leave, and were not posted."""
        self.lost[reason] += count

    def add(self, other: LedgerRow) -> None:
        """Add what this node counts of another row of the same receiver."""
        self.posted += other.posted
        self.received += other.received
        self.expired += other.expired
        self.refused += other.refused
        self.in_doubt += other.in_doubt
        self.lost.update(other.lost)
        self.asked += other.asked
        self.due += other.due
        self.confirmed += other.confirmed
        self.relayed |= other.relayed

    @property
    def missing(self) -> int:
        """Copies that should have come before the last answer, and have not."""
        return max(0, self.due - self.reported.arrived)

    def is_settled(self) -> bool:
        """Return whether all copies have an outcome, for a receiver that is linked."""
        columns, missing = self.reported, self.missing
        in_hand = columns.arrived + columns.copied - columns.settled
        in_flight = self.posted - columns.arrived
        return in_hand <= 0 and in_flight <= missing and (not self.relayed or missing <= self.confirmed)

    def shown(self, *, is_linked: bool) -> BookRow:
        """Return the row as a program sees it."""
        columns, missing = self.reported, self.missing
        in_flight = self.posted - columns.arrived - missing
        in_hand = columns.arrived + columns.copied - columns.settled
        waiting = max(0, in_flight) + max(0, in_hand)
        lost = Counter(self.lost)
        lost.update({IN_FLIGHT: missing, DROPPED: columns.dropped, ENDED: columns.ended})
        known = self.received + self.expired + self.refused + self.in_doubt + self.lost.total()
        return BookRow(
            pattern=_shown(self.pattern),
            name=self.name,
            receiver=self.node or None,
            sent=known + self.posted + columns.copied,
            received=self.received + columns.received,
            expired=self.expired + columns.expired,
            refused=self.refused + columns.refused,
            lost={reason: count for reason, count in lost.items() if count},
            in_doubt=self.in_doubt + (0 if is_linked else waiting),
            waiting=waiting if is_linked else 0,
        )


class MessageNumbers(Protocol):
    """Source of consecutive numbers for messages to the same receivers."""

    sequence: int
    """Number of the last message."""


@final
class ReceiverSet:
    """The rows of receivers that are sent each message of a numbering from now on, but for those that are lost."""

    __slots__ = ("_numbering", "_rows", "_sequence")

    def __init__(self, rows: tuple[LedgerRow, ...], numbering: MessageNumbers) -> None:
        self._rows = rows
        self._numbering = numbering
        self._sequence = numbering.sequence

    def share_out(self) -> None:
        """Count in each row what has been sent since this was last called."""
        before, self._sequence = self._sequence, self._numbering.sequence
        if self._sequence > before:
            for row in self._rows:
                row.posted += self._sequence - before


@final
class _Receiver:
    """The rows of one node.

    Attributes:
        owner: owner of the node's key.
        rows: rows by pattern and name.
        group: events for groups that it was sent.
        turned_away: events that it has dropped or refused, by pattern.
        totals: columns of all names together, by pattern, as reported.
        full: patterns of which the receiver has some names in the total only.
        mark: number of the last question that it was asked.
    """

    __slots__ = ("full", "group", "mark", "owner", "rows", "totals", "turned_away")

    def __init__(self, owner: str) -> None:
        self.owner: Final = owner
        self.rows: dict[RowPattern, dict[str, LedgerRow]] = {}
        self.group: Final = GroupSums()
        self.turned_away: defaultdict[RowPattern, TurnedAway] = defaultdict(TurnedAway)
        self.totals: dict[RowPattern, Columns] = {}
        self.full: set[RowPattern] = set()
        self.mark = 0


class LinkTable(Protocol):
    """Table of the nodes that are linked."""

    def is_linked(self, node: NodeId) -> bool:
        """Return whether a node is linked.  Called when a row is opened; does not block."""
        ...

    def owner_of(self, node: NodeId) -> str:
        """Return the owner of a node's key.  Called with the first row of a node; does not block."""
        ...


@final
class SendLedger:
    """Rows of what one node has sent, by receiver, pattern and name.

    Args:
        links: table of the nodes that are linked, this one among them.

    Attributes:
        events: running sums of the rows of events.
    """

    def __init__(self, links: LinkTable) -> None:
        self.events: Final = EventSums()
        self._links = links
        self._receivers: dict[NodeId, _Receiver] = {}
        self._former: Final = FormerNodes()
        self._receiver_sets: dict[ReceiverSet, None] = {}
        self.memory: Final = MemoryShares(MAX_BYTES, ROW_BYTES)

    def __repr__(self) -> str:
        return f"<SendLedger of {len(self._receivers)} receivers, {self.memory.total} bytes>"

    # -- what is sent ---------------------------------------------------------------------------------------

    def row(self, pattern: RowPattern, name: str, node: NodeId = NOBODY) -> LedgerRow:
        """Return the row of a pattern, name and receiver."""
        receiver = self._receivers.get(node)
        if receiver is None:
            receiver = self._receivers[node] = _Receiver(self._links.owner_of(node) if node else "")
            if node and not self._links.is_linked(node):
                self.receiver_gone(node)
        rows = receiver.rows.get(pattern)
        if rows is None:
            rows = receiver.rows[pattern] = {}
        row = rows.get(name)
        if row is None:
            if len(rows) >= NAMES or not self.memory.has_room(receiver.owner, name):
                name = OTHER
                if name in rows:
                    return rows[name]
            row = rows[name] = LedgerRow(pattern, name, node)
            self.memory.add(receiver.owner, name)
        return row

    def post(self, pattern: EventPattern, topic: str, node: NodeId, count: int, *, relayed: bool) -> None:
        """Count copies of events that are posted to one node now, and that no set of receivers counts."""
        row = self.row(pattern, topic, node)
        row.posted += count
        row.relayed |= relayed
        if pattern == "group event":
            self._receivers[node].group.sent += count

    def lose(
        self,
        pattern: EventPattern,
        topic: str,
        reason: str,
        node: NodeId = NOBODY,
        count: int = 1,
        *,
        posted: bool = False,
        strict: bool = True,
    ) -> None:
        """Count copies of events that did not leave.

        Args:
            pattern: pattern of the events.
            topic: topic of the events.
            reason: reason of the loss.
            node: node that should have received them.
            count: copies.
            posted: True if they were counted as posted.
            strict: True if strict publishers are to learn of it.
        """
        row = self.row(pattern, topic, node)
        row.lose(reason, count)
        if posted:
            row.posted -= count
            if pattern == "group event":
                self._receivers[node].group.sent -= count
        self.events.lost[reason] += count
        if strict:
            self.events.add(topic, count)

    def lose_handed_over(self, topic: str, reason: str, count: int) -> None:
        """Count copies of events as lost that a tree did not take; their rows learn of them from the receivers."""
        self.events.lost[reason] += count
        self.events.add(topic, count)

    def outstanding(self, node: NodeId) -> int:
        """Return how many events for groups a node was sent that have no outcome yet."""
        receiver = self._receivers.get(node)
        return 0 if receiver is None else receiver.group.outstanding

    def turns_away(self, node: NodeId) -> bool:
        """Return whether a node has dropped or refused events for groups since the report before its last one."""
        receiver = self._receivers.get(node)
        return receiver is not None and receiver.group.turns_away

    def is_open(self, node: NodeId) -> bool:
        """Return whether events for groups have no outcome yet at a node, or count as lost with it."""
        receiver = self._receivers.get(node)
        return receiver is not None and receiver.group.is_open

    def shares_row(self, topic: str, node: NodeId) -> bool:
        """Return whether the losses of a topic's events at a node are known together with those of others only."""
        receiver = self._receivers.get(node)
        if receiver is None:
            return False
        rows = {pattern: receiver.rows.get(pattern, {}) for pattern in _OF_EVENTS}
        own = {pattern: names[topic] for pattern, names in rows.items() if topic in names}
        if not own:
            return any(OTHER in names for names in rows.values())
        return any(pattern in receiver.full and not row.answered for pattern, row in own.items())

    def open_receiver_set(
        self,
        pattern: Pattern,
        name: str,
        linked: Iterable[NodeId],
        relayed: Iterable[NodeId],
        numbering: MessageNumbers,
    ) -> ReceiverSet:
        """Count messages that are numbered from now on for these receivers, until ``close_receiver_set``.

        Args:
            pattern: pattern of the messages.
            name: cluster or topic of the messages.
            linked: receivers that get them by their links.
            relayed: receivers that get them by other routes.
            numbering: source of their numbers.
        """
        rows = [self.row(pattern, name, node) for node in linked]
        for node in relayed:
            row = self.row(pattern, name, node)
            row.relayed = True
            rows.append(row)
        receivers = ReceiverSet(tuple(rows), numbering)
        self._receiver_sets[receivers] = None
        return receivers

    def close_receiver_set(self, receivers: ReceiverSet) -> None:
        """Stop counting for these receivers: messages that are numbered from now on go to others."""
        receivers.share_out()
        self._receiver_sets.pop(receivers, None)

    # -- what receivers say ---------------------------------------------------------------------------------

    def ask(self, node: NodeId, mark: int) -> None:
        """Note that a receiver is asked now, in the order of what it is sent."""
        self._share_out()
        receiver = self._receivers[node]
        receiver.mark = mark
        receiver.group.ask()
        for pattern in _REPORTED:
            for row in receiver.rows.get(pattern, {}).values():
                row.asked = row.posted

    def receive(self, node: NodeId, report: kinds.Received) -> None:
        """Accept a receiver's report.  Names that this node does not know are in the total only."""
        receiver = self._receivers.get(node)
        if receiver is None:
            return
        pattern = _REPORTED[report.pattern]
        if pattern == "relayed event":  # nothing was posted to it, so there are no rows yet
            for entry in report.names:
                if self.events.follows(entry.name):
                    self.row(pattern, entry.name, node)
        rows = receiver.rows.get(pattern, {})
        turned_away = None if pattern == "broadcast" else receiver.turned_away[pattern]
        if report.full:
            receiver.full.add(pattern)
        for name, *counts in report.names:
            row = rows.get(name)
            if row is not None and name != OTHER:
                columns = _credible(counts)
                if turned_away is not None:
                    row.turned_away = turned_away.add_named(self.events, name, row.turned_away, columns)
                row.reported, row.answered = columns, True
        if report.total != NOTHING:
            total = receiver.totals[pattern] = _credible(report.total)
            if turned_away is not None:
                turned_away.add_total(self.events, total)
            if pattern == "group event":
                receiver.group.receive(total)
        if report.mark and report.mark == receiver.mark:
            for each in _REPORTED:
                for row in receiver.rows.get(each, {}).values():
                    row.due = row.asked
            self._lose_of_groups(LOST_IN_FLIGHT, receiver.group.answered())

    def confirm(self, node: NodeId) -> None:
        """Note that what is missing at a receiver does not come any more: the time to settle is over."""
        receiver = self._receivers.get(node)
        if receiver is not None:
            for pattern in _REPORTED:
                for row in receiver.rows.get(pattern, {}).values():
                    row.confirmed = row.missing

    # -- receivers come and go ------------------------------------------------------------------------------

    def receiver_gone(self, node: NodeId) -> None:
        """Note that a node is given up.  Its rows are kept for a while: it may come back."""
        receiver = self._receivers.get(node)
        if receiver is None:
            return
        self._lose_of_groups(LOST_WITH_MEMBER, receiver.group.give_up())
        self._former.add(node, receiver.owner)
        if len(self._former) > FORMER and (oldest := self._former.oldest()) is not None:
            self._add_up_former(oldest)

    def receiver_back(self, node: NodeId) -> None:
        """Note that a node is linked, perhaps again."""
        self._former.remove(node)

    def _lose_of_groups(self, reason: str, count: int) -> None:
        if count:
            self.events.lost[reason] += count

    def _add_up_former(self, node: NodeId) -> None:
        self._share_out()
        self._former.remove(node)
        receiver = self._receivers.pop(node)
        for rows in receiver.rows.values():
            for row in rows.values():
                self.memory.remove(receiver.owner, row.name)
                row.is_former = True
        for row in _seen(receiver):
            shown, into = row.shown(is_linked=False), self.row(row.pattern, row.name)
            into.received += shown.received
            into.expired += shown.expired
            into.refused += shown.refused
            into.in_doubt += shown.in_doubt
            into.lost.update(shown.lost)

    # -- looking --------------------------------------------------------------------------------------------

    def _share_out(self) -> None:
        for receivers in self._receiver_sets:
            receivers.share_out()

    def rows(self, matches: Callable[[str], bool]) -> Iterator[LedgerRow]:
        """Yield the rows whose names match, and those of the names that have none of their own.  Not to be changed."""
        self._share_out()
        for receiver in list(self._receivers.values()):
            for row in _seen(receiver):
                if row.name == OTHER or matches(row.name):
                    yield row


def _shown(pattern: RowPattern) -> Pattern:
    """Return the pattern that a program sees."""
    match pattern:
        case "group event" | "relayed event":
            return "event"
        case _:
            return pattern


def _credible(columns: Sequence[int]) -> Columns:
    if max(columns) > _LARGEST:
        columns = [min(count, _LARGEST) for count in columns]
    return Columns(*columns)


def _seen(receiver: _Receiver) -> Iterator[LedgerRow]:
    """Yield the rows of a receiver; those that cannot be compared with its own as one."""
    for pattern, rows in receiver.rows.items():
        if pattern == "relayed event":
            continue
        full = pattern in receiver.full
        apart = [row for row in rows.values() if row.name == OTHER or (full and not row.answered)]
        own = [row for row in rows.values() if row not in apart] if apart else list(rows.values())
        yield from own
        if apart:
            others = LedgerRow(pattern, OTHER, apart[0].node)
            for row in apart:
                others.add(row)
            total = receiver.totals.get(pattern, NOTHING)
            rest = (of - sum(several) for of, *several in zip(total, *(row.reported for row in own), strict=True))
            others.reported = Columns(*(max(0, count) for count in rest))
            yield others
