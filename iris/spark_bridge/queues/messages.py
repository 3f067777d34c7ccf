"""Messages between a queue and a worker, through the worker's tunnel.

The worker begins with {group: "queue/NAME", limit, lease, attempts, dead, backoff, held: places, shards: ids}, those of
the shards of what it holds.  The bridge answers {now: seconds of its clock, shards: ids}; that clock is monotonic, and
the ids are those of its shards now.  Places of a shard that has another id by then mean other jobs: none of these is
held or reported.  Then both send what there is to say, without the fields that are empty:

========= ==========================================================================================
worker    content
========= ==========================================================================================
begun     places of jobs on which it works from now on
done      places
failed    lists of shard, offset, attempt, error, permanent
released  places of jobs that it returns
expired   places of jobs that had expired before they were begun
extended  places of jobs whose lease begins anew
========= ==========================================================================================

========= ==========================================================================================
bridge    content
========= ==========================================================================================
settled   places of jobs that the worker need not remember any more
taken     those of ``settled``, in a message of its own: these are not the worker's any more, as their leases have
          ended or another worker has reported them as done.  It answers no report: that answer comes as well
late      of ``settled``, those that the worker has reported as done in vain: another worker has begun or done them, or
          their outcome was there before
suspect   places of jobs that come next, of which each is begun only when that is confirmed
confirmed places of suspects that are known to be begun
jobs      lists of shard, offset, attempt, expires (seconds of the bridge's clock, or None), key, headers,
          sender, encoding, timestamp (microseconds since 1970), value
========= ==========================================================================================

A worker that waits for jobs, and has not begun others in time before, says so by a report without any field.

Places are numbers in turns: shard, offset, shard, offset.  A report names 8,192 of them at most, and so does ``held``.
A value of more than 64 KiB is a number, its size, in place of the bytes; these follow as messages of their own, before
any other.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast, final

from iris.kernel.config import KIB
from iris.kernel.errors import RemoteError
from iris.patterns.pubsub.queues import MAX_LIMIT
from iris.spark_bridge.queues.machine import Place, QueuedJob
from iris.spark_bridge.queues.rows import JobRow

_MOST_BYTES: Final = 128 * KIB
"""Size of a message with jobs, in bytes."""

MOST_ERROR: Final = 1024
"""Characters of the error that a job has failed with; the rest is cut off."""

MOST_REPORTED: Final = 2 * MAX_LIMIT
"""Jobs that one report names: the beginning and the end of all that a worker may have in hand."""

JobFailure = tuple[Place, int, str, bool]
"""Place, attempt, error, and whether trying again is of no use."""

_LARGE: Final = 64 * KIB
_PIECE: Final = 256 * KIB


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Report of a worker."""

    begun: Sequence[Place]
    done: Sequence[Place]
    failed: Sequence[JobFailure]
    released: Sequence[Place]
    expired: Sequence[Place]
    extended: Sequence[Place]


def read_report_untrusted(message: object) -> JobReport:
    """Read a worker's message.

    Raises:
        RemoteError: it is something else.
    """
    if not isinstance(message, dict):
        raise _not_understood()
    fields = cast("dict[str, object]", message)
    lists = {name: cast("list[object]", value) for name, value in fields.items() if isinstance(value, list)}
    entries = sum(len(value) if name == "failed" else len(value) // 2 for name, value in lists.items())
    if entries > MOST_REPORTED:
        raise RemoteError("bad_request", f"a worker's report names {entries} jobs: use {MOST_REPORTED} at most")
    return JobReport(
        begun=read_places_untrusted(fields.get("begun")),
        done=read_places_untrusted(fields.get("done")),
        failed=_failures(fields.get("failed")),
        released=read_places_untrusted(fields.get("released")),
        expired=read_places_untrusted(fields.get("expired")),
        extended=read_places_untrusted(fields.get("extended")),
    )


def read_places_untrusted(value: object) -> list[Place]:
    """Read places.

    Raises:
        RemoteError: they are something else, or more than ``MOST_REPORTED``.
    """
    if value is None:
        return []
    if not isinstance(value, list) or len(cast("list[object]", value)) % 2:
        raise _not_understood()
    numbers = cast("list[object]", value)
    if len(numbers) > 2 * MOST_REPORTED:
        raise RemoteError("bad_request", f"{len(numbers) // 2} jobs are named: use {MOST_REPORTED} at most")
    if not all(_is_number(number) for number in numbers):
        raise _not_understood()
    whole = cast("list[int]", numbers)
    return list(map(Place, whole[::2], whole[1::2]))


def _failures(value: object) -> list[JobFailure]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _not_understood()
    found: list[JobFailure] = []
    for entry in cast("list[object]", value):
        match entry:
            case [int(shard), int(offset), int(attempt), str(error), bool(permanent)] if min(shard, offset) >= 0:
                found.append((Place(shard, offset), attempt, error[:MOST_ERROR], permanent))
            case _:
                raise _not_understood()
    return found


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _not_understood() -> RemoteError:
    return RemoteError("bad_request", "a worker's report is not understood: see iris.spark_bridge.queues.messages")


def encode_places(name: str, places: Sequence[Place]) -> Mapping[str, list[int]]:
    """Make a message of places; see above for its names."""
    return {name: [number for place in places for number in place]}


def encode_settled(
    settled: Sequence[Place], taken: Sequence[Place], late: Collection[Place]
) -> Iterator[Mapping[str, list[int]]]:
    """Make the messages that name the jobs which a worker may forget; see above for the other two."""
    for first in range(0, len(taken), MAX_LIMIT):
        some = taken[first : first + MAX_LIMIT]
        yield {**encode_places("settled", some), **encode_places("taken", some)}
    answers = [*(Counter(settled) - Counter(taken)).elements()]
    for first in range(0, len(answers), MAX_LIMIT):
        some = answers[first : first + MAX_LIMIT]
        came_late = [place for place in some if place in late]
        yield {**encode_places("settled", some), **(encode_places("late", came_late) if came_late else {})}


def encode_jobs(jobs: Sequence[tuple[QueuedJob, JobRow]]) -> Iterator[object]:
    """Make the messages that bring jobs to a worker."""
    entries: list[list[Any]] = []
    size = 0
    if suspects := [job.place for job, _ in jobs if job.suspect]:
        yield encode_places("suspect", suspects)
    for job, row in jobs:
        large = len(row.value) > _LARGE
        entries.append(
            [
                *job.place,
                job.attempts + 1,
                None if math.isinf(job.expires) else job.expires,
                row.key,
                row.headers,
                row.sender,
                row.encoding,
                row.timestamp,
                len(row.value) if large else row.value,
            ]
        )
        size += 0 if large else row.size
        if large or size > _MOST_BYTES:
            yield {"jobs": entries}
            entries, size = [], 0
        if large:
            for at in range(0, len(row.value), _PIECE):
                yield row.value[at : at + _PIECE]
    if entries:
        yield {"jobs": entries}
