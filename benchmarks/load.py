"""Processor time: what each process of a trial used, and what other programs of the machine took meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

LIMIT: Final = 0.1
"""Share of all processors that others may take: beyond it they are measured rather than the systems."""

_STAT: Final = Path("/proc/stat")
_LISTED: Final = 8
"""Columns of ``/proc/stat`` that add up to all time; those behind them are parts of these."""


def processor_time(pid: int) -> float | None:
    """Return the seconds of processor time that all threads of a process have used. None where it cannot be read.

    Linux has a clock for each process, whose number is made of that of the process (``clock_getcpuclockid(3)``). It is
    exact to the microsecond, where ``/proc`` counts in hundredths of a second.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


@final
class Others:
    """What programs that are not measured take of the processors.

    Args:
        running: children of this process that are measured and have not ended: brokers.
    """

    def __init__(self, running: Sequence[int] = ()) -> None:
        self._running = running
        self._before = self._look()

    def share(self) -> float:
        """Return their share since the last call, of all processors: 0.5 is one of two. 0 where it cannot be read.

        No measured process but those that are ``running`` may be alive.  What the host of a virtual machine gave to
        another one is counted.
        """
        now = self._look()
        wall, busy, ours = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return max(0.0, busy - ours) / (wall * (os.cpu_count() or 1)) if wall else 0.0

    def _look(self) -> tuple[float, float, float]:
        """Return the seconds that have passed, that all processors were busy, and that were ours."""
        used = os.times()
        ours = sum(used[:4]) + sum(processor_time(pid) or 0.0 for pid in self._running)
        if not _STAT.exists():
            return time.perf_counter(), ours, ours
        columns = [int(count) for count in _STAT.read_text().split("\n", 1)[0].split()[1:][:_LISTED]]
        idle = columns[3] + columns[4]
        return time.perf_counter(), (sum(columns) - idle) / os.sysconf("SC_CLK_TCK"), ours


def others_now(seconds: float = 1.0) -> float:
    """Return the share that others take of the processors while this process waits."""
    others = Others()
    time.sleep(seconds)
    return others.share()
