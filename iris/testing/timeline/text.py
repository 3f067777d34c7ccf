"""Timeline: the last part of a run, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Final

from iris.testing.running import Run
from iris.testing.trace import TraceEntry

_LINES: Final = 60
_LEFT_OUT: Final = frozenset(("sent", "log", "upkeep"))


def timeline(run: Run) -> list[str]:
    """Return the faults of a run, and what happened last: time, host, and what, with repetitions counted."""
    folded = list(fold([entry for entry in run.trace.entries if entry.kind not in _LEFT_OUT]))
    early = [pair for pair in folded if pair[0].kind == "fault"]
    late = folded[-_LINES:]
    if late and len(folded) > _LINES:
        early = [pair for pair in early if pair[0].time < late[0][0].time]
        shown: list[tuple[TraceEntry, int] | None] = [*early[-10:], None, *late]
    else:
        shown = [*folded]
    width = max((len(entry.host) for entry, _ in folded), default=4)
    return [
        f"  {'time':>10}  {'host':<{width}}  what",
        *(_line(pair, width) if pair is not None else f"  {'...':>10}" for pair in shown),
    ]


def fold(entries: list[TraceEntry]) -> Iterator[tuple[TraceEntry, int]]:
    """Yield entries, those that repeat the one before once, with their number."""
    for _, group in groupby(entries, key=attrgetter("kind", "host", "text")):
        same = list(group)
        yield same[0], len(same)


def _line(pair: tuple[TraceEntry, int], width: int) -> str:
    entry, count = pair
    what = {
        "message": lambda: f"<- {entry.text}",
        "held": lambda: f"frame to {entry.text} is held back",
        "lost": lambda: f"frame to {entry.text} is lost",
        "fault": lambda: f"FAULT {entry.text}",
        "failure": lambda: f"FAILED {entry.text}",
    }.get(entry.kind, lambda: entry.text)()
    times = f"  (x{count})" if count > 1 else ""
    return f"  {entry.time:10.3f}  {entry.host:<{width}}  {what.splitlines()[0]}{times}"
