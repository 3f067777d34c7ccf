"""Worker: receives the jobs of one queue from each member of a bridge.

A job is in hand from its arrival until its outcome is on the bridge's disk; ``limit`` bounds that, and so what is done
twice when worker and bridge die.  When the bridge is away, jobs that are begun go on, and what was not confirmed is
reported again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, final

import trio

from iris.kernel.errors import IrisError, NoSuchCluster
from iris.patterns.pubsub.queues.bridge_members import TRANSIENT, BridgeMembers, first_error, is_final
from iris.patterns.pubsub.queues.job import Job
from iris.patterns.pubsub.queues.member_link import MemberLink

_log: Final = logging.getLogger("iris")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_LOOK: Final = 10.0
"""Seconds between two looks for further members of the bridge."""


@final
class _ArrivedJobs:
    """Jobs of all members that no task has received; see ``JobReceiver``.

    Args:
        limit: jobs that may be in hand.
        links: links to the members, among which the limit is divided.
    """

    def __init__(self, terms: Mapping[str, Any], limit: int, links: Mapping[str, MemberLink]) -> None:
        self.ready: Final[deque[Job]] = deque()
        self.news: Final = trio.lowlevel.ParkingLot()
        self._terms = dict(terms)
        self._limit = limit
        self._links = links

    def terms(self) -> dict[str, Any]:
        return {**self._terms, "limit": max(1, self._limit // max(1, len(self._links)))}

    def arrived(self, jobs: Sequence[Job]) -> None:
        self.ready.extend(jobs)
        self.news.unpark(count=max(1, len(jobs)))


@final
class JobWorker:
    """An iterator over the jobs that this worker gets.  Made by ``WorkQueue.receive``.

    Iterating begins a job; several tasks may iterate.  It ends when the queue's block does.  Cancelling loses no job.

    Raises:
        NotAllowed: this node may not take from the queue.
        RemoteError, ConfigError: the bridge cannot serve the queue, and why.
    """

    def __init__(self, queue: str, members: BridgeMembers, terms: Mapping[str, Any], limit: int) -> None:
        self._queue = queue
        self._members = members
        self._links: dict[str, MemberLink] = {}
        self._jobs = _ArrivedJobs(terms, limit, self._links)
        self._is_closing = False
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<JobWorker of {self._queue!r}, {self.in_hand} jobs in hand>"

    @property
    def in_hand(self) -> int:
        """Jobs that came and whose outcome is not on the bridge's disk."""
        return sum(len(link.hand) for link in self._links.values())

    def __aiter__(self) -> JobWorker:
        return self

    async def __anext__(self) -> Job:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_closing:
                raise StopAsyncIteration
            while self._jobs.ready:
                job = self._jobs.ready.popleft()
                if await cast("MemberLink", job._reporting).begin(job):
                    return job
            for link in self._links.values():
                link.ask()
            await self._jobs.news.park()

    # -- the tasks of the queue's block ---------------------------------------------------------------------

    async def _run(self) -> None:
        """Receive jobs from every member, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                pause = _FIRST_PAUSE
                failed: type[Exception] | None = None
                while True:
                    try:
                        for address in await self._members.addresses():
                            if address not in self._links:
                                link = MemberLink(self._queue, address, self._jobs)
                                self._links[address] = link
                                nursery.start_soon(self._keep, link)
                        for link in self._links.values():
                            link.give_up(self._heir)
                        pause, failed = _LOOK, None
                    except TRANSIENT as error:
                        if is_final(error):
                            raise
                        failed = self._warn(self._members.bridge, error, failed)
                        pause = _LONGEST_PAUSE if self._links else min(_LONGEST_PAUSE, pause * 2)
                    await trio.sleep(pause)
        except* (IrisError, trio.ClosedResourceError) as group:
            self._fail(group)

    async def _keep(self, link: MemberLink) -> None:
        """Serve one member, and again when it comes back."""
        pause = _FIRST_PAUSE
        failed: type[Exception] | None = None

        def connected() -> None:
            nonlocal pause, failed
            pause, failed = _FIRST_PAUSE, None

        while not link.is_leaving:
            try:
                async with self._members.open_tunnel(link.address, "take") as tunnel:
                    await link.run(tunnel, connected)
            except* TRANSIENT as group:
                error = first_error(group)
                if is_final(error):
                    raise error from None
                failed = self._warn(link.address, error, failed)
            await trio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _heir(self, shard: int) -> MemberLink | None:
        """Return the link to the member at which a shard is now."""
        return self._links.get(self._members.owners.get(shard, ""))

    def _warn(self, address: str, error: Exception, before: type[Exception] | None) -> type[Exception]:
        """Log once that a member cannot be reached, and why."""
        if type(error) is not before:
            reason = f"is 'iris bridge --name {address}' running?" if isinstance(error, NoSuchCluster) else str(error)
            _log.warning(
                "queue %s waits for %s: %s", self._queue, address, reason,
                extra={"queue": self._queue, "cluster": address, "reason": str(error)},
            )  # fmt: skip
        return type(error)

    def _fail(self, group: BaseExceptionGroup[Exception]) -> None:
        self._failure = first_error(group)
        self._jobs.news.unpark_all()
        for link in self._links.values():
            link.end(self._failure)

    def _fail_begun(self, error: str) -> None:
        for link in self._links.values():
            for job in tuple(link.hand.values()):
                if job._has_begun and job._outcome is None:
                    job.fail(error)

    async def _finish(self) -> None:
        """Begin no more jobs, and wait until every outcome is on the disk."""
        self._is_closing = True
        self._jobs.news.unpark_all()
        async with trio.open_nursery() as nursery:
            for link in self._links.values():
                nursery.start_soon(link.leave)

    def _close(self) -> None:
        """Stop waiting: the queue was left."""
        self._is_closing = True
        self._jobs.news.unpark_all()
        closed = trio.ClosedResourceError(f"the queue {self._queue!r} was left before its bridge had confirmed")
        for link in self._links.values():
            link.end(closed)
