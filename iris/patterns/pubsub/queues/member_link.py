"""Member link: the jobs that one member of a bridge has given to a worker, and the reports about them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast, final

import trio

from iris.kernel.errors import LeaseLost, RemoteProtocolError
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import decode_payload_untrusted, join_payload
from iris.patterns.pubsub.queues.bridge_members import error_of
from iris.patterns.pubsub.queues.job import Job, JobOutcome, ReceivedJob
from iris.patterns.pubsub.queues.terms import MAX_LIMIT
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")

Place = tuple[int, int]

_SHARD: Final = re.compile(r"[0-9]{1,9}@[ -~]{1,64}")
"""An id of a shard: its number, and what distinguishes its log from others."""

TEXT: Final = "utf-8"
PACKED: Final = "msgpack"
"""Encodings of the value of a job; bytes have none."""


class JobReceiver(Protocol):
    """Receiver of the jobs of a queue, from all members.  No method blocks."""

    def terms(self) -> dict[str, Any]:
        """Return the message that a member gets first.  Called at each connection."""
        ...

    def arrived(self, jobs: Sequence[Job]) -> None:
        """Receive jobs that have come; none when the tasks that wait for some have to ``MemberLink.ask``."""
        ...


@final
class MemberLink:
    """The jobs of one queue at one member.

    Args:
        queue: name of the queue.
        address: cluster at which the member is found.
        receiver: receiver of its jobs.
    """

    def __init__(self, queue: str, address: str, receiver: JobReceiver) -> None:
        self.address: Final = address
        self.hand: Final[dict[Place, Job]] = {}
        """Jobs that came and are not settled."""
        self._queue = queue
        self._receiver = receiver
        self._shards: dict[int, str] = {}
        """Ids of its shards by number.  A log that was lost and made anew has another one."""
        self._begun: list[Place] = []
        self._reported: list[Job] = []
        self._extended: dict[Place, None] = {}
        self._expired: list[Place] = []
        self._suspects: set[Place] = set()
        """Places of jobs that come next, and that may have ended another worker."""
        self._is_forgotten = False
        """True if jobs were taken back: no others come before this worker sends something."""
        self._asks = False
        self._wakeup = Wakeup()
        self._settled = trio.lowlevel.ParkingLot()
        self._failure: Exception | None = None
        """Error because of which nothing is settled any more.  None as long as there is none."""
        self._is_connected = False
        self.is_leaving = False
        """True once no more jobs are to come."""

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
                while self._is_asked(job):
                    await self._settled.park()
            except BaseException:
                job.release()
                raise
            return job._has_begun
        job._has_begun = True
        # Its report goes out before the job begins: of one that ends this process the bridge knows it then, mostly.
        await trio.lowlevel.cancel_shielded_checkpoint()
        return True

    def _is_asked(self, job: Job) -> bool:
        here = self.hand.get(job._place) is job and not self.is_leaving and self._failure is None
        return here and not job._has_begun

    def ask(self) -> None:
        """Ask for jobs again, as the program waits for them."""
        if self._is_forgotten:
            self._is_forgotten, self._asks = False, True
            self._wakeup.wake()

    def report(self, job: Job) -> None:
        """See ``Reporting``."""
        if self._is_gone(job):
            self._came_late(job)
            return
        # One whose lease had run out is reported as well: unless somebody has begun it anew by now, that counts.
        other = self.hand.setdefault(job._place, job)
        if other is not job:  # this worker got it a second time
            if other._has_begun or job._outcome is not JobOutcome.DONE:
                self._came_late(job)
                return
            self.hand[job._place] = job
            self._settled.unpark_all()  # the other one is not begun any more
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
            await self._settled.park()
        if not job._counts:
            raise LeaseLost(
                f"a job of queue {job.queue!r} was done after its lease had ended, and that does not count: it was "
                "begun or done a second time, is a dead letter, or the bridge has another log by now"
            )

    def adopt(self, job: Job) -> None:
        """Adopt a job that is at work here, of a shard that is at this member now."""
        job._reporting = self
        if self._is_gone(job):
            self._lose(job)
            return
        self.hand[job._place] = job
        if job._outcome is not None:
            self._reported.append(job)
            self._wakeup.wake()

    def give_up(self, heirs: Callable[[int], MemberLink | None]) -> None:
        """Leave jobs to the links to those members at which their shards are now; what was not begun comes again."""
        for place, job in tuple(self.hand.items()):
            heir = heirs(place[0])
            if heir is not None and heir is not self:
                del self.hand[place]
                if job._has_begun:
                    heir.adopt(job)
        self._settled.unpark_all()

    async def leave(self) -> None:
        """Wait until every outcome is on the disk, then disconnect: the member has the rest back."""
        while self._failure is None and any(job._outcome is not None for job in self.hand.values()):
            await self._settled.park()
        self.is_leaving = True
        self._wakeup.wake()
        self._settled.unpark_all()
        while self._is_connected:
            await self._settled.park()

    def end(self, error: Exception) -> None:
        """Raise an error in all tasks that wait, now or later."""
        self._failure = self._failure or error
        self._settled.unpark_all()

    # -- what the bridge does -------------------------------------------------------------------------------

    async def run(self, tunnel: Tunnel, connected: Callable[[], None]) -> None:
        """Exchange reports and jobs through a tunnel until that ends.

        Raises:
            TunnelBroken: it has.
            NotAllowed, RemoteError: the member refuses, and why.
            RemoteProtocolError: it sent something else.
        """
        self._begin_again()
        asked = trio.current_time()
        held = [number for job in self.hand.values() if job._outcome is None for number in job._place]
        of = {"shards": [*{job._shard for job in self.hand.values()}]} if held else {}
        await tunnel.send({**self._receiver.terms(), "held": held, **of})
        # What the bridge's clock says is mapped to the earliest moment at which it can have said it: of a job that
        # expires none is begun late.
        now, shards = _now_untrusted(await tunnel.receive())
        offset = asked - now
        self._know(shards)
        connected()
        self._is_connected = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, tunnel)
                await self._receive(tunnel, offset)
                nursery.cancel_scope.cancel()
        finally:
            self._is_connected = False
            self._settled.unpark_all()

    def _begin_again(self) -> None:
        """Forget what came through a tunnel that is no more, but for what has begun; report that again."""
        for place, job in tuple(self.hand.items()):
            if not job._has_begun:
                del self.hand[place]
        self._begun, self._extended, self._expired = [], {}, []
        self._suspects.clear()
        self._settled.unpark_all()
        self._is_forgotten = False
        self._reported = [job for job in self.hand.values() if job._outcome is not None]
        if self._reported:
            self._wakeup.wake()

    def _know(self, shards: Sequence[str]) -> None:
        """Note the ids of the member's shards."""
        self._shards = {int(shard.partition("@")[0]): shard for shard in shards}
        for job in [job for job in self.hand.values() if self._is_gone(job)]:
            del self.hand[job._place]
            self._lose(job)
        self._reported = [job for job in self._reported if self.hand.get(job._place) is job]

    def _is_gone(self, job: Job) -> bool:
        """Return whether the log that a job is of was made anew: its place means another job by now."""
        return job._shard not in ("", self._shards.get(job._place[0], job._shard))

    def _lose(self, job: Job) -> None:
        """Mark a job as lost that is not in the log any more."""
        job.is_lost = True
        self._came_late(job)
        self._settled.unpark_all()

    async def _send(self, tunnel: Tunnel) -> None:
        while not self.is_leaving:
            await self._wakeup.wait()
            report = self._pop_report()
            if report or self._asks:
                self._asks = False
                await tunnel.send(report)
        await tunnel.send_eof()

    def _pop_report(self) -> dict[str, Any]:
        report: dict[str, Any] = {}
        extended = [*self._extended]
        room = MAX_LIMIT
        for name, places in (("begun", self._begun), ("extended", extended), ("expired", self._expired)):
            if some := places[:room]:
                report[name] = [number for place in some for number in place]
                del places[:room]
                room -= len(some)
        reported, self._reported = self._reported[:room], self._reported[room:]
        self._extended = dict.fromkeys(extended)
        if not room:
            self._wakeup.wake()  # there may be more
        for job in reported:
            job._sent += 1
            match job._outcome:
                case JobOutcome.DONE:
                    report.setdefault("done", []).extend(job._place)
                case JobOutcome.FAILED:
                    report.setdefault("failed", []).append([*job._place, job.attempt, *job._failure])
                case _:
                    report.setdefault("released", []).extend(job._place)
        return report

    async def _receive(self, tunnel: Tunnel, offset: float) -> None:
        async for message in tunnel:
            error = error_of(message)
            if error is not None:
                raise error
            if not isinstance(message, dict):
                raise _not_understood()
            fields = cast("dict[str, Any]", message)
            if (taken := fields.get("taken")) is not None:
                for place in _places_untrusted(taken):
                    self._give_up(place)
            else:
                late = frozenset(_places_untrusted(fields.get("late")))
                for place in _places_untrusted(fields.get("settled")):
                    self._settle(place, is_late=place in late)
            for place in _places_untrusted(fields.get("confirmed")):
                job = self.hand.get(place)
                if job is not None:
                    job._has_begun = True
                self._settled.unpark_all()
            self._suspects.update(_places_untrusted(fields.get("suspect")))
            entries = fields.get("jobs")
            if entries is not None:
                self._receive_jobs(
                    [await self._job_untrusted(entry, offset, tunnel) for entry in _entries_untrusted(entries)]
                )

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
        self._settled.unpark_all()

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

    async def _job_untrusted(self, entry: object, offset: float, tunnel: Tunnel) -> Job:
        match entry:
            case [
                int(shard), int(at), int(attempt), None | float() | int() as expires, None | str() as key,
                dict() as headers, str(sender), str(encoding), int(timestamp), bytes() | int() as value,  # pyright: ignore[reportUnknownVariableType]
            ]:  # fmt: skip
                pass
            case _:
                raise _not_understood()
        if isinstance(value, int):
            value = await receive_large_untrusted(tunnel, value)
        received = ReceivedJob(
            queue=self._queue,
            place=(shard, at),
            attempt=attempt,
            deadline=math.inf if expires is None else expires + offset,
            key=key,
            headers=cast("dict[str, str]", headers),
            sender=sender,
            timestamp=timestamp / 1e6,
            payload=decode_value_untrusted(value, encoding),
            shard=self._shards.get(shard, ""),
        )
        return Job(self, received)


def decode_value_untrusted(value: bytes, encoding: str) -> Any:
    """Return the payload of which a bridge's log holds ``value``.

    Raises:
        RemoteProtocolError: it is encoded otherwise.
    """
    try:
        if encoding == TEXT:
            return value.decode()
        return decode_payload_untrusted(join_payload(value, packed=True)) if encoding == PACKED else value
    except UnicodeDecodeError:
        raise _not_understood() from None


async def receive_large_untrusted(tunnel: Tunnel, size: int) -> bytes:
    """Receive a value that follows in pieces.

    Raises:
        RemoteProtocolError: something else follows.
    """
    pieces: list[bytes] = []
    missing = size
    while missing > 0:
        piece = await tunnel.receive()
        if not isinstance(piece, bytes):
            raise _not_understood()
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _now_untrusted(answer: object) -> tuple[float, list[str]]:
    """Return the first answer of a member: its clock, and the ids of its shards."""
    error = error_of(answer)
    if error is not None:
        raise error
    match answer:
        case {"now": float(now)}:
            ids = cast("dict[str, object]", answer).get("shards", [])
        case _:
            raise _not_understood()
    shards = cast("list[object]", ids) if isinstance(ids, list) else [None]
    if not all(isinstance(shard, str) and _SHARD.fullmatch(shard) for shard in shards):
        raise _not_understood()
    return now, cast("list[str]", shards)


def _places_untrusted(value: object) -> list[Place]:
    if value is None:
        return []
    numbers = cast("list[object]", value) if isinstance(value, list) else []
    if not numbers or len(numbers) % 2 or not all(type(number) is int for number in numbers):
        raise _not_understood()
    whole = cast("list[int]", numbers)
    return list(zip(whole[::2], whole[1::2], strict=True))


def _entries_untrusted(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _not_understood()
    return cast("list[object]", value)


def _not_understood() -> RemoteProtocolError:
    return RemoteProtocolError("a member of the bridge sent jobs in a form that is not understood")
