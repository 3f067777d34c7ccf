"""Topic filter: which topics a reader wants, by patterns or by a regular expression.

A regular expression that a reader sends is matched by the bridge, so it must end in time that grows with the topic and
not with the expression: RE2, which Arrow brings, is such an engine.  What RE2 does not know (lookahead, references) is
matched where it was written, by Python, and the bridge is then asked for all topics.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, final

import pyarrow as pa
import pyarrow.compute as pc

from iris.kernel.errors import ConfigError
from iris.patterns.pubsub.interest import Matcher
from iris.spark_bridge.events.schema import NO_EVENTS, decode_events
from iris.spark_bridge.log.chunk import Chunk, frame_header

_REMEMBERED: Final = 512
"""Topics whose verdict a filter caches: 0.1 MB.  Matching another one takes about a microsecond.  Each open read, poll
and consumer has a filter of its own."""

MAX_REGEX: Final = 1024
"""Longest expression that a bridge matches, in bytes."""

_WIDEST: Final = 2**32 - 1
"""Most offsets that one chunk may stand for."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopics:
    """The topics of one segment that a filter wants."""

    segment: tuple[str, int, int]
    """Epoch, first offset and revision."""
    known: int
    """Number of topics of the segment that have been looked at."""
    ids: bytes
    """One byte for each of these topics up to the last wanted one, by number in the segment: 1 if it is wanted."""


@final
class TopicFilter:
    """Keeps the events whose topic matches.  Safe in any thread.

    Args:
        patterns: topic patterns, with ``*`` and ``>``; none for all.
        regex: a regular expression for the whole topic, in the place of patterns.

    Raises:
        ConfigError: the expression is none.
    """

    def __init__(self, patterns: Sequence[str] = (), regex: str | None = None) -> None:
        self.patterns: Final = tuple(patterns)
        self.regex: Final = regex
        self.is_everything: Final = not patterns and regex is None
        """True if it keeps all topics."""
        self._matcher: Matcher[bool] | None = None
        self._expression: re.Pattern[str] | None = None
        exact = patterns and not any("*" in pattern or pattern[-1:] == ">" for pattern in patterns)
        self.names: Final = frozenset(patterns) if exact else None
        """The topics, if all of them are named."""
        self._known: dict[str, bool] = {}
        self.newest_segments: Final[dict[int, WantedTopics]] = {}
        """Wanted topics of each shard's last segment, which still grows; see ``iris.spark_bridge.log.topics.index``."""
        if patterns:
            self._matcher = Matcher()
            for pattern in patterns:
                self._matcher.add(pattern, True)
        if regex is not None and not self.is_linear:
            try:
                self._expression = re.compile(regex)
            except re.error as error:
                raise ConfigError(f"{regex!r} is no regular expression: {error}") from None

    @property
    def remembered(self) -> int:
        """Memory of cached verdicts on topics, in units of some hundred bytes: one for each topic by name."""
        return len(self._known) + sum(len(segment.ids) for segment in tuple(self.newest_segments.values())) // 128

    @property
    def is_linear(self) -> bool:
        """True if it has no expression, or one that a bridge matches."""
        return self.regex is None or (len(self.regex.encode()) <= MAX_REGEX and _is_known_to_re2(self.regex))

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows; the batch itself if it wants all of them."""
        if self.is_everything:
            return batch
        column = batch.column("topic")
        topics: list[str] = pc.unique(column).to_pylist()
        wanted = self.choose(topics)
        if len(wanted) == len(topics):
            return batch
        if not wanted:
            return batch.slice(0, 0)
        return batch.filter(pc.is_in(column, value_set=pa.array(wanted, pa.string())))

    def drop(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that it does not want."""
        column = batch.column("topic")
        wanted = pa.array(self.choose(pc.unique(column).to_pylist()), pa.string())
        return batch.filter(pc.invert(pc.is_in(column, value_set=wanted)))

    def wants(self, topic: str) -> bool:
        """Return whether events of a topic are wanted."""
        known = self._known.get(topic)
        return bool(self.choose((topic,))) if known is None else known

    def is_wanted_of(self, topics: AbstractSet[str]) -> bool:
        """Return whether one of some topics is wanted."""
        if self.is_everything:
            return True
        return bool(self.choose(topics)) if self.names is None else not self.names.isdisjoint(topics)

    def choose(self, topics: Collection[str]) -> list[str]:
        """Return those of some topics that are wanted, in their order."""
        if self.is_everything:
            return list(topics)
        if self.names is not None:
            return [topic for topic in topics if topic in self.names]
        known = self._known
        new = [topic for topic in topics if topic not in known]
        if new:
            if len(known) + len(new) > _REMEMBERED:
                new, known = list(topics), {}
                if len(new) <= _REMEMBERED:
                    self._known = known
            known.update(zip(new, self._match(new), strict=True))
        return [topic for topic in topics if known[topic]]

    def _match(self, topics: Sequence[str]) -> Sequence[bool]:
        if self._matcher is not None:
            return [*map(self._matcher.matches, topics)]
        if self._expression is not None:
            whole = self._expression.fullmatch
            return [whole(topic) is not None for topic in topics]
        assert self.regex is not None
        return _match_by_re2(topics, self.regex)


def _match_by_re2(topics: Sequence[str], regex: str) -> list[bool]:
    found: list[bool] = pc.match_substring_regex(pa.array(topics, pa.string()), rf"\A(?:{regex})\z").to_pylist()
    return found


def _is_known_to_re2(regex: str) -> bool:
    try:
        _match_by_re2([""], regex)
    except pa.ArrowInvalid:
        return False
    return True


def keep_topics(chunk: Chunk, wanted: TopicFilter) -> Chunk:
    """Return a chunk of the wanted events for the same offsets; raise LogDamaged if it holds no events."""
    events = decode_events(chunk.data)
    kept = wanted.keep(events)
    if kept.num_rows == events.num_rows:
        return chunk
    data = bytes(kept.serialize())
    header = frame_header(
        data, shard=chunk.shard, epoch=chunk.epoch, first=chunk.first, count=chunk.count, timestamp=chunk.timestamp
    )
    return dataclasses.replace(chunk, frame=header + data)


def empty_chunk(shard: int, epoch: str, first: int, end: int, timestamp: int) -> Chunk:
    """Return a chunk without events; it stands for the offsets from ``first`` to ``end``, or the first 2**32 - 1."""
    count = min(end - first, _WIDEST)
    header = frame_header(_EMPTY, shard=shard, epoch=epoch, first=first, count=count, timestamp=timestamp)
    return Chunk(shard=shard, epoch=epoch, first=first, count=count, timestamp=timestamp, frame=header + _EMPTY)


_EMPTY: Final = bytes(NO_EVENTS.serialize())

EVERYTHING: Final = TopicFilter()
