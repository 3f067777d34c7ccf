"""Job: one piece of work that a worker has in hand."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, cast, final

import trio

from iris.kernel.errors import summary_of, text_of
from iris.kernel.tasks import checkpointed
from iris.patterns.bridge_protocol import Place

_log: Final = logging.getLogger("iris")

MAX_ERROR: Final = 1000
"""Characters of an error that are kept."""


class JobOutcome(enum.Enum):
    """Outcome of a job, as its worker reports it."""

    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"


class Reporting(Protocol):
    """Port of a job to the member that has given it: its ``MemberLink``."""

    async def begin(self, job: Job) -> bool:
        """Begin a job; return False if it is not this worker's any more, or has expired."""
        ...

    def report(self, job: Job) -> None:
        """Report a job whose outcome is known."""
        ...

    def extend(self, job: Job) -> None:
        """Let the lease of a job begin anew."""
        ...

    async def wait_settled(self, job: Job) -> None:
        """Wait until the outcome of a job is on the bridge's disk."""
        ...


@final
class ReceivedJob(NamedTuple):
    """A job as a bridge has sent it; see ``Job`` for the fields."""

    queue: str
    place: Place
    attempt: int
    deadline: float
    """Time at which it expires, on trio's clock; infinity if never."""
    key: str | None
    headers: Mapping[str, str]
    sender: str
    timestamp: float
    payload: Any
    shard: str
    """Id of its shard; empty if the bridge is of a former version and sends none."""


@final
class Job:
    """A job that this worker has begun.  Made by iterating over ``WorkQueue.receive``.

    Use it as a context manager: leaving the block reports the job as done.  An ``Exception`` in the block is logged and
    goes no further: the job is tried again later, or becomes a dead letter.  So it is after ``SystemExit``, which goes
    on and ends the program.  Cancelling the block, or another ``BaseException``, returns the job at once, and no
    attempt is counted.

    Leaving the block does not wait for the bridge's disk.  The report is repeated until it is on it, as long as the
    queue's block is open, and the job counts as in hand so long.  ``commit`` waits.

    Attributes:
        queue: name of the queue.
        payload: value that was put, as it travelled.
        key: key it was put with.  None if there is none.
        headers: texts that were put beside the payload, str to str.  Nobody has verified them.
        sender: the cluster that has put it, as its certificate proves.
        attempt: number of the attempt, 1 for the first one.
        timestamp: time at which the bridge stored it, in seconds since 1970.
        is_lost: True once its lease has run out, or the bridge has it back for another reason: another worker may have
            it.
    """

    __slots__ = (
        "_counts", "_deadline", "_failure", "_has_begun", "_is_suspect", "_is_taken", "_outcome", "_place",
        "_reporting", "_sent", "_shard",
        "attempt", "headers", "is_lost", "key", "payload", "queue", "sender", "timestamp",
    )  # fmt: skip

    def __init__(self, reporting: Reporting, received: ReceivedJob) -> None:
        self.queue: Final = received.queue
        self.payload: Final = received.payload
        self.key: Final = received.key
        self.headers: Final = received.headers
        self.sender: Final = received.sender
        self.attempt: Final = received.attempt
        self.timestamp: Final = received.timestamp
        self.is_lost = False
        self._reporting = reporting
        self._place: Final = received.place
        self._shard: Final = received.shard
        """Id of its shard; empty if the bridge is of a former version and sends none."""
        self._deadline: Final = received.deadline
        """Time at which it expires, on trio's clock; infinity if never."""
        self._outcome: JobOutcome | None = None
        self._failure: tuple[str, bool] = ("", False)
        """Text of the error, and True if it is permanent."""
        self._has_begun = False
        self._sent = 0
        """Times that its outcome went to the bridge: again when the tunnel broke before there was an answer."""
        self._is_taken = False
        """True once the bridge has reported that another worker may have it."""
        self._counts = True
        """False once the bridge has not accepted this outcome for the job."""
        self._is_suspect = False
        """True if it begins only when the bridge has confirmed that it knows: the job may have ended another worker."""

    def __repr__(self) -> str:
        return f"<Job {self._place[0]}:{self._place[1]} of {self.queue!r}, attempt {self.attempt}>"

    @checkpointed
    async def commit(self) -> None:
        """Report the job as done, and wait until that is on the bridge's disk.

        It waits for a bridge that is down.  Cancelling it takes nothing back.

        Raises:
            LeaseLost: its lease had ended, and before the report came another worker had got or done it, or it was a
                dead letter: what that one does counts.  If it was given to nobody meanwhile, the report counts.  Or
                the bridge's log was lost and made anew, and does not hold it any more.
            trio.ClosedResourceError: the queue's block has ended, and it is not known whether the bridge knows.  Or the
                job was reported as failed, or released, before: that counts.
            IrisError: the worker has failed for good, as iterating over it says, and the same is not known.
        """
        self._decide(JobOutcome.DONE)
        await trio.lowlevel.checkpoint()
        if self._outcome is not None and self._outcome is not JobOutcome.DONE:
            raise trio.ClosedResourceError(f"{self!r} was {self._outcome.value} before, so nobody takes it for done")
        reporting = None
        while reporting is not self._reporting:  # its member may get another name
            reporting = self._reporting
            await reporting.wait_settled(self)

    def fail(self, error: str = "", *, permanent: bool = False) -> None:
        """Report that this attempt has failed: the job is tried again after a pause that doubles with each attempt.

        Args:
            error: text kept with the job, and in its dead letter; 1,000 characters of it.
            permanent: True if trying again is of no use: it becomes a dead letter now.

        A job that was reported before stays as it is.
        """
        if self._outcome is None:
            self._failure = (text_of(error)[:MAX_ERROR], permanent)
        self._decide(JobOutcome.FAILED)

    def release(self) -> None:
        """Return the job, for any worker to take; no attempt is counted."""
        self._decide(JobOutcome.RELEASED)

    def extend(self) -> None:
        """Let the lease begin anew: the job takes longer."""
        if self._outcome is None:
            self._reporting.extend(self)

    def _decide(self, outcome: JobOutcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._reporting.report(self)

    async def __aenter__(self) -> Self:
        """Return the job."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Report the outcome of the job; keep an ``Exception``."""
        return self._leave(error)

    def _leave(self, error: BaseException | None) -> bool:
        if error is None:
            self._decide(JobOutcome.DONE)
        elif is_failure(error):
            if self._outcome is None:
                _log.error(
                    "attempt %d of a job of queue %s has failed: %s",
                    self.attempt, self.queue, summary_of(error),
                    exc_info=error, extra={"queue": self.queue, "reason": summary_of(error), "count": self.attempt},
                )  # fmt: skip
            self.fail(summary_of(error))
        else:
            self.release()
        return isinstance(error, Exception)


def is_failure(error: BaseException) -> bool:
    """Return whether an error makes an attempt fail: what ends the program does, and to be cancelled does not."""
    if isinstance(error, Exception | SystemExit):
        return True
    if not isinstance(error, BaseExceptionGroup):
        return False
    return cast("BaseExceptionGroup[BaseException]", error).subgroup(SystemExit) is not None
