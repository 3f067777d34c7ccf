"""Group commit: how long arriving events wait so that they share one synchronous write (sans-IO).

A group is committed when it is full, when nothing has arrived for ``quiet`` seconds, or when its first event has waited
``delay`` seconds, whichever is first.  So a lone publisher that waits for each confirmation is not delayed by the whole
``delay``, and a steady stream shares its synchronous writes.  An event is committed at once after a pause of ``delay``
seconds, and after a lone event while whose writing nothing came: it is probably alone as well, as those of a publisher
that waits for each confirmation.  If it is the first of many, those are collected while it is written.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Generic, TypeVar, final

from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError
from iris.kernel.numerals import shown

T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of a group, at which it is committed.

    Raises:
        ConfigError: a limit is negative or not a number, or a group could hold nothing.
    """

    delay: float = 0.02
    """Longest wait of an event, in seconds; part of the time of ``publish_confirmed``."""
    quiet: float = 0.002
    """Seconds without another event after which waiting is given up: a few round trips."""
    events: int = 16384
    """Events of a full group."""
    bytes: int = 8 * MIB
    """Size of a full group, in bytes: some milliseconds of a disk's time.  At most twice that is held in memory."""

    def __post_init__(self) -> None:
        for name in ("delay", "quiet"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"group commit: {name} is {shown(value)}: use seconds, 0 or more")
        for name in ("events", "bytes"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"group commit: {name} is {shown(value)}: use a whole number above 0")


@final
class GroupCommit(Generic[T]):
    """The open group: batches that arrived and wait to be committed together."""

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self.batches: list[T] = []
        """The batches of the open group.  Read only."""
        self._events = 0
        self._bytes = 0
        self._first = 0.0
        self._latest = math.inf
        self._at_once = False
        self._taken = 0
        """Events of the group that is being written."""
        self._was_alone = False

    @property
    def is_full(self) -> bool:
        """True if nothing more should be added."""
        return self._events >= self._limits.events or self._bytes >= self._limits.bytes

    @property
    def deadline(self) -> float:
        """Time to commit, in seconds; inf if nothing waits."""
        if not self.batches:
            return math.inf
        if self.is_full or self._at_once:
            return -math.inf
        return min(self._first + self._limits.delay, self._latest + self._limits.quiet)

    def add(self, batch: T, *, events: int, size: int, now: float) -> None:
        """Add a batch that arrived."""
        if not self.batches:
            self._first = now
            self._at_once = self._was_alone or now >= self._latest + self._limits.delay
            self._was_alone = False
        self._latest = now
        self.batches.append(batch)
        self._events += events
        self._bytes += size

    def pop(self) -> list[T]:
        """Return the batches of the group and begin a new one."""
        batches, self.batches = self.batches, []
        # ``_latest`` stays: it decides whether the next event comes after a pause.
        self._taken = self._events
        self._events = self._bytes = 0
        return batches

    def written(self) -> None:
        """Note that the group which was taken last is on the disk."""
        self._was_alone = self._taken == 1 and not self.batches
