"""Damage: events of a log whose bytes are not those that were written, as far as a read has found them (sans-IO).

Unlike a gap, damage belongs to a disk and not to the log: a copy of the log may have the events.  So it is not written
into the log; a member that is started again knows of the damage that it finds at its start, and of other damage when
it is read.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator
from typing import Final, final

_MOST: Final = 10_000
"""Stretches of a shard that are remembered; those that follow each other are one."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A stretch of damaged events: from ``offset`` up to but not including ``end``."""

    shard: int
    offset: int
    end: int
    reason: str

    def describe(self, shard: str) -> str:
        """Return a sentence about it; ``shard`` is how the shard is called."""
        which = f"event {self.offset}" if self.end == self.offset + 1 else f"events {self.offset} to {self.end - 1}"
        return f"{which} of shard {shard} cannot be read: {self.reason}"


@final
class DamageBook:
    """All damage of a log that is known."""

    def __init__(self) -> None:
        self._found: dict[int, list[Damage]] = {}

    def __iter__(self) -> Iterator[Damage]:
        for number in sorted(self._found):
            yield from self._found[number]

    @property
    def events(self) -> int:
        """Number of damaged events."""
        return sum(damage.end - damage.offset for damage in self)

    def note(self, damage: Damage) -> bool:
        """Add a stretch; return True if part of it was not known."""
        known = self._found.setdefault(damage.shard, [])
        first = bisect.bisect_left(known, damage.offset, key=lambda one: one.end)
        last = bisect.bisect_right(known, damage.end, key=lambda one: one.offset)
        met = known[first:last]
        if any(one.offset <= damage.offset and damage.end <= one.end for one in met):
            return False
        if not met and len(known) >= _MOST:
            return True
        together = dataclasses.replace(
            met[0] if met and met[0].offset <= damage.offset else damage,
            offset=min(one.offset for one in (damage, *met)),
            end=max(one.end for one in (damage, *met)),
        )
        known[first:last] = [together]
        return True

    def trim(self, shard: int, before: int) -> None:
        """Forget what was below an offset: it is gone."""
        self._found[shard] = [
            dataclasses.replace(damage, offset=max(damage.offset, before))
            for damage in self._found.get(shard, ())
            if damage.end > before
        ]

    def last(self, shard: int) -> int:
        """Return the greatest offset of a shard that is damaged; -1 if none is."""
        known = self._found.get(shard)
        return known[-1].end - 1 if known else -1

    def between(self, shard: int, start: int, end: int) -> list[Damage]:
        """Return the damage from ``start`` up to but not including ``end``, cut to that."""
        return [
            dataclasses.replace(damage, offset=max(start, damage.offset), end=min(end, damage.end))
            for damage in self._found.get(shard, ())
            if damage.offset < end and damage.end > start
        ]
