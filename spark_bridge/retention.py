"""Which events may go: by age, by size, and never what a group has still to read, if that is wanted."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.index import SegmentRecord

_JUMP: Final = 60.0
_LONG: Final = 24 * 3600.0
_SETTLING: Final = 3600.0


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

    After a clock that was ahead was set right, events go on with the time that it had.  When they were written tells
    more then.  A segment that was itself written at such a time goes with the one behind it.
    """
    found: list[tuple[int, int, int, SegmentRecord]] = []
    age = sys.maxsize
    for segment in reversed(shard):
        age = min(age, segment.last_timestamp if segment.last_timestamp <= now else segment.written)
        found.append((age, number, segment.first, segment))
    return found


@final
class ClockCheck:
    """Tells whether the wall clock may be believed when it says that much time has passed.

    A clock that jumps ahead, because it was wrong before or is wrong now, makes everything old at once: all events
    would go, and with what is known of publishers their repeats would be new.  So after a jump nothing counts as old
    for an hour, in which the clock can be set right.

    Args:
        newest: seconds since 1970 of the newest event that there is; a bridge that starts a day after it looks again
            in an hour as well.
    """

    def __init__(self, newest: float | None) -> None:
        self._newest = newest
        self._offset: float | None = None
        self._trusted = -math.inf
        """What the offset was before it jumped ahead."""
        self._believed = -math.inf

    def is_believed(self, wall: float, monotonic: float) -> bool:
        """Take a look at the clock; ``monotonic`` is one that runs evenly."""
        offset = wall - monotonic
        before = self._offset
        self._offset = offset
        if before is None:
            if self._newest is not None and wall > self._newest + _LONG:
                self._believed = monotonic + _SETTLING
        elif offset > before + _JUMP:
            if monotonic >= self._believed:
                self._trusted = before
            self._believed = monotonic + _SETTLING
        elif offset < before - _JUMP and offset <= self._trusted + _JUMP:
            self._believed = -math.inf  # it was set back to where it was, or further: less is old than before
        return monotonic >= self._believed
