"""Accounts of a publisher: the events that it has published, and what became of their copies.

A lost event is counted here and nowhere else: in the topic, for strict publishers; in the tally, for statistics; in the
ledger, for the books.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol, final

from iris.kernel import wire
from iris.kernel.link import OpenRun
from iris.kernel.names import NodeId
from iris.patterns.books import NOBODY, SendLedger, Tally

EVENT: Final = "event"


class LossCount(Protocol):
    """State of a topic, as far as losses are counted there."""

    lost: int


class TopicRun(OpenRun):
    """A run of events of one topic, which may still grow; the last one of its accounts from the moment it is made.

    Attributes:
        payloads: payloads of its events, in the posted message.
    """

    __slots__ = ("payloads", "topic")

    def __init__(self, accounts: EventAccounts, topic: str, payloads: list[wire.Payload], room: int) -> None:
        super().__init__(room)
        accounts.run = self
        self.topic = topic
        self.payloads = payloads


@final
class EventAccounts:
    """Accounts of the events of one publisher.

    Attributes:
        run: run that was published last: an older one must not grow, or its events would overtake others.
        tally: counters, one for each event and node that it goes to; without what the run has grown by.
        count: events published; without what the run has grown by.
    """

    __slots__ = ("count", "ledger", "run", "tally")

    def __init__(self, ledger: SendLedger) -> None:
        self.ledger: Final = ledger
        self.run = TopicRun(self, "", [], 0)
        self.run.is_open = False
        self.tally: Final = Tally()
        self.count = 0

    @property
    def published(self) -> int:
        """Events published so far.  The run grows no more."""
        self.run.end()
        return self.count

    def add(self, count: int) -> None:
        """Count events that are published now: the last run grows no more."""
        if self.run.is_open:
            self.run.end()
        self.count += count

    def lose(
        self, state: LossCount | None, topic: str, reason: str, nodes: Collection[NodeId] = (NOBODY,), count: int = 1
    ) -> None:
        """Count ``count`` events as lost for each of some nodes, which no link was asked to accept.

        Args:
            state: state of the topic.  None if it is forgotten, or strict publishers are not to learn of it.
            topic: topic of the events.
            reason: reason of the loss.
            nodes: nodes that should have received them.
            count: events.
        """
        self.tally.sent += count * len(nodes)
        self._lose(state, reason, count * len(nodes))
        for node in nodes:
            self.ledger.row(EVENT, topic, node).lose(reason, count)

    def lose_posted(
        self, state: LossCount | None, topic: str, reason: str, nodes: Collection[NodeId], count: int
    ) -> None:
        """Count events as lost that were counted as posted to some nodes, and that their links did not accept."""
        self._lose(state, reason, count * len(nodes))
        for node in nodes:
            self.ledger.row(EVENT, topic, node).lose_posted(reason, count)

    def lose_handed_over(self, state: LossCount | None, reason: str, copies: int) -> None:
        """Count copies as lost that were counted as handed over; the books learn of them from the receivers."""
        self.tally.handed_over -= copies
        self._lose(state, reason, copies)

    def _lose(self, state: LossCount | None, reason: str, copies: int) -> None:
        if state is not None:
            note_lost(state, copies)
        self.tally.lost[reason] += copies


def note_lost(state: LossCount, copies: int) -> None:
    """Count copies of a topic that did not reach a subscriber."""
    state.lost = wire.saturated(state.lost + copies)
