"""Retention: which events may be removed, by age and by size, but never what a protected group has still to read.

Removals: of which topics events were removed, so that who reads others is not told that something was lost.  A query on
a silent topic stays at the offset where it was, and the events of other topics behind that go.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Final, final
from weakref import WeakKeyDictionary

from iris.kernel.errors import ConfigError
from iris.spark_bridge.log.index import IndexView, SegmentRecord
from iris.spark_bridge.log.topic_filter import TopicFilter


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a log keeps events.  Whole segments go, so it keeps somewhat more than asked.

    Raises:
        ConfigError: a limit is not above 0.
    """

    max_age: float | None = None
    """Seconds; None keeps events of any age."""
    max_bytes: int | None = None
    """Of all shards of a member together: at least so much is kept.  None is no limit."""
    keep_unread: bool = False
    """Keep what a known group has not read yet, whatever the two limits say."""

    def __post_init__(self) -> None:
        for name in ("max_age", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"retention: {name} is {value!r}: use a number above 0, or None for no limit")


MAX_REMOVALS: Final = 65_536
"""Topics of a log whose removals are known one by one.  Those that lie furthest back are put together."""

_OTHERS: Final = ""
"""Stands for the topics that are not named."""


@final
class Removals:
    """Below which offsets events of which topics were removed.  Safe to ask in any thread; one at a time may change it.

    Args:
        records: by shard and topic.
    """

    def __init__(self, records: Mapping[int, Mapping[str, int]]) -> None:
        self._before = {shard: dict(topics) for shard, topics in records.items()}
        self._count = sum(map(len, self._before.values()))
        self._changed: set[tuple[int, str]] = set()
        self._answers: WeakKeyDictionary[TopicFilter, dict[int, int]] = WeakKeyDictionary()

    def earliest(self, shard: int, earliest: int, wanted: TopicFilter) -> int:
        """Return the offset below which wanted events may have been removed.

        Args:
            shard: its number.
            earliest: of the shard: below it all have been.
            wanted: topics.
        """
        if wanted.is_everything:
            return earliest
        before = self._before.get(shard)
        if before is None:
            return 0
        others = before.get(_OTHERS, 0)
        if wanted.names is not None:
            return max([others, *(before.get(name, 0) for name in wanted.names)])
        answers = self._answers.setdefault(wanted, {})
        answer = answers.get(shard)
        if answer is None:
            topics = [topic for topic in tuple(before) if topic]
            answer = answers[shard] = max([others, *(before.get(topic, 0) for topic in wanted.choose(topics))])
        return answer

    def note(self, shard: int, topics: Mapping[str, int] | None, before: int) -> None:
        """Note that events of some topics are removed.

        Args:
            shard: its number.
            topics: each with the offset below which that is so; None: they are not known.
            before: below it all are removed.
        """
        known = self._before.setdefault(shard, {})
        for topic, end in ({_OTHERS: before} if topics is None else topics).items():
            self._count += topic not in known
            known[topic] = max(end, known.get(topic, 0))
            self._changed.add((shard, topic))

    def write(self, view: IndexView) -> None:
        """Write what was noted."""
        if self._count > MAX_REMOVALS:
            self._put_together()
        for shard, topic in self._changed:
            before = self._before[shard].get(topic)
            if before is None:
                view.delete_removal(shard, topic)
            else:
                view.put_removal(shard, topic, before)
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
        unread: by shard, the lowest offset that a group has still to read.
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
