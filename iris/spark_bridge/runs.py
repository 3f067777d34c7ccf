"""Runs: record batches of events as they arrive at a bridge, of one publisher, topic, key and headers.

A run is the unit of work here.  A publisher of many events has hundreds in one run, and work that is done once for a
run is not done for each event.  ``iris.patterns.pubsub.subscribe.EventRun`` implements ``PublisherRun``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, final

from iris.kernel.wire import Payload, payload_size
from iris.patterns.pubsub.interest import Milestones

EVENT_OVERHEAD: Final = 96
"""Bytes that an event takes in the columns besides payload, topic and headers."""


class Origin(Protocol):
    """Who published events; ``iris.Sender`` is one."""

    @property
    def cluster(self) -> str: ...


class PublisherRun(Protocol):
    """A run: consecutive events of one publisher."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def sender(self) -> Origin: ...
    @property
    def publisher(self) -> str: ...
    @property
    def first(self) -> int: ...  # number of the first event on its topic; 0: not numbered
    @property
    def owed(self) -> int: ...  # see ``EventRun``
    @property
    def milestones(self) -> Milestones: ...
    @property
    def confirm(self) -> int: ...  # number of the first event among those to be confirmed; 0: it is not
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def payloads(self) -> Sequence[Any]: ...
    @property
    def size(self) -> int: ...  # bytes of the payloads


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some events of a run."""

    topic: str
    key: str | None
    sender: Origin
    publisher: str
    confirm: int
    headers: Mapping[str, str]
    payloads: Sequence[Payload]
    size: int
    first: int = 0
    owed: int = 0
    milestones: Milestones = ()


def cut_run(run: PublisherRun, begin: int, end: int) -> PublisherRun:
    """Return the events ``begin`` up to but not including ``end`` of a run."""
    if begin == 0 and end == len(run.payloads):
        return run
    payloads = run.payloads[begin:end]
    return Part(
        topic=run.topic,
        key=run.key,
        sender=run.sender,
        publisher=run.publisher,
        confirm=run.confirm and run.confirm + begin,
        headers=run.headers,
        payloads=payloads,
        size=sum(map(_size, payloads)),
        first=run.first and run.first + begin,
        owed=run.owed,
        milestones=run.milestones,
    )


def stored_size(run: PublisherRun) -> int:
    """Return the bytes of a run's payloads, headers and keys as they are stored: each event has its own there."""
    if not run.headers and run.key is None:
        return run.size
    return run.size + (len(run.payloads) - 1) * _labels(run)


def _labels(run: PublisherRun) -> int:
    """Return what the headers and the key of each event of a run take in the columns."""
    return len(run.key or "") + sum(len(name) + len(text) + 16 for name, text in run.headers.items())


def count_events(runs: Iterable[PublisherRun]) -> int:
    """Return how many events runs have together."""
    return sum(len(run.payloads) for run in runs)


def cut_runs(runs: Sequence[PublisherRun], *, max_events: int, max_bytes: int) -> Iterator[list[PublisherRun]]:
    """Cut runs into parts of at most so many events and bytes; a larger event is a part of its own."""
    part: list[PublisherRun] = []
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
