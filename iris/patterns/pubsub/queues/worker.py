"""Worker: receives the jobs of one queue from each member of a bridge.

A job is in hand from its arrival until its outcome is on the bridge's disk; ``limit`` bounds that, and so what is done
twice when worker and bridge die.  When the bridge is away, jobs that are begun go on, and what was not confirmed is
reported again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import final

import trio
from msgspec.structs import replace

from iris.kernel.tasks import checkpointed
from iris.patterns.bridge_protocol import TakeJobs
from iris.patterns.pubsub.queues.bridge_members import BridgeMembers
from iris.patterns.pubsub.queues.job import Job
from iris.patterns.pubsub.queues.member_link import MemberLink
from iris.patterns.pubsub.queues.member_stream import MemberStreams


@final
class _ReadyJobs:
    """Jobs that have come and are not begun; see ``JobReceiver``."""

    def __init__(self, terms: TakeJobs, streams: Collection[MemberLink]) -> None:
        self._terms = terms
        self._streams = streams
        self.ready: deque[Job] = deque()
        self.waiting = trio.lowlevel.ParkingLot()
        """Tasks that wait for jobs."""

    def terms(self) -> TakeJobs:
        """See ``JobReceiver``."""
        return replace(self._terms, limit=max(1, self._terms.limit // max(1, len(self._streams))))

    def arrived(self, jobs: Sequence[Job]) -> None:
        """See ``JobReceiver``."""
        self.ready.extend(jobs)
        self.waiting.unpark(count=max(1, len(jobs)))


@final
class JobWorker(MemberStreams[MemberLink]):
    """An iterator over the jobs that this worker gets.  Made by ``WorkQueue.receive``.

    Iterating begins a job; several tasks may iterate.  It ends when the queue's block does.  Cancelling loses no job.

    Raises:
        NotAllowed: this node may not take from the queue.
        RemoteError, ConfigError: the bridge cannot serve the queue, and why.
    """

    def __init__(self, members: BridgeMembers, terms: TakeJobs) -> None:
        super().__init__(members, TakeJobs.operation, f"queue {terms.name}", {"queue": terms.name})
        self._queue = terms.name
        self._jobs = _ReadyJobs(terms, self._streams.values())
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<JobWorker of {self._queue!r}, {self.in_hand} jobs in hand>"

    @property
    def in_hand(self) -> int:
        """Jobs that came and whose outcome is not on the bridge's disk."""
        return sum(len(link.hand) for link in self._streams.values())

    def __aiter__(self) -> JobWorker:
        return self

    @checkpointed
    async def __anext__(self) -> Job:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_closing:
                raise StopAsyncIteration
            while self._jobs.ready:
                job = self._jobs.ready.popleft()
                if await job._reporting.begin(job):
                    return job
            for link in self._streams.values():
                link.ask()
            await self._jobs.waiting.park()

    # -- the tasks of the queue's block ---------------------------------------------------------------------

    def _open_stream(self, address: str) -> MemberLink:
        return MemberLink(self._queue, address, self._jobs)

    def _wake(self) -> None:
        self._jobs.waiting.unpark_all()

    def _fail_begun(self, error: str) -> None:
        for link in self._streams.values():
            for job in tuple(link.hand.values()):
                if job._has_begun and job._outcome is None:
                    job.fail(error)

    async def _finish(self) -> None:
        """Begin no more jobs, and wait until every outcome is on the disk."""
        self._is_closing = True
        self._wake()
        async with trio.open_nursery() as nursery:
            for link in self._streams.values():
                nursery.start_soon(link.leave)

    def _close(self) -> None:
        """Stop waiting: the queue was left."""
        self._is_closing = True
        self._wake()
        closed = trio.ClosedResourceError(f"the queue {self._queue!r} was left before its bridge had confirmed")
        for link in self._streams.values():
            link.end(closed)
