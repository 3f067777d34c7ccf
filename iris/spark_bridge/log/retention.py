"""Retention: which events may be removed, by age and by size, but never what a protected group has still to read."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.log.index import SegmentRecord


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
