"""Shrinking: from a schedule that makes a test fail to a short one with few faults that makes it fail alike.

First all faults go, then the time after the failure; then parts of what is left, halves first and single faults at last
(delta debugging, Zeller and Hildebrandt, 2002); then each fault that remains gets shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import msgspec

from iris.testing.faults import Fault, Schedule
from iris.testing.running import Run

_MARGIN: Final = 60.0
"""Seconds after the last fault that a shorter run keeps."""

_BRIEF: Final = 1.0
"""Seconds; a fault that lasts no longer than this stays as it is."""


def shrink(failed: Run, attempt: Callable[[Schedule, float], Run], runs: int) -> Run:
    """Return the shortest run found that fails as ``failed`` does.

    Args:
        failed: the first one.
        attempt: runs the test with a schedule, and gives up after so many virtual seconds.
        runs: limit on the calls of ``attempt``.
    """
    shrinking = _Shrinking(failed, attempt, runs)
    if shrinking.best.schedule.faults and not shrinking.try_with(()):
        shrinking.cut_time()
        shrinking.remove_faults()
    shrinking.cut_time()
    shrinking.shorten_faults()
    return shrinking.best


@final
class _Shrinking:
    """The shortest run so far, and the attempts at a shorter one; see ``shrink``."""

    def __init__(self, failed: Run, attempt: Callable[[Schedule, float], Run], runs: int) -> None:
        self.best = failed
        self._cause = failed.cause
        self._attempt = attempt
        self._left = runs

    def try_with(self, faults: tuple[Fault, ...], seconds: float | None = None) -> bool:
        """Run with other faults, or for another time; if it fails alike, that is the best now."""
        if not self._left:
            return False
        self._left -= 1
        best = self.best
        candidate = msgspec.structs.replace(
            best.schedule, faults=faults, seconds=best.schedule.seconds if seconds is None else seconds
        )
        extra = max(0.0, best.ended - best.schedule.seconds)
        run = self._attempt(candidate, max(candidate.seconds + extra, min(best.ended, candidate.seconds)) + _MARGIN)
        if run.error is None or run.cause != self._cause:
            return False
        self.best = run
        return True

    def cut_time(self) -> None:
        schedule = self.best.schedule
        last = max((fault.end for fault in schedule.faults), default=0.0)
        for seconds in (last + 1.0, last + _MARGIN, min(self.best.ended, last + 10 * _MARGIN)):
            if seconds < schedule.seconds * 0.9 and self.try_with(schedule.faults, round(seconds, 3)):
                return

    def remove_faults(self) -> None:
        size = len(self.best.schedule.faults) // 2
        while size:
            start, removed = 0, False
            while start < len(faults := self.best.schedule.faults):
                if self.try_with((*faults[:start], *faults[start + size :])):
                    removed = True
                else:
                    start += size
            if size > 1 or not removed:
                size //= 2

    def shorten_faults(self) -> None:
        for place in range(len(self.best.schedule.faults)):
            while place < len(faults := self.best.schedule.faults) and faults[place].lasting > _BRIEF:
                shorter = msgspec.structs.replace(faults[place], lasting=round(faults[place].lasting / 2, 3))
                if not self.try_with((*faults[:place], shorter, *faults[place + 1 :])):
                    break
