"""A bridge as plain calls: its work queues, log, leases and sagas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, final

from iris.node.bridge import Bridge as TrioBridge
from iris.node.shown import Shown
from iris.patterns.pubsub.queues import Consumer as TrioConsumer
from iris.patterns.pubsub.queues import Job as TrioJob
from iris.patterns.pubsub.queues import JobWorker as TrioJobWorker
from iris.patterns.pubsub.queues import LogBatch as TrioBatch
from iris.patterns.pubsub.queues import LogEvent
from iris.patterns.pubsub.queues import WorkQueue as TrioWorkQueue
from iris.sync.crossing import Handle, Source, awaited, block, direct
from iris.sync.handles import Lease, Saga


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

    _has_left = False  # a bridge gives it to another one

    in_hand = Shown[int]()

    async def _fetch(self) -> None:
        self._arrived.append(Job(await anext(self._inner), self._portal))


@final
class WorkQueue(Handle[TrioWorkQueue]):
    """See ``iris.WorkQueue``: a queue of jobs on a bridge's log."""

    __slots__ = ()

    name = Shown[str]()
    put = awaited(TrioWorkQueue.put)
    _receive = direct(TrioWorkQueue.receive)

    def receive(self, limit: int = 16) -> JobWorker:
        """See ``iris.WorkQueue.receive``."""
        return JobWorker(self._receive(limit), self._portal)


@final
class LogBatch(Handle[TrioBatch]):
    """See ``iris.LogBatch``: consecutive events of one shard."""

    __slots__ = ()

    shard = Shown[str]()
    lag = Shown[int]()
    missed = Shown[int]()
    gaps = Shown[int]()
    expired = Shown[int]()
    commit = awaited(TrioBatch.commit)

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[LogEvent]:
        return iter(self._inner)

    def __enter__(self) -> Self:
        """Return the batch."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit the batch, unless there is an error."""
        if error is None:
            self.commit()


@final
class Consumer(Source[TrioConsumer, LogBatch]):
    """See ``iris.Consumer``: batches of a bridge's log."""

    __slots__ = ()

    _has_left = False  # a bridge gives it to another one

    group = Shown[str | None]()
    lag = Shown[int]()

    async def _fetch(self) -> None:
        self._arrived.append(LogBatch(await anext(self._inner), self._portal))


@final
class Bridge(Handle[TrioBridge]):
    """See ``iris.Bridge``: the work queues, log, leases and sagas of one bridge."""

    __slots__ = ()

    name = Shown[str]()
    queue = block(TrioBridge.queue, WorkQueue)
    consume = block(TrioBridge.consume, Consumer)
    drop_group = awaited(TrioBridge.drop_group)
    lease = block(TrioBridge.lease, Lease)
    saga = block(TrioBridge.saga, Saga)
