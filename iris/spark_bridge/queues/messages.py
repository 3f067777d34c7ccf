"""Messages of a queue to a worker: cut so that each has its size; see ``iris.patterns.bridge_protocol``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from iris.kernel.config import KIB
from iris.patterns.bridge_protocol import MAX_LIMIT, JobNews, Place, SentJob
from iris.spark_bridge.queues.machine import QueuedJob
from iris.spark_bridge.queues.rows import LARGE, JobRow, pieces_of

_MOST_BYTES: Final = 128 * KIB
"""Size of a message with jobs, in bytes."""


def encode_settled(settled: Sequence[Place], taken: Sequence[Place], late: Collection[Place]) -> Iterator[JobNews]:
    """Make the messages that name the jobs which a worker may forget; see ``JobNews`` for the other two."""
    for first in range(0, len(taken), MAX_LIMIT):
        some = tuple(taken[first : first + MAX_LIMIT])
        yield JobNews(settled=some, taken=some)
    answers = [*(Counter(settled) - Counter(taken)).elements()]
    for first in range(0, len(answers), MAX_LIMIT):
        some = tuple(answers[first : first + MAX_LIMIT])
        yield JobNews(settled=some, late=tuple(filter(late.__contains__, some)))


def encode_jobs(jobs: Sequence[tuple[QueuedJob, JobRow]]) -> Iterator[JobNews | bytes]:
    """Make the messages that bring jobs to a worker, and the pieces of large values behind them."""
    entries: list[SentJob] = []
    size = 0
    if suspects := [job.place for job, _ in jobs if job.suspect]:
        yield JobNews(suspect=tuple(suspects))
    for job, row in jobs:
        large = len(row.value) > LARGE
        entries.append(
            SentJob(
                *job.place,
                attempt=job.attempts + 1,
                expires=None if math.isinf(job.expires) else job.expires,
                key=row.key,
                headers=row.headers,
                sender=row.sender,
                encoding=row.encoding,
                timestamp=row.timestamp,
                value=len(row.value) if large else row.value,
            )
        )
        size += 0 if large else job.size
        if large or size > _MOST_BYTES:
            yield JobNews(jobs=tuple(entries))
            entries, size = [], 0
        if large:
            yield from pieces_of(row.value)
    if entries:
        yield JobNews(jobs=tuple(entries))
