"""Retention: which events may be removed, by age and by size, but never what a protected group has still to read.

Without rules for topics whole segments go, from the beginning of each shard.  With rules, segments from which some
events go and others do not are written anew, see ``iris.spark_bridge.log.topics.compaction``.

Removals: the topics whose events were removed, so that a reader of others gets no report of a loss.  A query on
a silent topic stays at the offset where it was, and the events of other topics behind that go.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, as_whole, shown
from iris.patterns.pubsub.interest import check_pattern
from iris.spark_bridge.log.records import REMOVALS, Removed, SegmentRecord
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.spark_bridge.log.transaction import Transaction


def _limit(name: str, value: object) -> float | None:
    """Return a limit as Python's own number, of bytes a whole one if it is; NaN if it is none."""
    if value is None:
        return None
    whole = as_whole(value) if name == "max_bytes" else None
    return as_float(value) if whole is None else whole


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicRetention:
    """Retention of the events of some topics.

    Raises:
        ConfigError: the pattern is none, or a limit is not above 0.
    """

    pattern: str
    max_age: float | None = None
    """Seconds; None keeps events of any age."""
    max_bytes: int | None = None
    """Least that is kept of each shard, in bytes of all topics of the pattern together. None: no limit."""
    last_value: bool = False
    """Keep the last event of each topic and key only; of those without a key, the last of the topic."""

    def __post_init__(self) -> None:
        check_pattern(self.pattern)
        for name in ("max_age", "max_bytes"):
            value = _limit(name, given := getattr(self, name))
            if value is not None and not value > 0:
                raise ConfigError(f"retention of {self.pattern!r}: {name} is {shown(given)}: use a number above 0")
            object.__setattr__(self, name, value)


def parse_rule(text: str) -> TopicRetention:
    """Read how long topics are kept, as ``prices.>=24h``, ``logs.*=7d,10GiB`` or ``state.>=last``.

    Raises:
        ConfigError: it is something else.
    """
    pattern, sign, limits = text.rpartition("=")
    given: dict[str, Any] = {}
    for limit in limits.split(","):
        amount = _AMOUNT.fullmatch(limit.strip())
        value: float | None = None
        if limit.strip() == "last":
            name, value = "last_value", True
        elif amount is not None and amount[2] in _SECONDS:
            name, value = "max_age", float(amount[1]) * _SECONDS[amount[2]]
        elif amount is not None:
            name, value = "max_bytes", int(float(amount[1]) * _BYTES[amount[2]])
        else:
            name = ""
        if not sign or not name or name in given:
            raise ConfigError(
                f"{text!r} does not say how long topics are kept: use PATTERN=LIMITS, where the limits are a time as "
                "24h (s, m, h, d), a size as 10GiB (KiB, MiB, GiB, TiB) and the word last, for the last value of each "
                "key, each once at most, with commas"
            )
        given[name] = value
    return TopicRetention(pattern=pattern, **given)


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
    rules: tuple[TopicRetention, ...] = ()
    """Rules for topics; the first that matches counts.  The limits above are for the other topics then."""
    tombstones: float = 86_400.0
    """Seconds for which a last value that is null stays at least, so that readers learn that its key is gone."""
    group_idle: float = GROUP_IDLE
    """Seconds, a day at least, after which a group of readers that nobody uses is forgotten.  A group in use never is:
    one that has a consumer, or a query of Spark's."""

    def without_ages(self) -> Retention:
        """Return the same without what depends on the clock."""
        rules = tuple(dataclasses.replace(rule, max_age=None) for rule in self.rules)
        return dataclasses.replace(self, max_age=None, rules=rules, tombstones=math.inf)

    def __post_init__(self) -> None:
        for name in ("max_age", "max_bytes", "tombstones"):
            value = _limit(name, given := getattr(self, name))
            if value is not None and not value > 0:
                raise ConfigError(f"retention: {name} is {shown(given)}: use a number above 0, or None for no limit")
            object.__setattr__(self, name, value)
        idle = as_float(self.group_idle)
        if not _SHORTEST_IDLE <= idle < math.inf:
            raise ConfigError(f"retention: group_idle is {shown(self.group_idle)}: use {_SHORTEST_IDLE:g} s or more")
        object.__setattr__(self, "group_idle", idle)


_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|h|d|KiB|MiB|GiB|TiB)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_MOST_PARTS: Final = 4
"""Events of a limited age stand in segments that span a quarter of it: whole segments are looked at."""

_SHORTEST: Final = 60.0
"""Seconds that a segment spans at least, if its size does not end it."""


@final
class TopicRules:
    """The rules of a log, by number; the last one is for topics that no other matches."""

    def __init__(self, retention: Retention) -> None:
        others = TopicRetention(pattern=">", max_age=retention.max_age, max_bytes=retention.max_bytes)
        self.rules: Final = (*retention.rules, others)
        self.tombstones: Final = retention.tombstones
        self._filters = [TopicFilter([rule.pattern]) for rule in retention.rules]
        self._numbers: dict[str, int] = {}

    def keeps_last(self, number: int) -> bool:
        """Return whether a rule keeps the last value of each key alone."""
        return self.rules[number].last_value

    def of(self, topics: Collection[str]) -> dict[str, int]:
        """Return the number of the rule of each topic."""
        left = list(topics)
        found: dict[str, int] = {}
        for number, one in enumerate(self._filters):
            found |= dict.fromkeys(one.choose(left), number)
            left = [topic for topic in left if topic not in found]
        return found | dict.fromkeys(left, len(self._filters))

    @property
    def span(self) -> float:
        """Seconds after which a segment is not to grow any more; inf: that does not matter."""
        ages = [rule.max_age for rule in self.rules if rule.max_age is not None]
        ages += [self.tombstones for rule in self.rules if rule.last_value]
        return max(min(ages) / _MOST_PARTS, _SHORTEST) if ages else math.inf


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SegmentShares:
    """Events and bytes of a segment on the topics of each rule, by the number of the rule."""

    events: Sequence[int]
    bytes: Sequence[int]
    """Approximate size: the chunks' bytes, divided by events."""
    is_known: bool = True
    """True if its topics are known; else its events count as on topics without a rule."""


def choose_rules(
    segments: Sequence[SegmentRecord], shares: Mapping[int, SegmentShares], rules: TopicRules, *, now: int
) -> dict[int, set[int]]:
    """Return which rules let all of their events in which segments go, by the first offset of the segment.

    Args:
        segments: segments of one shard, oldest first.
        shares: shares of the segments, by first offset.
        rules: retention rules of topics.
        now: microseconds since 1970.
    """
    expired: dict[int, set[int]] = {}
    kept = [0] * len(rules.rules)
    ages = {segment.first: age for age, _, _, segment in _ages(0, segments, now)}
    for segment in reversed(segments):
        held = shares[segment.first]
        gone = expired[segment.first] = set[int]()
        for number, rule in enumerate(rules.rules):
            too_old = rule.max_age is not None and ages[segment.first] < now - rule.max_age * 1_000_000
            too_much = rule.max_bytes is not None and kept[number] >= rule.max_bytes
            if too_old or too_much:
                gone.add(number)
            kept[number] += held.bytes[number]
    return expired


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

        Events that later ones have superseded do not count.

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
