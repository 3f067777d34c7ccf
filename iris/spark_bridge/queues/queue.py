"""Open queue: the shell of one queue at one member of a bridge.

The log has the jobs and their outcomes, and ``QueueMachine`` the jobs that are open.  Four tasks work on it: one reads
the log ahead, one assigns jobs and ends leases, one writes outcomes, and one records the queue's progress at the bridge
now and then.  Each worker's tunnel has two more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeVar, final

import trio

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteError, TunnelBroken
from iris.kernel.tasks import Wakeup, open_background, run_in_thread
from iris.patterns.bridge_protocol import (
    MAX_ERROR,
    MAX_LIMIT,
    JobFailure,
    JobNews,
    JobReport,
    Place,
    QueueStatus,
    read_request,
)
from iris.patterns.pubsub.subscribe import EventRun
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.errors import DataLost, LogDamaged, StoreFull, TierUnreachable
from iris.spark_bridge.log import ShardState, Store, TopicFilter, Transaction
from iris.spark_bridge.protocol import Permit
from iris.spark_bridge.queues.dead_letters import dead_letter
from iris.spark_bridge.queues.machine import JobState, JobVerdict, QueuedJob, QueueMachine, QueueWorker
from iris.spark_bridge.queues.messages import encode_jobs, encode_settled
from iris.spark_bridge.queues.progress import ShardProgress
from iris.spark_bridge.queues.records import Crowded, QueueRecord, Retry, change_of, read_record, write_changes
from iris.spark_bridge.queues.rows import JobRow, rows_of

T = TypeVar("T")

_log: Final = logging.getLogger("iris")

MOST_WAITING: Final = 16_384
"""Jobs that a queue reads ahead, beside delayed ones: as many may wait behind one key or priority."""

MOST_BYTES: Final = 32 * MIB
"""Limit of the payloads, keys and headers of these jobs, in bytes."""

MOST_DELAYED: Final = 262_144
"""Most delayed jobs; at more the queue stops reading until one is due."""

_READ_BYTES: Final = 256 * KIB
_UNREPORTED: Final = 16 * MAX_LIMIT
"""Most settled places that wait to be sent to a worker; a worker that reads has no more waiting than in hand."""
_AT_ONCE: Final = 8 * MIB
"""Size of jobs that are read again at a time, in bytes, to be assigned or to become dead letters."""
_RETRY: Final = 0.5
"""Seconds between attempts to write to a full disk."""
_DAMAGED: Final = 30.0
"""Seconds between attempts to read what is damaged."""
_PROGRESS_INTERVAL: Final = 5.0
"""Seconds between two notes of a queue's progress, for retention and for operators."""
_REST: Final = 1.0
"""Seconds in which workers of a bridge that was restarted report their jobs in hand."""


class LogMember(Protocol):
    """Port of queues and consumers to the bridge's member: ``BridgeMember`` of ``iris.spark_bridge.server``."""

    @property
    def store(self) -> Store:
        """Log of the member."""
        ...

    @property
    def states(self) -> Mapping[str, ShardState]:
        """Shards of the member, by id."""
        ...

    def now(self) -> int:
        """Return microseconds since 1970."""
        ...

    def date(self) -> int:
        """Return the date for what is written now, in microseconds since 1970."""
        ...

    def moment(self, date: int) -> float:
        """Return the time of a date, past or to come, in seconds of the monotonic clock."""
        ...

    def owns(self, key: str | None, publisher: str, topic: str) -> bool:
        """Return whether the shard of an event is one of this member's."""
        ...

    async def write(self, change: Callable[[Transaction, list[EventRun]], T]) -> T:
        """Change the index, together with events; return when enough copies have that on their disks."""
        ...

    @property
    def watchers(self) -> set[Callable[[], None]]:
        """Functions that are called whenever readers see more of the log; they do not block."""
        ...

    async def wait_news(self, known: Mapping[str, int], timeout: float) -> object:
        """Wait until there is an event behind ``known`` in one of its shards."""
        ...


class Siblings(Protocol):
    """Port of a queue to the others of its member, among which memory and places are divided: ``Queues``."""

    def share_of(self, cluster: str, /) -> int:
        """Return how many bytes of jobs each queue of a cluster may hold now.  It does not block."""
        ...

    def rest(self) -> None:
        """Let those who wait for a place look: a queue may be idle now.  It does not block."""
        ...


@final
class _Shard:
    """Progress of a queue in one shard."""

    def __init__(self, epoch: str, record: QueueRecord) -> None:
        self.epoch = epoch
        self.record: Final = record
        self.progress: Final = record.progress
        self.scanned = record.progress.floor
        self.retries: dict[int, Retry | None] = {}
        """Failed attempts to write, by offset; None deletes the record."""


@final
class OpenQueue:
    """One queue.  ``run`` works on it; the rest may be called as long as that does.

    Args:
        name: name of the queue, and of the topic of its jobs.
        group: group under which the bridge keeps its progress.
        member: the bridge's member.
        cluster: cluster in whose quota it is counted.
        siblings: how many bytes of jobs it may hold in memory, and who waits for its place.
    """

    def __init__(self, name: str, group: str, member: LogMember, *, cluster: str, siblings: Siblings) -> None:
        self.name: Final = name
        self.cluster: Final = cluster
        self._siblings = siblings
        self.users = 0
        """Workers and requests that it is open for."""
        self.used = trio.current_time()
        """Time at which the last of them ended, or the queue was opened, in seconds."""
        self.is_kept = False
        """True once the log has a record of it: a worker has been there.  Until then nothing is written."""
        self._is_writing = False
        self._is_full = False
        """True if it reads no further until there is room for jobs."""
        self._running = trio.CancelScope()
        self._ended = trio.Event()
        self._group = group
        self._topic = TopicFilter((name,))
        self._member = member
        self._machine: Final = QueueMachine()
        self._shards: dict[int, _Shard] = {}
        self._wakeups: dict[QueueWorker, Wakeup] = {}
        self._changed, self._dirty, self._look = Wakeup(), Wakeup(), Wakeup()
        self._late: list[Callable[[], None]] = []
        """Called when what is marked is on the disk."""
        self._early: list[tuple[QueueWorker, JobFailure]] = []
        """Failures of jobs that were not read yet since a restart."""
        self._written = trio.lowlevel.ParkingLot()
        self._unmarked = False
        self._purging = trio.Lock()
        self.looked = trio.Event()
        """The log was looked at up to its end, or as far as the queue looks ahead."""
        self._is_crowded = False
        """True while failed attempts are not written, which was logged."""
        self._scopes: set[trio.CancelScope] = set()
        """Cancel scopes in which workers are served."""

    def __repr__(self) -> str:
        return f"<OpenQueue {self.name!r}, {len(self._machine.jobs)} jobs>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until it is cancelled.  What was reported and is not written then is reported again by its worker."""
        states = tuple(self._member.states.values())
        self.is_kept = await run_in_thread(self._load, states)
        if self.is_kept:
            self._machine.rest(trio.current_time() + _REST)
            await self._keep()
        self._member.watchers.add(self._look.wake)
        try:
            with self._running:
                async with trio.open_nursery() as nursery:
                    for task in (self._read_ahead, self._hand_out, self._write_outcomes, self._write_progress):
                        nursery.start_soon(task)
                    task_status.started()
        finally:
            self._member.watchers.discard(self._look.wake)
            self._ended.set()

    async def end(self) -> None:
        """Stop to work on it; it is idle, and what it knows is on the disk."""
        self._running.cancel()
        await self._ended.wait()

    def is_idle(self) -> bool:
        """Return whether nobody uses it, and nothing of it is still to be written."""
        return not (self.users or self._is_writing or self._machine.outcomes or self._unmarked)

    async def _keep(self) -> None:
        """Let the log know of it from here on: it counts as a group of readers."""
        pin = partial(
            self._member.store.cursors.pin,
            self._group,
            {
                state.id: self._shards[state.number].progress.floor
                for state in tuple(self._member.states.values())
                if state.number in self._shards
            },
            now=self._member.now(),
        )
        await run_in_thread(pin)
        self.is_kept = self._unmarked = True
        self._dirty.wake()

    def _load(self, states: Sequence[ShardState]) -> bool:
        known = False
        with self._member.store.read_transaction() as view:
            for state in states:
                found = read_record(view, self.name, state.number, state.epoch)
                known = known or found is not None
                record = found or QueueRecord(progress=ShardProgress(state.earliest, {}))
                self._shards[state.number] = _Shard(state.epoch, record)
        return known

    def status(self) -> QueueStatus:
        """Return what is going on."""
        machine = self._machine
        states = machine.states
        records = [shard.record for shard in self._shards.values()]
        return QueueStatus(
            queue=self.name,
            unread=sum(
                max(0, state.next - self._shards[state.number].scanned)
                for state in self._member.states.values()
                if state.number in self._shards
            ),
            waiting=states[JobState.READY] + states[JobState.BLOCKED],
            delayed=states[JobState.DELAYED],
            in_hand=states[JobState.HELD] + states[JobState.BEGUN] + states[JobState.SETTLING],
            workers=len(machine.workers),
            done=sum(record.done for record in records),
            dead=sum(record.dead for record in records),
            expired=sum(record.expired for record in records),
            retried=machine.retried,
            lapsed=machine.lapsed,
        )

    def close(self) -> None:
        """Say goodbye to the workers: they look for the next run of this member."""
        for scope in self._scopes:
            scope.cancel()

    async def peek(self, most: int, show: Callable[[QueuedJob, JobRow], T]) -> list[T]:
        """Return what ``show`` makes of the jobs that come first in the log, of those that are looked at."""
        found: list[T] = []
        for job in [*islice(self._machine.jobs.values(), most)]:  # they came in the order of the log
            rows = await self._rows([job])  # one by one: 256 payloads may be more than this process has room for
            if job.place in rows:
                found.append(show(job, rows[job.place]))
        return found

    async def purge(self) -> int:
        """Forget every job that the log holds now; return how many those were.  What is in hand is not done again."""
        count = 0
        written = trio.Event()
        await self._keep()
        async with self._purging:
            for state in tuple(self._member.states.values()):
                shard = self._shards[state.number]
                at = shard.progress.next_open(max(shard.scanned, state.earliest))
                while at < state.next:
                    rows, at = await run_in_thread(self._read, state, at)
                    count += sum(not shard.progress.is_done(row.offset) for row in rows)
                shard.progress.mark(shard.progress.floor, state.next)
                shard.retries = dict.fromkeys((*shard.retries, *shard.record.retries))
                shard.scanned = max(shard.scanned, state.next)
            count += self._machine.clear()
            self._unmarked = True
            self._late.append(written.set)
        self._dirty.wake()
        for wakeup in self._wakeups.values():
            wakeup.wake()
        await written.wait()
        return count

    # -- reading ahead --------------------------------------------------------------------------------------

    async def _read_ahead(self) -> None:
        while True:
            moved = False
            for state in tuple(self._member.states.values()):
                if state.number in self._shards:
                    async with self._purging:
                        moved = await self._read_shard(state) or moved
                        if self._early:
                            self._receive_early()  # before anybody gets these jobs
            if moved:
                self._changed.wake()
            else:
                self.looked.set()
                if self._early:
                    self._receive_early()
                await self._look.wait()

    def _has_room(self) -> bool:
        machine = self._machine
        delayed, held = machine.delayed, machine.size + machine.aside
        return (
            len(machine.jobs) - delayed < MOST_WAITING
            and machine.size < MOST_BYTES
            and (not held or held < self._siblings.share_of(self.cluster))
            and delayed < MOST_DELAYED
        )

    async def _read_shard(self, state: ShardState) -> bool:
        """Read the next events of a shard; return True if there were any."""
        shard = self._shards[state.number]
        start = max(shard.progress.next_open(shard.scanned), state.earliest)
        if start >= state.next:
            return False
        if not self._has_room():
            self._is_full = True
            return False
        try:
            rows, end = await run_in_thread(self._read, state, start)
        except DataLost:
            return False  # it was trimmed meanwhile: the next look begins behind that
        except LogDamaged as error:
            _log.error(
                "queue %s stands still: the log is damaged at offset %d of shard %d: %s",
                self.name, start, state.number, error,
                extra={"queue": self.name, "reason": str(error)},
            )  # fmt: skip
            self.looked.set()
            await trio.sleep(_DAMAGED)
            return True
        except TierUnreachable as error:
            self._log_unreachable(error)
            self.looked.set()
            await trio.sleep(_DAMAGED)
            return True
        if shard.progress.floor < state.earliest:
            shard.progress.mark(shard.progress.floor, state.earliest)
        at = start
        for row in rows:
            if at < row.offset:
                shard.progress.mark(at, row.offset)
            at = row.offset + 1
            if not shard.progress.is_done(row.offset):
                self._machine.add(self._job(shard, state.number, row), trio.current_time())
        shard.progress.mark(at, end)
        shard.scanned = end
        return True

    def _read(self, state: ShardState, start: int) -> tuple[list[JobRow], int]:
        chunks = self._member.store.reader.read(
            state.number, state.epoch, start, state.next, max_bytes=_READ_BYTES, wanted=self._topic
        )
        return rows_of(chunks, self._topic, start, state.next), min(chunks[-1].end, state.next)

    def _job(self, shard: _Shard, number: int, row: JobRow) -> QueuedJob:
        due, expires = -math.inf, math.inf
        if row.headers:  # else nothing counts from when it was stored
            stored = self._member.moment(row.timestamp)
            due, expires = stored + row.delay, stored + row.expires
        retry = shard.record.retries.get(row.offset)
        return QueuedJob(
            Place(number, row.offset),
            row,
            due=due if retry is None else self._member.moment(retry.due),
            expires=expires,
            attempts=0 if retry is None else retry.attempts,
            error="" if retry is None else retry.error,
        )

    async def _rows(self, jobs: Collection[QueuedJob]) -> dict[Place, JobRow]:
        """Return the rows of jobs, those that were dropped read again; what was trimmed or is damaged is missing."""
        rows = {job.place: job.row for job in jobs if job.row is not None}
        for job in jobs:
            if job.place not in rows:
                shard = self._shards[job.place.shard]
                try:
                    rows |= await self._reread(shard.epoch, job.place)
                except LogDamaged as error:
                    _log.error(
                        "job %d of shard %d of queue %s is lost: the log is damaged there: %s",
                        job.place.offset, job.place.shard, self.name, error,
                        extra={"queue": self.name, "reason": str(error)},
                    )  # fmt: skip
                except (DataLost, ValueError):
                    pass
        return rows

    async def _reread(self, epoch: str, place: Place) -> dict[Place, JobRow]:
        while True:
            try:
                return await run_in_thread(self._read_one, epoch, place)
            except TierUnreachable as error:
                self._log_unreachable(error)
                await trio.sleep(_DAMAGED)

    def _log_unreachable(self, error: TierUnreachable) -> None:
        _log.warning(
            "queue %s waits for the tier: %s", self.name, error, extra={"queue": self.name, "reason": str(error)}
        )

    def _read_one(self, epoch: str, place: Place) -> dict[Place, JobRow]:
        shard, offset = place
        chunks = self._member.store.reader.read(shard, epoch, offset, offset + 1, max_bytes=1, wanted=self._topic)
        return {Place(shard, row.offset): row for row in rows_of(chunks, self._topic, offset, offset + 1)}

    # -- handing out ----------------------------------------------------------------------------------------

    async def _hand_out(self) -> None:
        """Let the machine assign jobs whenever something has changed; ``_send_all`` sends each worker its own."""
        while True:
            with trio.move_on_at(self._machine.deadline):
                await self._changed.wait()
            now = trio.current_time()
            self._machine.expire(now)
            self._machine.assign(now)
            for worker, wakeup in self._wakeups.items():
                if worker.assigned or worker.settled or worker.confirmed:
                    wakeup.wake()
            if self._machine.outcomes:
                self._dirty.wake()

    async def serve(self, worker: QueueWorker, tunnel: Tunnel, held: Sequence[Place], permit: Permit) -> None:
        """Serve a worker through its tunnel, until that ends.

        Args:
            worker: the worker's limits.
            tunnel: tunnel to the worker.
            held: jobs that it reports to have.
            permit: its right to have more.

        Raises:
            NotAllowed: it may not have more.
            RemoteError: it sent something else than a report, or reads nothing.
        """
        machine = self._machine
        if not self.is_kept:
            await self._keep()
        machine.open(worker, trio.current_time())
        machine.resume(worker, held, trio.current_time())
        self._wakeups[worker] = Wakeup()
        scope = trio.CancelScope()
        lost = False  # a worker that leaves in order is not, and none is when this member ends
        try:
            async with open_background() as nursery:
                nursery.start_soon(self._send, worker, tunnel, permit)
                self._changed.wake()
                with scope:
                    self._scopes.add(scope)
                    async for message in tunnel:
                        while (
                            len(self._late) >= _UNREPORTED
                        ):  # of a full disk, say: what is not looked at yet has no end
                            await self._written.park()
                        self._receive_report(worker, read_request(JobReport, message))
                        if len(worker.settled) > _UNREPORTED:
                            raise RemoteError("bad_request", "a worker reports without reading what it is answered")
        except TunnelBroken:
            lost = True
            raise
        finally:
            self._scopes.discard(scope)
            del self._wakeups[worker]
            machine.close(worker, trio.current_time(), lost=lost)
            self._changed.wake()

    def _receive_report(self, worker: QueueWorker, report: JobReport) -> None:
        """Hand what ``MemberLink._report`` has made to the machine; ``_write_outcomes`` writes what follows."""
        machine, now = self._machine, trio.current_time()
        machine.look(worker, now)
        for place in report.done:
            if machine.is_given_to_another(worker, place):
                self._settle_late(worker, place)  # that one's report counts: so only one of them gets a confirmation
            elif not machine.finish(worker, place, now):
                self._receive_late(worker, place)
        for failure in report.failed:
            self._receive_failure(worker, failure)
        for place in report.released:
            machine.release(worker, place, now)
        for place in report.expired:
            machine.lapse(worker, place, now)
        for place in report.extended:
            machine.extend(worker, place, now)
        for place in report.begun:
            machine.begin(worker, place, now)
        self._changed.wake()

    def _receive_failure(self, worker: QueueWorker, failure: JobFailure) -> None:
        place, error = Place(failure.shard, failure.offset), failure.error[:MAX_ERROR]
        if place.shard not in self._shards:
            return  # as with those that are done
        if place not in self._machine.jobs and not self.looked.is_set() and len(self._early) < MAX_LIMIT:
            self._early.append((worker, failure))
        elif not self._machine.fail(
            worker, place, error, trio.current_time(), attempt=failure.attempt, permanent=failure.permanent
        ):
            worker.settled.append(place)

    def _receive_early(self) -> None:
        """Receive the failures of jobs that are looked at by now."""
        early, self._early = self._early, []
        for worker, failure in early:
            if worker in self._wakeups:  # else it reports that again when it comes back
                self._receive_failure(worker, failure)
        self._changed.wake()

    def _receive_late(self, worker: QueueWorker, place: Place) -> None:
        """Receive the report of a job that is not there: it is done already, or was not looked at since a restart."""
        shard = self._shards.get(place.shard)
        end = max((state.next for state in self._member.states.values() if state.number == place.shard), default=0)
        # A job that is not in the log yet was assigned to no worker: it would be lost if it counted as done already.
        if shard is None:
            return  # it is at another member, which has this one's former name: the worker finds that one
        if place.offset >= end:
            worker.settled.append(place)
            return
        if shard.progress.is_done(place.offset) or place.offset < shard.scanned:
            if self._is_writing or self._unmarked:  # that it is done may be on no disk yet
                self._late.append(partial(self._settle_late, worker, place))
                self._unmarked = True
            else:
                self._settle_late(worker, place)
            return
        shard.progress.mark(place.offset, place.offset + 1)
        shard.record.done += 1
        shard.retries[place.offset] = None
        self._late.append(lambda: worker.settled.append(place))  # the list is another one by then
        self._unmarked = True
        self._dirty.wake()

    @staticmethod
    def _settle_late(worker: QueueWorker, place: Place) -> None:
        worker.settled.append(place)
        worker.late.add(place)

    async def _send(self, worker: QueueWorker, tunnel: Tunnel, permit: Permit) -> None:
        """Send a worker its jobs, and which of its outcomes are on the disk."""
        wakeup = self._wakeups[worker]
        with suppress(TunnelBroken):  # who receives gets it as well
            while True:
                await wakeup.wait()
                await self._send_all(worker, tunnel, permit)

    async def _send_all(self, worker: QueueWorker, tunnel: Tunnel, permit: Permit) -> None:
        while worker.settled or worker.assigned or worker.confirmed:
            # At once: a job that comes again is sent behind the answer to what was reported of it before.
            jobs, worker.assigned = _within(worker.assigned, _AT_ONCE)
            settled, worker.settled = worker.settled, []
            taken, worker.taken = worker.taken, []
            late, worker.late = worker.late, set()
            confirmed, worker.confirmed = worker.confirmed, []
            if settled:
                for settled_message in encode_settled(settled, taken, late):
                    await tunnel._send_message(settled_message)
            if confirmed:
                await tunnel._send_message(JobNews(confirmed=tuple(confirmed)))
            if not jobs:
                continue
            rows = await self._rows(jobs)
            again = {*worker.assigned}
            held = [job for job in jobs if job.worker is worker and job.state is JobState.HELD and job not in again]
            for job in held:
                if job.place not in rows:  # trimmed before anyone got it, or damaged
                    self._machine.lapse(worker, job.place, trio.current_time())
                elif job.row is None:
                    room = min(MOST_BYTES, self._siblings.share_of(self.cluster))
                    if self._machine.size + job.size <= room:
                        self._machine.keep(job, rows[job.place])  # else it is read again if it is needed again
            kept = [(job, rows[job.place]) for job in held if job.place in rows]
            if kept:
                permit.check()
            for message in encode_jobs(kept):
                if isinstance(message, bytes):
                    await tunnel.send(message)
                else:
                    await tunnel._send_message(message)

    # -- writing outcomes -----------------------------------------------------------------------------------

    async def _write_outcomes(self) -> None:
        """Write the outcomes of jobs; once they are on the disk, ``_send_all`` sends that to their workers."""
        while True:
            await self._dirty.wait()
            while self._machine.outcomes or self._unmarked:
                self._is_writing = True
                outcomes, self._machine.outcomes = _within(self._machine.outcomes, _AT_ONCE)
                late, self._late = self._late, []
                self._unmarked = False
                dead = [job for job in outcomes if job.verdict is JobVerdict.DEAD]
                letters = await self._letters(dead) if dead else []
                self._mark(outcomes)
                if self.is_kept:
                    await self._write(letters)
                self._log_dead(dead)
                now = trio.current_time()
                for settle in late:
                    settle()
                self._written.unpark_all()
                self._machine.settle(outcomes, now)
                self._changed.wake()
                if self._is_full:
                    self._is_full = False
                    self._look.wake()
            self._is_writing = False
            self._siblings.rest()

    def _mark(self, outcomes: Sequence[QueuedJob]) -> None:
        now = trio.current_time()
        for job in outcomes:
            number, offset = job.place
            shard = self._shards[number]
            known = offset in shard.record.retries or offset in shard.retries
            if shard.progress.is_done(offset):
                continue  # the queue was purged meanwhile
            if job.verdict is JobVerdict.RETRY:
                due = self._member.date() + int((job.due - now) * 1e6)
                shard.retries[offset] = Retry(job.attempts, due, job.error)
                continue
            shard.progress.mark(offset, offset + 1)
            if known:
                shard.retries[offset] = None
            shard.record.done += job.verdict is JobVerdict.DONE
            shard.record.dead += job.verdict is JobVerdict.DEAD
            shard.record.expired += job.verdict is JobVerdict.EXPIRED

    async def _write(self, letters: Sequence[EventRun] = ()) -> None:
        """Write what has changed, and dead letters with it; on a full disk again and again."""
        changes = {
            (number, shard.epoch): change_of(shard.record, shard.retries) for number, shard in self._shards.items()
        }
        for shard in self._shards.values():
            for offset, retry in shard.retries.items():
                if retry is None:
                    shard.record.retries.pop(offset, None)
                else:
                    shard.record.retries[offset] = retry
            shard.retries = {}
        date = self._member.date()

        def write(view: Transaction, runs: list[EventRun]) -> Crowded:
            crowded = write_changes(view, self.name, self.cluster, changes, date)
            runs += letters
            return crowded

        while True:
            try:
                self._leave_out(await self._member.write(write))
                return
            except StoreFull as error:
                _log.warning("queue %s waits: %s", self.name, error, extra={"queue": self.name, "reason": str(error)})
                await trio.sleep(_RETRY)

    def _leave_out(self, crowded: Crowded) -> None:
        """Keep the errors of failed attempts that were not written in full out of memory, too."""
        for number, offset in crowded:
            retries = self._shards[number].record.retries
            retries[offset] = retries[offset]._replace(error="")
            job = self._machine.jobs.get(Place(number, offset))
            if job is not None and job.verdict is JobVerdict.RETRY:
                job.error = ""
        if crowded and not self._is_crowded:
            self._is_crowded = True
            why = next(iter(crowded.values()))
            _log.warning(
                "queue %s keeps no more failed attempts: %s of these; jobs that fail now begin with attempt 1 after a "
                "restart of the bridge",
                self.name, why,
                extra={"queue": self.name, "reason": why},
            )  # fmt: skip

    async def _letters(self, jobs: Sequence[QueuedJob]) -> list[EventRun]:
        rows = await self._rows(jobs)
        return [
            dead_letter(self.name, self._shards[job.place.shard].epoch, job, rows[job.place], self._member.owns)
            for job in jobs
            if job.place in rows
        ]

    def _log_dead(self, jobs: Sequence[QueuedJob]) -> None:
        for job in jobs:
            _log.warning(
                "job %d of shard %d of queue %s is dead after %d attempts: %s",
                job.place.offset, job.place.shard, self.name, job.attempts, job.error,
                extra={"queue": self.name, "topic": job.dead, "reason": job.error, "count": job.attempts},
            )  # fmt: skip

    async def _write_progress(self) -> None:
        """Record the queue's progress in the log."""
        written: dict[str, int] = {}
        while True:
            await trio.sleep(_PROGRESS_INTERVAL)
            floors = {
                state.id: max(self._shards[state.number].progress.floor, state.earliest)  # trimmed: no more work
                for state in self._member.states.values()
                if state.number in self._shards
            }
            if self.is_kept and floors != written:
                with suppress(StoreFull):  # next time
                    move = partial(self._member.store.cursors.move, self._group, floors, now=self._member.now())
                    await run_in_thread(move)
                    written = floors


def _within(jobs: list[QueuedJob], size: int) -> tuple[list[QueuedJob], list[QueuedJob]]:
    """Divide jobs into the first ones, of so many bytes at most or one, and the rest."""
    taken = 0
    for count, job in enumerate(jobs):
        taken += job.size
        if taken > size and count:
            return jobs[:count], jobs[count:]
    return jobs, []
