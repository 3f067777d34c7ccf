"""Loss reports: publishers learn of events that their subscribers did not get.

A publisher itself counts what its links did not accept.  The subscriber's node reports what ``overflow`` drops and what
``allow`` refuses: for each publisher and topic a sum, at most every ``_PAUSE`` seconds, and nothing as long as nothing
is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.errors import EventsLost, NotSent
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.statistics import Statistics
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.patterns.pubsub.publish.publisher import Publisher

_PAUSE: Final = 0.1
"""Seconds for which losses are gathered."""

_TOPICS_IN_ONE_MESSAGE: Final = wire.MAX_ARRAY // 3
"""Topics in one message: an entry is a topic and two numbers."""

_MAX_GATHERED: Final = 65_536
"""Topics of one publisher that losses are gathered for; those of further ones are only in the subscriber's counters."""


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


@final
class LossReports:
    """Losses at the subscriptions of this node that its publishers do not know of yet."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._gathered: dict[NodeId, dict[str, tuple[int, int]]] = {}
        self._news = Wakeup()

    def note(self, node: NodeId, topic: str, dropped: int, refused: int) -> None:
        """Count events of a publisher that a subscription has dropped for want of room, or refused."""
        topics = self._gathered.setdefault(node, {})
        known = topics.get(topic)
        if known is not None:
            topics[topic] = (known[0] + dropped, known[1] + refused)
        elif len(topics) < _MAX_GATHERED:
            topics[topic] = (dropped, refused)
        self._news.wake()

    async def run(self) -> None:
        """Report to the publishers; run it in exactly one task."""
        while True:
            await self._news.wait()
            await trio.sleep(_PAUSE)
            self.flush()

    def flush(self) -> None:
        """Report to the publishers now."""
        gathered, self._gathered = self._gathered, {}
        for node, topics in gathered.items():
            self._send(node, list(topics.items()))

    def _send(self, node: NodeId, topics: list[tuple[str, tuple[int, int]]]) -> None:
        peer = self._mesh.peer(node)
        if peer is not None and peer.other_realm:
            return  # its publishers settle nothing with this realm
        for start in range(0, len(topics), _TOPICS_IN_ONE_MESSAGE):
            entries = topics[start : start + _TOPICS_IN_ONE_MESSAGE]
            fields = tuple((topic, *counts) for topic, counts in entries)
            try:
                size = sum(len(topic) + 3 * wire.ELEMENT for topic, _ in entries)
                self._mesh.post(node, kinds.EventsLost(fields), size, CONTROL_RESERVE)
            except NotSent:
                if self._mesh.peer(node) is None:
                    return  # nobody is there to get the report
                for topic, (dropped, refused) in topics[start:]:
                    self.note(node, topic, dropped, refused)
                return


@final
class ReportedLosses:
    """Losses that subscribers have reported to this node as a publisher."""

    def __init__(self, mesh: Mesh, publishing: Publisher) -> None:
        self.dropped = 0
        """Events that a subscriber's ``overflow`` threw out, one for each subscriber."""
        self.refused = 0
        """Events that a subscriber's ``allow`` turned away."""
        self._publishing = publishing
        mesh.register(kinds.EventsLost, self._receive)

    def _receive(self, peer: Peer, message: kinds.EventsLost) -> None:  # noqa: ARG002 -- every subscriber may say it
        for topic, dropped, refused in message.losses:
            if self._publishing.count_lost(topic, dropped + refused):
                self.dropped = wire.saturated(self.dropped + dropped)
                self.refused = wire.saturated(self.refused + refused)

    def check(self, topic: str) -> None:
        """Raise EventsLost if a topic has losses that were not reported yet."""
        news = self._publishing.pop_losses(topic)
        if news:
            raise EventsLost(f"subscribers of {topic!r} did not get {news} of the events published on it", count=news)
