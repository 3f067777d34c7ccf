"""Removals: the topics whose events were removed, so that a reader of others gets no report of a loss.

A query on a silent topic stays at the offset where it was, and the events of other topics behind that go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, final
from weakref import WeakKeyDictionary

from iris.spark_bridge.log.records import REMOVALS, Removed
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.spark_bridge.log.transaction import Transaction

MAX_REMOVALS: Final = 65_536
"""Topics of a log whose removals are known one by one.  Those that lie furthest back are put together."""

_OTHERS: Final = ""
"""Stands for the topics that are not named."""


@final
class Removals:
    """Below which offsets events of which topics were removed.  Safe to ask in any thread; one at a time may change it.

    Args:
        records: offsets by shard and topic.
    """

    def __init__(self, records: Iterable[tuple[Removed, int]]) -> None:
        self._before: dict[int, dict[str, int]] = {}
        for (shard, topic), before in records:
            self._before.setdefault(shard, {})[topic] = before
        self._count = sum(map(len, self._before.values()))
        self._changed: set[tuple[int, str]] = set()
        self._answers: WeakKeyDictionary[TopicFilter, dict[int, int]] = WeakKeyDictionary()

    def earliest(self, shard: int, earliest: int, wanted: TopicFilter) -> int:
        """Return the offset below which wanted events may have been removed, by age, size or hand.

        Args:
            shard: number of the shard.
            earliest: earliest offset of the shard: no event is left below it.
            wanted: topics.
        """
        before = self._before.get(shard)
        if before is None:
            return earliest
        others = before.get(_OTHERS, 0)
        if wanted.names is not None:
            return max([others, *(before.get(name, 0) for name in wanted.names)])
        answers = self._answers.setdefault(wanted, {})
        answer = answers.get(shard)
        if answer is None:
            topics = [topic for topic in tuple(before) if topic]
            answer = answers[shard] = max([others, *(before.get(topic, 0) for topic in wanted.choose(topics))])
        return answer

    def note(self, shard: int, topics: Mapping[str, int] | None, before: int, *, earliest: int) -> None:
        """Note that events of some topics are removed.

        Args:
            shard: number of the shard.
            topics: each with the offset below which that is so; None: they are not known.
            before: below it all are removed.
            earliest: below it all had been before.
        """
        if shard not in self._before:
            # Of what went before this was noted, the topics are not known.
            self._before[shard] = {_OTHERS: earliest}
            self._changed.add((shard, _OTHERS))
            self._count += 1
        known = self._before[shard]
        for topic, end in ({_OTHERS: before} if topics is None else topics).items():
            self._count += topic not in known
            known[topic] = max(end, known.get(topic, 0))
            self._changed.add((shard, topic))

    def write(self, view: Transaction) -> None:
        """Write what was noted."""
        if self._count > MAX_REMOVALS:
            self._put_together()
        for shard, topic in self._changed:
            before = self._before[shard].get(topic)
            if before is None:
                view.delete(REMOVALS, (shard, topic))
            else:
                view.put(REMOVALS, (shard, topic), before)
        self._changed.clear()
        self._answers.clear()

    def _put_together(self) -> None:
        """Keep three quarters of the topics; of the others it is known together below which offset events are gone."""
        every = [(before, shard, topic) for shard, known in self._before.items() for topic, before in known.items()]
        every.sort()
        for before, shard, topic in every[: self._count - MAX_REMOVALS * 3 // 4]:
            if topic == _OTHERS:
                continue
            known = self._before[shard]
            del known[topic]
            known[_OTHERS] = max(before, known.get(_OTHERS, 0))
            self._changed |= {(shard, topic), (shard, _OTHERS)}
        self._count = sum(map(len, self._before.values()))
