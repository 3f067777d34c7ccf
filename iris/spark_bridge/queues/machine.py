"""Queue machine: the worker of each job, its lease, and its outcome (sans-IO).

A job goes through these states:

========= =============================================== ==============================================
state     what it is                                      goes on to
========= =============================================== ==============================================
DELAYED   delayed by its publisher, or until a retry      READY, BLOCKED
BLOCKED   another job of its key is before it             READY
READY     may be assigned                                 HELD, or SETTLING if it has expired
HELD      at a worker, which has not begun it             BEGUN, READY
BEGUN     a worker works on it; the lease runs            SETTLING
SETTLING  its outcome is being written                    gone, or DELAYED if it is to be tried again
========= =============================================== ==============================================

Order.  Jobs of one key are assigned one at a time, in the order of the log: the next one when the outcome of the one
before is on the disk, also while that is to be tried again.  A delayed job gets its place when its delay is over.

Leases.  The lease of a job runs from when its worker begins it.  What a worker holds beside that stays with it for as
long as it begins or ends one job in each span of a lease.  Either ends when the worker is gone.  An attempt is counted
when it has failed, and when its lease or its worker has ended after it had begun.

Suspects.  A worker says that it begins a job and goes on at once, so a job that ends its process may do that before
the bridge knows that it was begun.  A job that a worker had when it was lost or stalled is suspect: the next worker
begins it only after the bridge has confirmed that it knows.  So no job counts an attempt that was not begun, and each
job that ends its workers counts one from the second time on.

Time is monotonic seconds.  Plain calls instead of effects: an assignment takes 3 us.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, final

from iris.patterns.bridge_protocol import MAX_BACKOFF, Place, TakeJobs
from iris.spark_bridge.queues.rows import JobRow

_JOB: Final = 512
"""Memory of a job without texts, in bytes: itself, its place, and its entry in a heap."""

_STALE: Final = 1024
"""Stale entries, beyond as many as wait, at which a heap is made anew."""


class JobState(enum.Enum):
    """See the table above."""

    DELAYED = "delayed"
    BLOCKED = "blocked"
    READY = "ready"
    HELD = "held"
    BEGUN = "begun"
    SETTLING = "settling"


class JobVerdict(enum.Enum):
    """Outcome of a job, as it is written."""

    DONE = "done"
    DEAD = "dead"
    EXPIRED = "expired"
    RETRY = "retry"


@final
class QueuedJob:
    """One job that is not done."""

    __slots__ = (
        "also",
        "attempts",
        "chained",
        "dead",
        "deadline",
        "due",
        "error",
        "expires",
        "key",
        "place",
        "priority",
        "rank",
        "row",
        "size",
        "state",
        "suspect",
        "verdict",
        "worker",
    )

    def __init__(self, place: Place, row: JobRow, *, due: float, expires: float, attempts: int, error: str) -> None:
        self.place: Final = place
        self.row: JobRow | None = row
        """Event of the job. None: it has to be read again before it is assigned."""
        self.size: Final = row.size
        """Size of the row, in bytes."""
        self.key: Final = row.key
        self.priority: Final = row.priority
        self.expires: Final = expires
        self.due = due
        self.attempts = attempts
        """Number of attempts that have failed."""
        self.error = error
        """Error of the last failed attempt."""
        self.dead = ""
        """Topic of its dead letter; empty until there is one."""
        self.state = JobState.DELAYED
        self.verdict: JobVerdict | None = None
        self.worker: QueueWorker | None = None
        self.also: dict[QueueWorker, None] = {}
        """Workers that have reported it as done while another outcome of it was being written."""
        self.deadline = math.inf
        self.rank = 0
        self.chained = False
        self.suspect = False
        """True if it may have ended a worker before the worker reported that it had begun the job."""

    def __repr__(self) -> str:
        return f"<QueuedJob {self.place.shard}:{self.place.offset} {self.state.value}>"

    @property
    def aside(self) -> int:
        """Approximate memory beside its row, in bytes: also while it is delayed."""
        return _JOB + len(self.key or "") + len(self.error)


class DeadLetters(Protocol):
    """Port of a worker to its right to publish, which ``Queues`` gives it."""

    def topic(self) -> str:
        """Return the topic for its dead letters; what it may publish on can change.  It does not block."""
        ...


@final
class QueueWorker:
    """One worker: a program that runs jobs.

    Args:
        terms: its terms.
        letters: where its dead letters go.
    """

    __slots__ = (
        "assigned", "attempts", "backoff", "begun", "confirmed", "hand", "is_stalled", "late", "lease", "letters",
        "limit", "moved", "settled", "taken", "turn",
    )  # fmt: skip

    def __init__(self, terms: TakeJobs, letters: DeadLetters) -> None:
        self.limit: Final = terms.limit
        self.lease: Final = terms.lease
        self.attempts: Final = terms.attempts
        self.letters: Final = letters
        self.backoff: Final = terms.backoff
        self.hand: dict[Place, QueuedJob] = {}
        """Jobs assigned to the worker whose outcome is not on the disk."""
        self.begun: dict[Place, QueuedJob] = {}
        """Jobs of ``hand`` that it works on, in the order in which their leases end."""
        self.assigned: list[QueuedJob] = []
        """Jobs that have still to be sent to it."""
        self.settled: list[Place] = []
        """Jobs that the worker may forget; not sent to it yet."""
        self.taken: list[Place] = []
        """Jobs of ``settled`` that were taken from it: the message answers no report of its own."""
        self.late: set[Place] = set()
        """Jobs of ``settled`` that it reported as done too late: another outcome came first."""
        self.confirmed: list[Place] = []
        """Suspects that are known to be begun; not sent to it yet."""
        self.moved = -math.inf
        """Time at which it last began or ended a job, or got one while it had none, in seconds."""
        self.turn = 0
        self.is_stalled = False
        """True if it has neither begun nor ended a job for as long as a lease; it gets nothing until it does."""

    @property
    def room(self) -> int:
        """Number of jobs that it may get."""
        return 0 if self.is_stalled else self.limit - len(self.hand)


@final
class QueueMachine:
    """The jobs of a queue that are looked at, and its workers."""

    def __init__(self) -> None:
        self.jobs: Final[dict[Place, QueuedJob]] = {}
        self.workers: Final[list[QueueWorker]] = []
        self.outcomes: list[QueuedJob] = []
        """Jobs with a verdict that is to be written; then ``settle`` them."""
        self.retried = 0
        """Attempts that were followed by another one."""
        self.lapsed = 0
        """Leases that ended: they ran out, or their worker was lost."""
        self.size = 0
        """Memory of the rows that are kept, in bytes."""
        self.aside = 0
        """Memory of all jobs beside their rows, in bytes."""
        self.states: Final[Counter[JobState]] = Counter()
        """Number of jobs in each state."""
        self._ready: list[tuple[int, int, QueuedJob]] = []
        self._delayed: list[tuple[float, int, QueuedJob]] = []
        self._claims: dict[Place, QueueWorker] = {}
        """Jobs that workers had before this queue was opened, and that are not there yet."""
        self._begins = -math.inf
        self._chains: dict[tuple[int, str], OrderedDict[QueuedJob, None]] = {}
        self._ranks = 0
        self._turns = 0

    # -- jobs come ------------------------------------------------------------------------------------------

    def add(self, job: QueuedJob, now: float) -> None:
        """Add a job that the log holds behind those that were added before."""
        self._ranks += 1
        job.rank = self._ranks
        self.jobs[job.place] = job
        self.states[job.state] += 1
        self.size += job.size
        self.aside += job.aside
        if job.due > now and not job.attempts:
            self._delay(job)
        else:
            self._enqueue(job, now)
        claimant = self._claims.pop(job.place, None)
        if claimant in self.workers:
            self.resume(claimant, [job.place], now)

    def rest(self, until: float) -> None:
        """Hand out nothing before that: workers that have jobs already say so first."""
        self._begins = until

    def keep(self, job: QueuedJob, row: JobRow) -> None:
        """Keep the row of a job that was read again, unless the queue was purged meanwhile."""
        if job.row is None and self.jobs.get(job.place) is job:
            job.row = row
            self.size += job.size

    def _drop_row(self, job: QueuedJob) -> None:
        if job.row is not None:
            self.size -= job.size
            job.row = None

    @property
    def delayed(self) -> int:
        """Number of delayed jobs."""
        return self.states[JobState.DELAYED]

    def _set_state(self, job: QueuedJob, state: JobState) -> None:
        """Let a job be in another state, and count it there."""
        if self.jobs.get(job.place) is job:  # else the queue was purged
            self.states[job.state] -= 1
            self.states[state] += 1
        job.state = state

    def _delay(self, job: QueuedJob) -> None:
        self._set_state(job, JobState.DELAYED)
        self._drop_row(job)
        heapq.heappush(self._delayed, (job.due, job.rank, job))
        if len(self._delayed) > _STALE + 2 * self.states[JobState.DELAYED]:
            self._delayed = [(job.due, job.rank, job) for job in self.jobs.values() if job.state is JobState.DELAYED]
            heapq.heapify(self._delayed)

    def _enqueue(self, job: QueuedJob, now: float) -> None:
        """Put a job behind those of its key."""
        if job.key is not None:
            chain = self._chains.setdefault((job.place.shard, job.key), OrderedDict())
            chain[job] = None
            job.chained = True
            if len(chain) > 1:
                self._set_state(job, JobState.BLOCKED)
                return
        self._offer(job, now)

    def _offer(self, job: QueuedJob, now: float) -> None:
        """Let a job be assigned, when it is due: it is the first of its key."""
        if job.due > now:
            self._delay(job)
        else:
            self._set_state(job, JobState.READY)
            heapq.heappush(self._ready, (-job.priority, job.rank, job))
            if len(self._ready) > _STALE + 2 * self.states[JobState.READY]:
                self._ready = [
                    (-job.priority, job.rank, job) for job in self.jobs.values() if job.state is JobState.READY
                ]
                heapq.heapify(self._ready)

    # -- workers --------------------------------------------------------------------------------------------

    def open(self, worker: QueueWorker, now: float) -> None:
        """A worker has come."""
        worker.moved = now
        self._turns += 1
        worker.turn = self._turns
        self.workers.append(worker)

    def close(self, worker: QueueWorker, now: float, *, lost: bool) -> None:
        """A worker has gone; it was ``lost``, or has left in order: then no attempt has failed."""
        self.workers.remove(worker)
        for place in [place for place, claimant in self._claims.items() if claimant is worker]:
            del self._claims[place]
        for job in [job for job in worker.hand.values() if job.state is not JobState.SETTLING]:
            if lost and job.state is JobState.BEGUN:
                self.lapsed += 1
                self._fail(job, worker, "its worker was lost", now)
            else:
                job.suspect = job.suspect or lost
                self._give_back(job, now)
        worker.hand.clear()
        worker.begun.clear()

    def _give_back(self, job: QueuedJob, now: float) -> None:
        self._unassign(job)
        self._offer(job, now)

    @staticmethod
    def _notify_lost_job(job: QueuedJob) -> None:
        """Notify the worker of a job, if it has one, that the job is not its own any more."""
        if job.worker is not None:
            job.worker.settled.append(job.place)
            job.worker.taken.append(job.place)

    @staticmethod
    def _unassign(job: QueuedJob) -> None:
        """Let a job belong to no worker."""
        if job.worker is not None:
            job.worker.hand.pop(job.place, None)
            job.worker.begun.pop(job.place, None)
            job.worker = None

    def resume(self, worker: QueueWorker, places: Iterable[Place], now: float) -> None:
        """Leave jobs with a worker that has them already, as far as nobody else has, and as it may have so many."""
        for count, place in enumerate(places):
            job = self.jobs.get(place)
            if job is None and count < worker.limit:
                self._claims[place] = worker
            elif job is not None and job.state is JobState.READY and worker.room > 0:
                self._hold(job, worker, now)
                self._begin(job, worker, now)
            elif job is None or job.worker is not worker:
                worker.settled.append(place)
                worker.taken.append(place)

    def assign(self, now: float) -> set[QueueWorker]:
        """Hand out jobs, each to the worker that has the fewest; return who got some."""
        if self._delayed:
            self._wake(now)
        ready = self._ready
        if not ready or now < self._begins:
            return set()
        free = [(len(worker.hand), worker.turn, worker) for worker in self.workers if worker.room > 0]
        heapq.heapify(free)
        served: set[QueueWorker] = set()
        while ready and free:
            job = heapq.heappop(ready)[2]
            if job.state is not JobState.READY:
                continue  # it was done by a worker that had it before
            if job.expires <= now:
                self._settling(job, JobVerdict.EXPIRED)
                continue
            worker = heapq.heappop(free)[2]
            self._hold(job, worker, now)
            worker.assigned.append(job)
            served.add(worker)
            self._turns += 1
            worker.turn = self._turns
            if worker.room > 0:
                heapq.heappush(free, (len(worker.hand), worker.turn, worker))
        return served

    def _hold(self, job: QueuedJob, worker: QueueWorker, now: float) -> None:
        if not worker.hand:
            worker.moved = now  # there was nothing that it could begin
        self._set_state(job, JobState.HELD)
        job.worker = worker
        worker.hand[job.place] = job

    def _wake(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            job = heapq.heappop(self._delayed)[2]
            if job.state is not JobState.DELAYED or job.due > now or self.jobs.get(job.place) is not job:
                continue
            if job.key is None or job.chained:
                self._offer(job, now)
            else:
                self._enqueue(job, now)

    # -- what workers report --------------------------------------------------------------------------------

    def begin(self, worker: QueueWorker, place: Place, now: float) -> None:
        """A worker works on a job from now on."""
        self.look(worker, now)
        job = worker.hand.get(place)
        if job is not None and job.state is JobState.HELD:
            self._begin(job, worker, now)
            if job.suspect:
                worker.confirmed.append(place)

    def _begin(self, job: QueuedJob, worker: QueueWorker, now: float) -> None:
        self._set_state(job, JobState.BEGUN)
        job.deadline = now + worker.lease
        worker.begun[job.place] = job

    def extend(self, worker: QueueWorker, place: Place, now: float) -> None:
        """Let the lease of a job begin anew."""
        self.look(worker, now)
        job = worker.begun.pop(place, None)
        if job is not None:
            self._begin(job, worker, now)

    def finish(self, worker: QueueWorker, place: Place, now: float) -> bool:
        """A worker has done a job; return whether it was waited for.  It ends for others that have it by now."""
        self.look(worker, now)
        job = self.jobs.get(place)
        if job is None:
            return False
        if job.state is JobState.SETTLING:
            if job.worker is not worker or job.verdict is JobVerdict.RETRY:
                job.also[worker] = None
            return True
        self._give_to(job, worker)
        self._settling(job, JobVerdict.DONE)
        return True

    def is_given_to_another(self, worker: QueueWorker, place: Place) -> bool:
        """Return True if another worker has begun a job, or begins it without asking: its own report counts."""
        job = self.jobs.get(place)
        if job is None or job.worker is worker:
            return False
        return job.state is JobState.BEGUN or (job.state is JobState.HELD and not job.suspect)

    def lapse(self, worker: QueueWorker, place: Place, now: float) -> None:
        """A job has expired before its worker began it."""
        self.look(worker, now)
        job = worker.hand.get(place)
        if job is not None and job.state is JobState.HELD:
            self._settling(job, JobVerdict.EXPIRED)

    def fail(self, worker: QueueWorker, place: Place, error: str, now: float, *, attempt: int, permanent: bool) -> bool:
        """A worker has failed in an ``attempt``, counted from 1; return whether that was waited for."""
        self.look(worker, now)
        job = self.jobs.get(place)
        if job is None or job.state is JobState.SETTLING or (job.worker not in (None, worker)):
            return False
        if attempt <= job.attempts:  # its lease had run out, and that was counted
            if job.worker is worker:
                self._give_back(job, now)  # the answer makes its worker forget the job: it gets it again behind that
            return False
        self._give_to(job, worker)
        self._fail(job, worker, error, now, permanent=permanent)
        return True

    def release(self, worker: QueueWorker, place: Place, now: float) -> None:
        """A worker gives a job back, undone; no attempt is counted."""
        self.look(worker, now)
        job = worker.hand.get(place)
        if job is not None and job.state is JobState.SETTLING:
            return
        if job is not None:
            self._give_back(job, now)
        elif self._claims.get(place) is worker:
            del self._claims[place]
        worker.settled.append(place)  # also of one whose lease has run out: it waits for that

    def look(self, worker: QueueWorker, now: float) -> None:
        """A worker says that it waits for jobs, or anything else."""
        worker.moved = now
        worker.is_stalled = False

    def _give_to(self, job: QueuedJob, worker: QueueWorker) -> None:
        """Let a job belong to the worker that reports it; another one that has it by now is notified."""
        if job.worker is not worker:
            self._notify_lost_job(job)
            self._unassign(job)
            job.worker = worker
            worker.hand[job.place] = job

    def _fail(self, job: QueuedJob, worker: QueueWorker, error: str, now: float, *, permanent: bool = False) -> None:
        job.attempts += 1
        self.aside -= job.aside
        job.error, job.dead = error, worker.letters.topic()
        self.aside += job.aside
        if permanent or job.attempts >= worker.attempts:
            self._settling(job, JobVerdict.DEAD)
        else:
            self.retried += 1
            job.due = now + min(MAX_BACKOFF, worker.backoff * 2.0 ** (job.attempts - 1))
            self._settling(job, JobVerdict.RETRY)

    def _settling(self, job: QueuedJob, verdict: JobVerdict) -> None:
        self._set_state(job, JobState.SETTLING)
        job.verdict = verdict
        if job.worker is not None:
            job.worker.begun.pop(job.place, None)
        self.outcomes.append(job)

    def settle(self, jobs: Sequence[QueuedJob], now: float) -> set[QueueWorker]:
        """The outcomes of jobs are on the disk; return the workers to report that to."""
        notified: set[QueueWorker] = set()
        for job in jobs:
            worker, verdict, also = job.worker, job.verdict, [*job.also]
            job.worker, job.verdict, job.also = None, None, {}
            if worker is not None and worker.hand.pop(job.place, None) is not None:
                worker.settled.append(job.place)
                notified.add(worker)
            is_here = self.jobs.get(job.place) is job  # else the queue was purged meanwhile
            if is_here and also and verdict is JobVerdict.RETRY:
                first = also.pop(0)  # its report came when that was being written, and counts
                self._give_to(job, first)
                self._settling(job, JobVerdict.DONE)
                job.also = dict.fromkeys(also)
                continue
            for other in also:
                other.settled.append(job.place)
                other.late.add(job.place)
                notified.add(other)
            if not is_here:
                continue
            if verdict is JobVerdict.RETRY:
                if job.chained and self._first(job) is not job:  # a worker reported it before its turn
                    self._set_state(job, JobState.BLOCKED)
                else:
                    self._offer(job, now)
            else:
                self.states[job.state] -= 1
                del self.jobs[job.place]
                self._drop_row(job)
                self.aside -= job.aside
                self._unchain(job, now)
        return notified

    def _unchain(self, job: QueuedJob, now: float) -> None:
        if not job.chained:
            return
        assert job.key is not None
        name = (job.place.shard, job.key)
        chain = self._chains[name]
        del chain[job]
        if not chain:
            del self._chains[name]
        elif (first := next(iter(chain))).state is JobState.BLOCKED:  # else its own outcome is being written
            self._offer(first, now)

    def _first(self, job: QueuedJob) -> QueuedJob:
        """Return the job of its key that comes first."""
        assert job.key is not None
        return next(iter(self._chains[job.place.shard, job.key]))

    # -- time -----------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """Time to call ``expire`` and ``assign`` next, in seconds; inf if never."""
        due = self._delayed[0][0] if self._delayed else math.inf
        if self._ready and self._begins > -math.inf:
            due = min(due, self._begins)
        for worker in self.workers:
            if worker.hand and not worker.is_stalled:
                due = min(due, worker.moved + worker.lease)
            if worker.begun:
                due = min(due, next(iter(worker.begun.values())).deadline)
        return due

    def expire(self, now: float) -> None:
        """End the leases that have run out."""
        if now >= self._begins:
            self._begins = -math.inf
        for worker in self.workers:
            while worker.begun and (job := next(iter(worker.begun.values()))).deadline <= now:
                self.lapsed += 1
                worker.is_stalled = worker.moved + worker.lease <= now
                self._notify_lost_job(job)
                self._unassign(job)
                self._fail(job, worker, f"its lease of {worker.lease:g} s ran out", now)
        for worker in self.workers:
            if worker.hand and not worker.is_stalled and worker.moved + worker.lease <= now:
                held = [job for job in worker.hand.values() if job.state is JobState.HELD]
                worker.is_stalled = bool(held)
                worker.moved = now
                for job in held:
                    job.suspect = True
                    self._notify_lost_job(job)
                    self._give_back(job, now)

    def clear(self) -> int:
        """Forget every job; return how many there were.  What workers have in hand is done when they report it."""
        count = len(self.jobs)
        for worker in self.workers:
            # Jobs that it has reported are on no disk yet: the confirmation follows when they are.
            reported = {place: job for place, job in worker.hand.items() if job.state is JobState.SETTLING}
            worker.settled += worker.hand.keys() - reported.keys()
            worker.hand = reported
            worker.begun.clear()
        self.jobs.clear()
        self.states.clear()
        self.size = self.aside = 0
        self._ready.clear()
        self._delayed.clear()
        self._chains.clear()
        return count
