"""Shrinking: from a schedule that makes a test fail to a short one with few faults that makes it fail alike.

First the time after the failure goes, and the faults in it; then parts of the rest, halves first and single faults at
last (delta debugging, Zeller and Hildebrandt, 2002); then what is left gets shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from iris.testing.faults import Fault, Schedule
from iris.testing.running import Run

_MARGIN: Final = 60.0
"""Seconds after the last fault that a shorter run keeps."""


def shrink(failed: Run, attempt: Callable[[Schedule, float], Run], runs: int) -> Run:
    """Return the shortest run found that fails as ``failed`` does.

    Args:
        failed: the first one.
        attempt: runs the test with a schedule, and gives up after so many virtual seconds.
        runs: how often it may be called.
    """
    best = failed
    tried: set[bytes] = set()
    for _ in range(runs):
        for candidate in _simpler(best):
            encoded = msgspec.json.encode(candidate)
            if encoded not in tried:
                break
        else:
            return best
        tried.add(encoded)
        extra = max(0.0, best.ended - best.schedule.seconds)
        run = attempt(candidate, max(candidate.seconds + extra, min(best.ended, candidate.seconds)) + _MARGIN)
        if run.error is not None and run.cause == failed.cause:
            best = run
    return best


def _simpler(run: Run) -> Iterator[Schedule]:
    """Yield schedules that have less in them, those with least first."""
    schedule, faults = run.schedule, run.schedule.faults
    if faults:
        yield _with(schedule, ())
    last = max((fault.end for fault in faults), default=0.0)
    for seconds in (last + 1.0, last + _MARGIN, min(run.ended, last + 10 * _MARGIN)):
        if seconds < schedule.seconds * 0.9:
            yield msgspec.structs.replace(schedule, seconds=round(seconds, 3))
    size = len(faults) // 2
    while size:
        for start in range(0, len(faults), size):
            yield _with(schedule, (*faults[:start], *faults[start + size :]))
        size //= 2
    for place, fault in enumerate(faults):
        if fault.lasting > 1.0:
            shorter = msgspec.structs.replace(fault, lasting=round(fault.lasting / 2, 3))
            yield _with(schedule, (*faults[:place], shorter, *faults[place + 1 :]))


def _with(schedule: Schedule, faults: tuple[Fault, ...]) -> Schedule:
    return msgspec.structs.replace(schedule, faults=faults)
