"""Queues of a bridge's member: opens each when it is asked for, and answers for it.

An unused queue closes when another one needs its place; its state is on the disk, and the next request opens it again.
A queue from which no worker has ever got a job has no record in the log, and closes after a minute.

A queue is kept under the group ``queue/NAME``.  So it has an owner as groups of readers have, the bridge's status
reports its lag, and retention that spares what is unread spares its jobs.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol, final

import trio

from iris.kernel.config import MIB
from iris.kernel.errors import NotAllowed
from iris.kernel.names import account_of
from iris.patterns.bridge_protocol import (
    PeekJobs,
    PurgeQueue,
    QueueAsk,
    QueueStatus,
    ShownJob,
    ShowQueue,
    TakeAnswer,
    TakeJobs,
)
from iris.patterns.messages import Sender
from iris.patterns.pubsub.queues import DEAD_SUFFIX
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.errors import QuotaExceeded
from iris.spark_bridge.protocol import Permit
from iris.spark_bridge.queues.machine import QueuedJob, QueueWorker
from iris.spark_bridge.queues.queue import LogMember, OpenQueue
from iris.spark_bridge.queues.rows import JobRow

MOST_QUEUES: Final = 256
"""Most queues that one member has open at a time, for all clusters."""

MOST_OF_CLUSTER: Final = 64
"""Most queues that one member has open at a time for one cluster."""

BYTES_OF_CLUSTER: Final = 256 * MIB
"""Memory for the jobs of one cluster, in bytes: its queues share it."""

_LEAVING: Final = 1.0
"""Seconds that a queue too many waits for another one, whose worker has just left or whose outcomes are written."""

_FORGOTTEN: Final = 60.0
"""Seconds, up to twice as many, after which an unused queue without a record in the log closes."""


class PublishRights(Protocol):
    """Port of queues to the rights of workers: ``Permissions`` of ``iris.spark_bridge.server``."""

    def may_publish(self, sender: Sender, topic: str, /) -> bool:
        """Return whether a node may publish on a topic now.  It does not block."""
        ...


@final
class _DeadLetters:
    """See ``DeadLetters``: the bridge writes them with its own rights, and so only where the worker may publish."""

    def __init__(self, rights: PublishRights, sender: Sender, asked: TakeJobs) -> None:
        self._rights = rights
        self._sender = sender
        self._asked = asked.dead
        self.own: Final = asked.name + DEAD_SUFFIX
        """Topic that every worker of the queue may have."""

    def topic(self) -> str:
        """See ``DeadLetters``."""
        allowed = self._asked == self.own or self._rights.may_publish(self._sender, self._asked)
        return self._asked if allowed else self.own


@final
class Queues:
    """The queues of one member.

    Args:
        member: member that has the log.
        nursery: nursery in which the queues run.
        rights: rights of the workers.
    """

    def __init__(self, member: LogMember, nursery: trio.Nursery, rights: PublishRights) -> None:
        self._member = member
        self._nursery = nursery
        self._rights = rights
        self._open: dict[str, OpenQueue] = {}
        self._opening = trio.Lock()
        self._rested = trio.lowlevel.ParkingLot()
        """Here wait those whose queue is one too many; see ``rest``."""

    def __repr__(self) -> str:
        return f"<Queues {sorted(self._open)}>"

    def report(self) -> Sequence[QueueStatus]:
        """Return what goes on in each queue that is open, by name."""
        return [queue.status() for _, queue in sorted(self._open.items())]

    def close(self) -> None:
        """Say goodbye to the workers."""
        for queue in self._open.values():
            queue.close()

    @asynccontextmanager
    async def _using(self, sender: Sender, asked: QueueAsk[object]) -> AsyncIterator[OpenQueue]:
        """Have a queue open for a block.

        Raises:
            QuotaExceeded: it would be one too many, and all others are in use.
        """
        queue = await self._opened(asked, account_of(sender.cluster))
        try:
            yield queue
        finally:
            queue.users -= 1
            queue.used = trio.current_time()
            self.rest()

    async def _opened(self, asked: QueueAsk[object], cluster: str) -> OpenQueue:
        """Return a queue with one more user; see ``_using``."""
        name = asked.name
        end = trio.current_time() + _LEAVING
        while True:
            async with self._opening:
                queue = self._open.pop(name, None)
                if queue is None and await self._make_room(name, cluster, is_last=trio.current_time() >= end):
                    queue = OpenQueue(name, asked.group, self._member, cluster=cluster, siblings=self)
                    await self._nursery.start(queue.run)
                    self._nursery.start_soon(self._retire, queue)
                if queue is not None:
                    self._open[name] = queue  # behind those that were used before
                    queue.users += 1
                    return queue
            with trio.move_on_at(end):
                await self._rested.park()

    def _of_cluster(self, cluster: str) -> list[OpenQueue]:
        return [queue for queue in self._open.values() if queue.cluster == cluster]

    def share_of(self, cluster: str) -> int:
        """See ``Siblings``."""
        return BYTES_OF_CLUSTER // max(1, len(self._of_cluster(cluster)))

    def rest(self) -> None:
        """See ``Siblings``."""
        self._rested.unpark_all()

    async def _make_room(self, name: str, cluster: str, *, is_last: bool) -> bool:
        """Make room for one more queue of a cluster, by closing the least recently used one; return whether that is so.

        Raises:
            QuotaExceeded: all are in use, and this is the last attempt.
        """
        for found, most, whose in (
            (self._of_cluster(cluster), MOST_OF_CLUSTER, f"cluster {cluster!r}"),
            ([*self._open.values()], MOST_QUEUES, "all clusters together"),
        ):
            if len(found) >= most:
                idle = next((queue for queue in found if queue.is_idle()), None)
                if idle is None and not is_last:
                    return False
                if idle is None:
                    raise QuotaExceeded(
                        f"queue {name!r} would be one too many: a member of a bridge works on {most} for {whose} at a "
                        "time, and all of them have workers"
                    )
                await self._close(idle)
        return True

    async def _close(self, queue: OpenQueue) -> None:
        del self._open[queue.name]
        await queue.end()

    async def _retire(self, queue: OpenQueue) -> None:
        """Close a queue without a record in the log when it was not used for a while."""
        while self._open.get(queue.name) is queue and not queue.is_kept:
            await trio.sleep(_FORGOTTEN)
            async with self._opening:
                over = trio.current_time() >= queue.used + _FORGOTTEN
                if over and self._open.get(queue.name) is queue and queue.is_idle() and not queue.is_kept:
                    await self._close(queue)

    async def serve(self, tunnel: Tunnel, asked: TakeJobs, permit: Permit) -> None:
        """Serve a worker.

        Args:
            tunnel: tunnel to the worker.
            asked: first message of the worker.
            permit: its right to have the queue's jobs.
        """
        sender = tunnel.sender
        letters = _DeadLetters(self._rights, sender, asked)
        if letters.topic() != asked.dead:
            raise NotAllowed(
                f"nodes of cluster {sender.cluster!r} may not publish on {asked.dead!r}, and so have no dead letters "
                f"put there: use {letters.own!r}"
            )
        async with self._using(sender, asked) as queue:
            logs = {state.number: state.id for state in self._member.states.values()}
            held = asked.held
            if asked.shards is not None:  # the places of another log mean other jobs
                held = tuple(place for place in held if logs.get(place.shard, "") in asked.shards)
            await tunnel._send_message(TakeAnswer(now=trio.current_time(), shards=tuple(logs.values())))
            await queue.serve(QueueWorker(asked, letters), tunnel, held, permit)

    async def status(self, sender: Sender, asked: ShowQueue) -> QueueStatus:
        """Answer what goes on in a queue."""
        async with self._using(sender, asked) as queue:
            await queue.looked.wait()
            return queue.status()

    async def peek(self, sender: Sender, asked: PeekJobs) -> list[ShownJob]:
        """Answer with the jobs of a queue that come first in the log."""
        async with self._using(sender, asked) as queue:
            await queue.looked.wait()
            now = trio.current_time()
            return await queue.peek(asked.most, partial(_shown, now=now))

    async def purge(self, sender: Sender, asked: PurgeQueue) -> int:
        """Forget the jobs of a queue."""
        async with self._using(sender, asked) as queue:
            return await queue.purge()


def _shown(job: QueuedJob, row: JobRow, *, now: float) -> ShownJob:
    return ShownJob(
        shard=job.place.shard,
        offset=job.place.offset,
        state=job.state.value,
        attempts=job.attempts,
        error=job.error,
        due_in=max(0.0, job.due - now),
        expires_in=None if math.isinf(job.expires) else job.expires - now,
        key=row.key,
        headers=row.headers,
        sender=row.sender,
        timestamp=row.timestamp,
        encoding=row.encoding,
        value=row.value[:4096],
        size=len(row.value),
    )
