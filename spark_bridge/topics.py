"""Which rows of a chunk a query wants, by topic."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import final

import pyarrow as pa
import pyarrow.compute as pc

from iris.patterns.topics import Matcher
from iris.spark_bridge.frame import Chunk, frame_header
from iris.spark_bridge.schema import decode_events

_REMEMBERED = 65536


@final
class TopicFilter:
    """Keeps the rows whose topic matches.

    Args:
        patterns: of topics, with ``*`` and ``>``.
        regex: a regular expression for the whole topic, in the place of patterns.
    """

    def __init__(self, patterns: Sequence[str] = (), regex: str | None = None) -> None:
        self._matcher: Matcher[bool] | None = None
        self._regex = None if regex is None else re.compile(regex)
        if patterns:
            self._matcher = Matcher()
            for pattern in patterns:
                self._matcher.add(pattern, True)
        self._known: dict[str, bool] = {}

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows; the batch itself if it wants all of them."""
        if self._matcher is None and self._regex is None:
            return batch
        column = batch.column("topic")
        topics: list[str] = pc.unique(column).to_pylist()
        wanted = [topic for topic in topics if self._is_wanted(topic)]
        if len(wanted) == len(topics):
            return batch
        if not wanted:
            return batch.slice(0, 0)
        return batch.filter(pc.is_in(column, value_set=pa.array(wanted, pa.string())))

    def wants(self, topic: str) -> bool:
        """Tell whether rows of a topic are wanted."""
        return (self._matcher is None and self._regex is None) or self._is_wanted(topic)

    def _is_wanted(self, topic: str) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if self._regex is not None:
                known = self._regex.fullmatch(topic) is not None
            else:
                assert self._matcher is not None
                known = bool(self._matcher.match(topic))
            self._known[topic] = known
        return known


def keep_topics(chunk: Chunk, wanted: TopicFilter) -> Chunk:
    """Return a chunk with the wanted events alone, which stands for the same offsets.

    Raises:
        LogDamaged: it does not hold events.
    """
    events = decode_events(chunk.data)
    kept = wanted.keep(events)
    if kept.num_rows == events.num_rows:
        return chunk
    data = bytes(kept.serialize())
    header = frame_header(
        data, shard=chunk.shard, epoch=chunk.epoch, first=chunk.first, count=chunk.count, timestamp=chunk.timestamp
    )
    return dataclasses.replace(chunk, frame=header + data)
