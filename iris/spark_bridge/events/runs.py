"""Runs: record batches of events as they arrive at a bridge, of one publisher, topic, key and headers.

A run is the unit of work here.  A publisher of many events has hundreds in one run, and work that is done once for a
run is not done for each event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from iris.kernel.wire import Payload, kinds, payload_size
from iris.patterns.pubsub.subscribe import EventRun

EVENT_OVERHEAD: Final = 96
"""Size of an event in the columns besides payload, topic and headers, in bytes."""


def cut_run(run: EventRun, begin: int, end: int) -> EventRun:
    """Return the events ``begin`` up to but not including ``end`` of a run."""
    if begin == 0 and end == len(run.payloads):
        return run
    payloads = tuple(run.payloads[begin:end])
    first, confirm = run.first and run.first + begin, run.confirm and run.confirm + begin
    events = kinds.Events(run.topic, first, confirm, None, None, run.key, payloads, run.milestones)
    part = EventRun(run.sender, events, run.headers, sum(map(_size, payloads)), plain=run.plain)
    part.owed = run.owed
    return part


def stored_size(run: EventRun) -> int:
    """Return the bytes of a run's payloads, headers and keys as they are stored: each event has its own there."""
    if not run.headers and run.key is None:
        return run.size
    return run.size + (len(run.payloads) - 1) * _labels(run)


def _labels(run: EventRun) -> int:
    """Return what the headers and the key of each event of a run take in the columns."""
    return len(run.key or "") + sum(len(name) + len(text) + 16 for name, text in run.headers.items())


def count_events(runs: Iterable[EventRun]) -> int:
    """Return how many events runs have together."""
    count = 0
    for run in runs:
        count += len(run.payloads)
    return count


def count_topics(runs: Iterable[EventRun]) -> dict[str, int]:
    """Return how many events runs have of each topic."""
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.topic] = counts.get(run.topic, 0) + len(run.payloads)
    return counts


def cut_runs(runs: Sequence[EventRun], *, max_events: int, max_bytes: int) -> Iterator[list[EventRun]]:
    """Cut runs into parts of at most so many events and bytes; a larger event is a part of its own."""
    part: list[EventRun] = []
    events = size = 0
    for run in runs:
        count = len(run.payloads)
        each = len(run.topic) + EVENT_OVERHEAD
        if run.headers or run.key:
            each += _labels(run)
        if events + count <= max_events and size + run.size + each * count <= max_bytes:
            part.append(run)
            events += count
            size += run.size + each * count
            continue
        begin = 0
        for at, payload in enumerate(run.payloads):
            more = _size(payload) + each
            if events and (events == max_events or size + more > max_bytes):
                if at > begin:
                    part.append(cut_run(run, begin, at))
                yield part
                part, events, size, begin = [], 0, 0, at
            events += 1
            size += more
        part.append(cut_run(run, begin, count))
    if part:
        yield part


def _size(payload: Payload) -> int:
    return len(payload) if type(payload) is bytes else payload_size(payload)
