"""Retention: which events may be removed, by age and by size, but never what a protected group has still to read.

Whole segments go, from the beginning of each shard.

Removals: the topics whose events were removed, so that a reader of others gets no report of a loss.  A query on
a silent topic stays at the offset where it was, and the events of other topics behind that go.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final
from weakref import WeakKeyDictionary

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, as_whole, shown
from iris.spark_bridge.log.records import REMOVALS, Removed, SegmentRecord
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.spark_bridge.log.transaction import Transaction


def _limit(name: str, value: object) -> float | None:
    """Return a limit as Python's own number, of bytes a whole one if it is; NaN if it is none."""
    if value is None:
        return None
    whole = as_whole(value) if name == "max_bytes" else None
    return as_float(value) if whole is None else whole


GROUP_IDLE: Final = 30 * 86_400.0
"""Seconds.  A job that runs once a month keeps its place, and so does who is away for some weeks; names that somebody
made up for a look go before a cluster has no room for more."""

_SHORTEST_IDLE: Final = 86_400.0
"""Seconds: 24 times the longest pause between two signs of life of a group in use."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention of a log's events.  Whole segments are removed, so it keeps somewhat more than asked.

    Raises:
        ConfigError: a limit is not above 0.
    """

    max_age: float | None = None
    """Seconds; None keeps events of any age."""
    max_bytes: int | None = None
    """Least that is kept of all shards of a member together, in bytes. None: no limit."""
    keep_unread: bool = False
    """Keep what a known group has not read yet, whatever the limits say."""
    group_idle: float = GROUP_IDLE
    """Seconds, a day at least, after which a group of readers that nobody uses is forgotten.  A group in use never is:
    one that has a consumer, or a query of Spark's."""

    def without_ages(self) -> Retention:
        """Return the same without what depends on the clock."""
        return dataclasses.replace(self, max_age=None)

    def __post_init__(self) -> None:
        for name in ("max_age", "max_bytes"):
            value = _limit(name, given := getattr(self, name))
            if value is not None and not value > 0:
                raise ConfigError(f"retention: {name} is {shown(given)}: use a number above 0, or None for no limit")
            object.__setattr__(self, name, value)
        idle = as_float(self.group_idle)
        if not _SHORTEST_IDLE <= idle < math.inf:
            raise ConfigError(f"retention: group_idle is {shown(self.group_idle)}: use {_SHORTEST_IDLE:g} s or more")
        object.__setattr__(self, "group_idle", idle)


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


def choose_expired(
    segments: Mapping[int, Sequence[SegmentRecord]],
    retention: Retention,
    *,
    now: int,
    unread: Mapping[int, int],
) -> dict[int, int]:
    """Return, by shard, the offset below which events may go.

    Args:
        segments: by shard, oldest first.
        retention: the limits.
        now: microseconds since 1970.
        unread: lowest offset that a group has still to read, by shard.
    """
    before: dict[int, int] = {}
    total = sum(segment.size for shard in segments.values() for segment in shard)
    by_age = [item for number, shard in segments.items() for item in _ages(number, shard, now)]
    by_age.sort(key=lambda item: item[:3])
    stopped: set[int] = set()
    needed = retention.max_bytes is None
    for age, number, _, segment in by_age:
        if number in stopped:
            continue
        too_old = retention.max_age is not None and age < now - retention.max_age * 1_000_000
        # Once the oldest that is left is needed, so are all behind it: a smaller one in its place would take it along.
        needed = needed or (retention.max_bytes is not None and total - segment.size < retention.max_bytes)
        if needed and not too_old:
            continue
        if retention.keep_unread and segment.end > unread.get(number, segment.end):
            stopped.add(number)
            continue
        before[number] = segment.end
        total -= segment.size
    return before


def _ages(number: int, shard: Sequence[SegmentRecord], now: int) -> list[tuple[int, int, int, SegmentRecord]]:
    """Return shard, place and segment of each of its segments, behind the time from which it is as old as it is.

    After a clock that was ahead was set right, events go on with the time that it had.  When they were written decides
    more then.  A segment that was itself written at such a time goes with the one behind it.
    """
    found: list[tuple[int, int, int, SegmentRecord]] = []
    age = sys.maxsize
    for segment in reversed(shard):
        age = min(age, segment.last_timestamp if segment.last_timestamp <= now else segment.written)
        found.append((age, number, segment.first, segment))
    return found
