"""Topics survey: who in the realm subscribes to what, and who publishes on the topics that match.

::

    survey = TopicsSurvey(node)
    await survey.collect()
    await trio.sleep(2)
    for row in (await survey.collect()).patterns:
        print(row.pattern, len(row.subscribers), len(row.publishers), row.delivered_rate)

Needs the right that ``iris.node.report`` names.  A node reports the 128 subscriptions and the 128 topics with the
most events; what it leaves out is counted in ``omitted``.
"""

from __future__ import annotations

from functools import partial
from typing import Final, final

from msgspec import Struct

from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.node.operators import ask_topics
from iris.node.realm.checks import fault_of_topics
from iris.node.realm.questions import Questions
from iris.node.report import TopicsReport
from iris.patterns.pubsub.interest import Matcher

MOST_PATTERNS: Final = 4096
"""Patterns in one view: those with the most events."""

_Key = tuple[str, str | None, bool]


@final
class PatternView(Struct, frozen=True, kw_only=True):
    """One pattern, as subscribers of one group, or of none, have it.  Rates are events per second, 0 at first."""

    pattern: str
    """A topic on which somebody publishes and nobody subscribes, if there are no ``subscribers``."""
    group: str | None
    durable: bool
    subscribers: tuple[NodeId, ...]
    publishers: tuple[NodeId, ...]
    """Nodes that have published on a topic that matches."""
    delivered_rate: float
    """Events per second that the programs of all subscribers together were given."""
    published_rate: float
    lost: int
    """Events that were lost at the subscribers, since they subscribed."""
    waiting: int
    """Events that wait at the subscribers for the program."""


@final
class TopicsView(Struct, frozen=True, kw_only=True):
    """The topics of the realm as one survey found them."""

    patterns: tuple[PatternView, ...]
    """Patterns of the subscriptions, sorted."""
    silent: dict[NodeId, str]
    """Nodes that did not answer, and why."""
    omitted: int
    """Subscriptions and topics that nodes, or this view, left out."""


@final
class _Row:
    def __init__(self) -> None:
        self.subscribers: set[NodeId] = set()
        self.publishers: set[NodeId] = set()
        self.delivered = self.published = 0.0
        self.lost = self.waiting = 0


@final
class TopicsSurvey:
    """Asks every other node of this node's site, again and again.

    Args:
        node: the node that asks.
        timeout: seconds that a node has to answer.
    """

    def __init__(self, node: Node, *, timeout: float = 2.0) -> None:
        self._node = node
        self._asking = Questions(node, partial(ask_topics, node), timeout)
        self._before: dict[NodeId, tuple[float, TopicsReport]] = {}

    async def collect(self) -> TopicsView:
        """Ask every node; ends within ``timeout`` for each sixteen of them that do not answer.

        Cancelling it leaves what the survey before found.
        """
        answers, silent, _ = await self._asking.collect()
        for node, (_, report) in list(answers.items()):
            fault = fault_of_topics(report)
            if fault is not None:
                self._node._mesh.refusals["report of a node that cannot be"] += 1
                silent[node] = f"its report is refused: {fault}"
                del answers[node]
        before, self._before = self._before, answers
        rows = _rows(answers, before)
        busiest = sorted(rows.items(), key=lambda row: -(row[1].delivered + row[1].published))[:MOST_PATTERNS]
        return TopicsView(
            patterns=tuple(
                PatternView(
                    pattern=pattern,
                    group=group,
                    durable=durable,
                    subscribers=tuple(sorted(row.subscribers)),
                    publishers=tuple(sorted(row.publishers)),
                    delivered_rate=row.delivered,
                    published_rate=row.published,
                    lost=row.lost,
                    waiting=row.waiting,
                )
                for (pattern, group, durable), row in sorted(
                    busiest, key=lambda row: (row[0][0], row[0][1] or "", row[0][2])
                )
            ),
            silent=silent,
            omitted=sum(report.omitted for _, report in answers.values()) + len(rows) - len(busiest),
        )


def _rows(
    answers: dict[NodeId, tuple[float, TopicsReport]], before: dict[NodeId, tuple[float, TopicsReport]]
) -> dict[_Key, _Row]:
    rows: dict[_Key, _Row] = {}
    wanted: Matcher[_Key] = Matcher()
    for node, (now, report) in answers.items():
        then, earlier = before.get(node, (now, report))
        delivered = {(of.pattern, of.group, of.durable): of.delivered for of in earlier.subscribed}
        for of in report.subscribed:
            key = of.pattern, of.group, of.durable
            if key not in rows:
                rows[key] = _Row()
                if "/" not in of.pattern:  # of another realm, whose publishers are not asked
                    wanted.add(of.pattern, key)
            row = rows[key]
            row.subscribers.add(node)
            row.delivered += _per_second(of.delivered - delivered.get(key, 0), now - then)
            row.lost += of.lost
            row.waiting += of.waiting
    for node, (now, report) in answers.items():
        then, earlier = before.get(node, (now, report))
        published = {of.topic: of.published for of in earlier.published}
        for topic in report.published:
            rate = _per_second(topic.published - published.get(topic.topic, 0), now - then)
            for key in wanted.match(topic.topic) or ((topic.topic, None, False),):
                row = rows.setdefault(key, _Row())
                row.publishers.add(node)
                row.published += rate
    return rows


def _per_second(count: int, seconds: float) -> float:
    return max(0, count) / seconds if seconds > 0 else 0.0
