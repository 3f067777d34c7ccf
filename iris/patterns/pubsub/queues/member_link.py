"""Member link: the jobs that one member of a bridge has given to a worker, and the reports about them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

import trio
from msgspec.structs import replace

from iris.kernel.errors import LeaseLost
from iris.patterns.bridge_protocol import (
    MAX_LIMIT,
    JobFailure,
    JobNews,
    JobReport,
    Place,
    SentJob,
    TakeAnswer,
    TakeJobs,
    read_reply,
)
from iris.patterns.pubsub.queues.job import Job, JobOutcome, ReceivedJob
from iris.patterns.pubsub.queues.member_stream import MemberStream, number_of, receive_value_untrusted
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")


class JobReceiver(Protocol):
    """Port of a link to the jobs of its ``JobWorker``."""

    def terms(self) -> TakeJobs:
        """Return what the member gets first; called whenever a tunnel is opened."""
        ...

    def arrived(self, jobs: Sequence[Job]) -> None:
        """Receive jobs that have come; none when the tasks that wait for some have to ``ask``.  It does not block."""
        ...


@final
class MemberLink(MemberStream):
    """The jobs of one queue at one member.

    Args:
        queue: name of the queue.
        address: cluster at which the member is found.
        receiver: has the terms, and receives the jobs.
    """

    def __init__(self, queue: str, address: str, receiver: JobReceiver) -> None:
        super().__init__(address)
        self.hand: Final[dict[Place, Job]] = {}
        """Jobs that came and are not settled."""
        self._queue = queue
        self._receiver = receiver
        self._begun: list[Place] = []
        self._reported: list[Job] = []
        self._extended: dict[Place, None] = {}
        self._expired: list[Place] = []
        self._suspects: set[Place] = set()
        """Places of jobs that come next, and that may have ended another worker."""
        self._is_forgotten = False
        """True if jobs were taken back: no others come before this worker sends something."""
        self._asks = False
        self._offset = 0.0
        """Difference of this node's clock to the member's, in seconds."""

    def __repr__(self) -> str:
        return f"<MemberLink {self.address}, {len(self.hand)} jobs>"

    # -- what the program does ------------------------------------------------------------------------------

    async def begin(self, job: Job) -> bool:
        """Begin a job, if it is still this worker's and has not expired.

        Cancelled, it has not begun.
        """
        if self.hand.get(job._place) is not job:
            return False
        self._wakeup.wake()
        if job._deadline <= trio.current_time():
            self._expired.append(job._place)
            return False
        self._begun.append(job._place)
        if job._is_suspect:
            try:
                while self._awaits_confirmation(job):
                    await self._news.park()
            except BaseException:
                job.release()
                raise
            return job._has_begun
        job._has_begun = True
        # Its report goes out before the job begins: of one that ends this process the bridge knows it then, mostly.
        await trio.lowlevel.cancel_shielded_checkpoint()
        return True

    def _awaits_confirmation(self, job: Job) -> bool:
        """Return whether the bridge has still to confirm that it knows of a suspect's beginning."""
        here = self.hand.get(job._place) is job and not self.is_leaving and self._failure is None
        return here and not job._has_begun

    def ask(self) -> None:
        """Ask for jobs again, as the program waits for them."""
        if self._is_forgotten:
            self._is_forgotten, self._asks = False, True
            self._wakeup.wake()

    def report(self, job: Job) -> None:
        """See ``Reporting``."""
        if self._is_gone(job._shard):
            self._came_late(job)
            return
        # One whose lease had run out is reported as well: unless somebody has begun it anew by now, that counts.
        other = self.hand.setdefault(job._place, job)
        if other is not job:  # this worker got it a second time
            if other._has_begun or job._outcome is not JobOutcome.DONE:
                self._came_late(job)
                return
            self.hand[job._place] = job
            self._news.unpark_all()  # the other one is not begun any more
        self._reported.append(job)
        self._wakeup.wake()

    def extend(self, job: Job) -> None:
        """See ``Reporting``."""
        if self.hand.get(job._place) is job:
            self._extended[job._place] = None
            self._wakeup.wake()

    async def wait_settled(self, job: Job) -> None:
        """See ``Reporting``."""
        while self.hand.get(job._place) is job:
            if self._failure is not None:
                raise self._failure
            await self._news.park()
        if not job._counts:
            raise LeaseLost(
                f"a job of queue {job.queue!r} was done after its lease had ended, and that does not count: it was "
                "begun or done a second time, is a dead letter, or the bridge has another log by now"
            )

    def adopt(self, job: Job) -> None:
        """Adopt a job that is at work here, of a shard that is at this member now."""
        job._reporting = self
        if self._is_gone(job._shard):
            self._lose(job)
            return
        self.hand[job._place] = job
        if job._outcome is not None:
            self._reported.append(job)
            self._wakeup.wake()

    def give_up(self, heir: Callable[[int], MemberLink | None]) -> None:
        """Leave jobs to the links to those members at which their shards are now; what was not begun comes again."""
        for place, job in tuple(self.hand.items()):
            other = heir(place.shard)
            if other is not None and other is not self:
                del self.hand[place]
                if job._has_begun:
                    other.adopt(job)
        self._news.unpark_all()

    async def leave(self) -> None:
        """Wait until every outcome is on the disk, then disconnect: the member has the rest back."""
        while self._failure is None and any(job._outcome is not None for job in self.hand.values()):
            await self._news.park()
        self.is_leaving = True
        self._wakeup.wake()
        self._news.unpark_all()
        while self._is_connected:
            await self._news.park()

    # -- what the bridge does -------------------------------------------------------------------------------

    def _begin(self) -> TakeJobs:
        self._begin_again()
        held = tuple(job._place for job in self.hand.values() if job._outcome is None)
        known = tuple({job._shard for job in self.hand.values()}) if held else None
        return replace(self._receiver.terms(), held=held, shards=known)

    def _opened(self, answer: object) -> None:
        taking = read_reply(TakeAnswer, answer)
        # What the bridge's clock says is mapped to the earliest moment at which it can have said it: of a job that
        # expires none is begun late.
        self._offset = self._terms_sent - taking.now
        self._know(taking.shards)

    def _begin_again(self) -> None:
        """Forget what came through a tunnel that is no more, but for what has begun; report that again."""
        for place, job in tuple(self.hand.items()):
            if not job._has_begun:
                del self.hand[place]
        self._begun, self._extended, self._expired = [], {}, []
        self._suspects.clear()
        self._news.unpark_all()
        self._is_forgotten = False
        self._reported = [job for job in self.hand.values() if job._outcome is not None]
        if self._reported:
            self._wakeup.wake()

    def _know(self, shards: Sequence[str]) -> None:
        """Note the ids of the member's shards."""
        self._shards = {number_of(shard): shard for shard in shards}
        for job in [job for job in self.hand.values() if self._is_gone(job._shard)]:
            del self.hand[job._place]
            self._lose(job)
        self._reported = [job for job in self._reported if self.hand.get(job._place) is job]

    def _lose(self, job: Job) -> None:
        """Mark a job as lost that is not in the log any more."""
        job.is_lost = True
        self._came_late(job)
        self._news.unpark_all()

    def _report(self) -> JobReport | None:
        """See ``MemberStream``.  At the bridge it comes to ``OpenQueue._receive_report``."""
        extended = [*self._extended]
        room = MAX_LIMIT
        first: list[tuple[Place, ...]] = []
        for places in (self._begun, extended, self._expired):
            first.append(tuple(places[:room]))
            del places[:room]
            room -= len(first[-1])
        reported, self._reported = self._reported[:room], self._reported[room:]
        self._extended = dict.fromkeys(extended)
        if not room:
            self._wakeup.wake()  # there may be more
        if not self._asks and not reported and not any(first):
            return None
        self._asks = False
        done: list[Place] = []
        failed: list[JobFailure] = []
        released: list[Place] = []
        for job in reported:
            job._sent += 1
            if job._outcome is JobOutcome.FAILED:
                failed.append(JobFailure(*job._place, job.attempt, *job._failure))
            else:
                (done if job._outcome is JobOutcome.DONE else released).append(job._place)
        begun, again, expired = first
        return JobReport(
            begun=begun,
            extended=again,
            expired=expired,
            done=tuple(done),
            failed=tuple(failed),
            released=tuple(released),
        )

    async def _receive(self, message: object, tunnel: Tunnel) -> None:
        """See ``MemberStream``.  At the bridge ``OpenQueue._send_all`` has sent it."""
        news = read_reply(JobNews, message)
        if news.taken:
            for place in news.taken:
                self._give_up(place)
        else:
            late = frozenset(news.late)
            for place in news.settled:
                self._settle(place, is_late=place in late)
        for place in news.confirmed:
            job = self.hand.get(place)
            if job is not None:
                job._has_begun = True
            self._news.unpark_all()
        self._suspects.update(news.suspect)
        if news.jobs:
            self._receive_jobs([await self._job(sent, tunnel) for sent in news.jobs])

    def _give_up(self, place: Place) -> None:
        """Give up a job that is not this worker's any more.  If that crosses its report, the answer to that decides."""
        job = self.hand.get(place)
        if job is not None:
            job.is_lost = job._is_taken = True
        if job is None or job._outcome is None:
            self._settle(place, is_late=False)

    def _settle(self, place: Place, *, is_late: bool) -> None:
        job = self.hand.pop(place, None)
        if job is None:
            self._asks = True  # it was taken back before it came, which is no sign that this worker stands still
            self._wakeup.wake()
        elif job._outcome is None:
            job.is_lost = True
            self._is_forgotten = True
            self._receiver.arrived(())  # a task that waits for a job asks for others
        elif is_late and (job._is_taken or (job._sent == 1 and not job.is_lost)):
            self._came_late(job)  # else it was purged, or a report that nobody has answered may be why
        self._news.unpark_all()

    def _came_late(self, job: Job) -> None:
        if job._outcome is JobOutcome.DONE:
            job._counts = False
            _log.warning(
                "a job of queue %s was done after its lease had ended: it was begun or done a second time, or is a "
                "dead letter",
                self._queue, extra={"queue": self._queue, "count": job.attempt},
            )  # fmt: skip

    def _receive_jobs(self, jobs: Sequence[Job]) -> None:
        fresh: list[Job] = []
        for job in jobs:
            known = self.hand.get(job._place)
            if known is not None and known._has_begun:
                # The bridge was restarted and gives it out again: it is at work here, or its outcome in progress.
                if known._outcome is None:
                    self._begun.append(job._place)
                    self._wakeup.wake()
                continue
            job._is_suspect = job._place in self._suspects
            self._suspects.discard(job._place)
            self.hand[job._place] = job
            fresh.append(job)
        self._receiver.arrived(fresh)

    async def _job(self, sent: SentJob, tunnel: Tunnel) -> Job:
        received = ReceivedJob(
            queue=self._queue,
            place=Place(sent.shard, sent.offset),
            attempt=sent.attempt,
            deadline=math.inf if sent.expires is None else sent.expires + self._offset,
            key=sent.key,
            headers=sent.headers,
            sender=sent.sender,
            timestamp=sent.timestamp / 1e6,
            payload=await receive_value_untrusted(sent.value, sent.encoding, tunnel),
            shard=self._shards.get(sent.shard, ""),
        )
        return Job(self, received)
