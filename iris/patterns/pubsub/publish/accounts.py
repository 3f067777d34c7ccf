"""Accounts of a publisher: the events that it has published, and how many copies went out.

What became of the copies is written in the ledger of the books and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from iris.kernel import wire
from iris.kernel.link import OpenRun
from iris.kernel.statistics import Statistics
from iris.patterns.books import SendLedger


@final
class PublishStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of the events that this node has published, as far as a publisher can know.

    ``sent == handed_over + sum(lost.values())``; what is handed over may still be dropped, refused or lost on its way.
    Of events for groups it is known later what was lost: they count as handed over until then.
    """

    published: int
    """Events."""
    without_subscriber: int
    """Events that nobody subscribed to."""
    sent: int
    """Copies: one for each event and node that it goes to; so are the next two."""
    handed_over: int
    """Copies that the link has accepted."""
    lost: Mapping[str, int]
    """Copies that the link has not accepted, and those of events for groups that were lost after that, by reason."""
    dropped: int
    """Copies thrown out by the ``overflow`` of a subscription, as its node has reported, one for each subscription."""
    refused: int
    """Copies refused by the ``allow`` of a subscription, or by its node as too large or malformed, counted likewise."""
    retained: int
    """Last values that this node keeps."""
    retained_bytes: int
    posted: int
    """Events of threads that are not published yet: ``publish`` of ``iris.sync`` does not wait for that."""
    posted_bytes: int
    """Bytes of their payloads."""


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
        ledger: the books, which have what was lost.
        run: run that was published last: an older one must not grow, or its events would overtake others.
        count: events published; without what the run has grown by.
        sent: copies, one for each event and node that it goes to; without what the run has grown by.
    """

    __slots__ = ("count", "ledger", "run", "sent")

    def __init__(self, ledger: SendLedger) -> None:
        self.ledger: Final = ledger
        self.run = TopicRun(self, "", [], 0)
        self.run.is_open = False
        self.count = self.sent = 0

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

    def count_sent(self, copies: int) -> None:
        """Count copies of events that nodes were to get."""
        self.sent += copies
