"""Work queues, as plain calls."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, final

from iris.node.shown import Shown
from iris.patterns.queues import Job as TrioJob
from iris.patterns.queues import JobWorker as TrioJobWorker
from iris.patterns.queues import WorkQueue as TrioWorkQueue
from iris.sync.crossing import Handle, Source, awaited, direct


@final
class Job(Handle[TrioJob]):
    """See ``iris.Job``: a job that this worker has begun."""

    __slots__ = ()

    queue = Shown[str]()
    payload = Shown[Any]()
    key = Shown[str | None]()
    headers = Shown[Mapping[str, str]]()
    sender = Shown[str]()
    attempt = Shown[int]()
    timestamp = Shown[float]()
    is_lost = Shown[bool]()
    commit = awaited(TrioJob.commit)
    fail = direct(TrioJob.fail)
    release = direct(TrioJob.release)
    extend = direct(TrioJob.extend)
    _leave = direct(TrioJob._leave)

    def __enter__(self) -> Self:
        """Return the job."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Report what has become of the job; keep an ``Exception``."""
        return self._leave(error)


@final
class JobWorker(Source[TrioJobWorker, Job]):
    """See ``iris.JobWorker``: the jobs that this worker gets."""

    __slots__ = ()

    in_hand = Shown[int]()

    async def _fetch(self) -> None:
        self._arrived.append(Job(await anext(self._inner), self._portal))


@final
class WorkQueue(Handle[TrioWorkQueue]):
    """See ``iris.WorkQueue``: a queue of jobs on a bridge's log."""

    __slots__ = ()

    name = Shown[str]()
    put = awaited(TrioWorkQueue.put)
    _take = direct(TrioWorkQueue.take)

    def take(self, limit: int = 16) -> JobWorker:
        """See ``iris.WorkQueue.take``."""
        return JobWorker(self._take(limit), self._portal)
