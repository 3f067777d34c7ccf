"""Work queue: the handle of one queue on a bridge's log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, final

import trio
from msgspec.structs import replace

from iris.kernel.errors import ConfigError, summary_of
from iris.kernel.tasks import checkpointed, open_background
from iris.patterns.bridge_protocol import (
    GROUP,
    MAX_ATTEMPTS,
    MAX_BACKOFF,
    MAX_LEASE,
    MAX_LIMIT,
    MIN_LEASE,
    TakeJobs,
)
from iris.patterns.pubsub.queues.bridge_members import BridgeMembers
from iris.patterns.pubsub.queues.job import is_failure
from iris.patterns.pubsub.queues.terms import (
    DEAD_SUFFIX,
    DELAY,
    MAX_DELAY,
    MAX_PRIORITY,
    PRIORITY,
    check_queue,
    check_seconds,
    check_whole,
    seconds_text,
)
from iris.patterns.pubsub.queues.worker import JobWorker
from iris.patterns.pubsub.subscribe import with_expiry

_GOODBYE: Final = 5.0
"""Seconds that leaving a queue waits for the bridge to confirm what was reported."""


@final
class WorkQueue:
    """A queue of jobs on a bridge's log.  Made by ``Bridge.queue``."""

    def __init__(self, members: BridgeMembers, nursery: trio.Nursery, terms: TakeJobs) -> None:
        self.name: Final = terms.name
        """Name of the queue, and topic of its jobs."""
        self._members = members
        self._nursery = nursery
        self._terms = terms
        self._workers: list[JobWorker] = []

    def __repr__(self) -> str:
        return f"<WorkQueue {self.name!r} of bridge {self._members.bridge!r}>"

    @checkpointed
    async def put(
        self,
        payload: Any,
        *,
        key: str | None = None,
        delay: float = 0.0,
        expires: float | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        timeout: float = 5.0,
    ) -> None:
        """Put a job into the queue; it is on the bridge's disk when this returns.

        The job is an event on the topic that has the queue's name, so subscribers of that topic get it as well.

        Args:
            payload: as for ``Node.request``.
            key: jobs of the same key are done one at a time, in the order in which they were put.
            delay: seconds for which it is not handed out; 10 years at most.
            expires: seconds after which it is not begun any more, and counted as expired; None: never.
            priority: -9 to 9; a higher one is handed out first, of the 16,384 jobs that come next.
            headers: as for ``Node.request``.
            timeout: seconds that all this may take.

        Raises:
            NotSent: no bridge stores the topic.
            RequestTimeout: the bridge has not confirmed; the job may be in the queue all the same.
            ConfigError: an argument is out of its range.
            NotAllowed, PayloadTooLarge, LocalProtocolError: as for ``Node.publish_confirmed``.

        Cancelled while it waits, the job may be in the queue.
        """
        own = dict(headers or {})
        if delay:
            own[DELAY] = seconds_text(check_seconds(delay, "delay", 0.0, MAX_DELAY))
        if expires is not None:
            own = with_expiry(own, expires)
        if priority:
            own[PRIORITY] = str(check_whole(priority, "priority", -MAX_PRIORITY, MAX_PRIORITY))
        await self._members.node.publish_confirmed(self.name, payload, key=key, timeout=timeout, headers=own or None)

    def receive(self, limit: int = 16) -> JobWorker:
        """Take jobs: ``async for job in queue.receive()``, and in it ``async with job``.

        Args:
            limit: jobs that are in hand at a time, 1 to 4,096: waiting here, begun, or not confirmed by the bridge.

        Raises:
            ConfigError: the limit is out of its range.

        See ``Job`` for what becomes of one.
        """
        worker = JobWorker(self._members, replace(self._terms, limit=check_whole(limit, "limit", 1, MAX_LIMIT)))
        self._workers.append(worker)
        self._nursery.start_soon(worker._run)
        return worker

    def _fail_begun(self, error: BaseException) -> None:
        """Count an attempt of each job that was begun and not reported, if the program is ended by an error."""
        if is_failure(error):
            for worker in self._workers:
                worker._fail_begun(summary_of(error))

    async def _finish(self) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(_GOODBYE):
            async with trio.open_nursery() as nursery:
                for worker in self._workers:
                    nursery.start_soon(worker._finish)
        for worker in self._workers:
            worker._close()


@asynccontextmanager
async def open_work_queue(
    name: str,
    members: BridgeMembers,
    *,
    lease: float,
    attempts: int,
    dead: str | None,
    backoff: float,
) -> AsyncIterator[WorkQueue]:
    """See ``Bridge.queue``."""
    for text, what in ((name, "name"), (f"{name}{DEAD_SUFFIX}" if dead is None else dead, "dead")):
        check_queue(text, what)
    dead = name + DEAD_SUFFIX if dead is None else dead
    if dead == name:
        raise ConfigError(f"dead is {dead!r}: use another topic than that of the queue")
    terms = TakeJobs(
        group=GROUP + name,
        limit=1,
        lease=check_seconds(lease, "lease", MIN_LEASE, MAX_LEASE),
        attempts=check_whole(attempts, "attempts", 1, MAX_ATTEMPTS),
        dead=dead,
        backoff=check_seconds(backoff, "backoff", 0.0, MAX_BACKOFF),
    )
    async with open_background() as nursery:
        queue = WorkQueue(members, nursery, terms)
        try:
            yield queue
        except BaseException as error:
            queue._fail_begun(error)
            raise
        finally:
            await queue._finish()
