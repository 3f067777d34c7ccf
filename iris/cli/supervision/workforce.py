"""Workforce: which workers are to start, to leave and to be killed.  No IO, no clock.

A seat is one of the N workers that are wanted.  What may happen to the worker in it:

    STARTING    it has been started                        SERVING, or it ends: started again with back-off
    SERVING     it is a member of its clusters             LEAVING, or it ends: started again
    LEAVING     it has been told to, and drains            it ends, or is killed when its time is over

To replace the workers, one seat after the other gets a second worker.  When that serves, the first one leaves, and when
it has ended, the next seat is dealt with: there are never more than N + 1.  If the new one does not come to serve, all
old ones stay.

If no worker has ever served and none is starting any more, the supervisor ends with an error: what is wrong is in the
command line, the program or the machine, and the parent has to hear of that.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from iris.cli.supervision.worker import Place

HEALTHY: Final = 5.0
"""Seconds of service after which a worker that ends is started again at once, and the back-off begins anew."""

FIRST_DELAY: Final = 0.5
MAX_DELAY: Final = 30.0
"""Bounds of the back-off in seconds; it doubles with each end of a worker that was not healthy."""

SLOW: Final = 30.0
"""Seconds in which a worker serves; one that does not is named in the log, and goes on."""

FAILED: Final = 1

_OTHER_STATUSES: Final = 126
"""Exit statuses from here on are of shells and signals."""


class State(Enum):
    """State of a worker."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


@final
@dataclass(slots=True, eq=False, kw_only=True)
class Worker:
    """One process.

    Attributes:
        place: which ports it has.
        since: when its state began.
        pid: its process; 0 until it is known.
        error: what it said before it ended; empty if nothing.
        slow: True once its slow start is in the log.
    """

    place: Place
    since: float
    state: State = State.STARTING
    pid: int = 0
    error: str = ""
    slow: bool = False

    def __str__(self) -> str:
        return f"worker {self.pid}" if self.pid else "a worker"


@final
@dataclass(slots=True, eq=False, kw_only=True)
class _Seat:
    """One of the workers that are wanted.

    Attributes:
        worker: who has it; None until ``due``.
        successor: who starts, to replace ``worker``.
        failures: ends since a worker of this seat was healthy.
    """

    worker: Worker | None = None
    successor: Worker | None = None
    due: float = -math.inf
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start the process of a worker; then call ``started`` or ``ended``."""

    worker: Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """Send a worker SIGTERM."""

    worker: Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Send a worker SIGKILL."""

    worker: Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Write a line to the log; as an error if ``wrong``."""

    text: str
    wrong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End the supervisor with an exit status."""

    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Tell the supervisor's parent that all workers serve."""


Effect = Announce | Start | Terminate | Kill | Say | Finish


@final
class Workforce:
    """The workers of one supervisor.

    Args:
        count: how many are wanted, at least 1.
        drain_timeout: seconds that a worker which leaves has for what it has begun.
        grace: seconds that it has beyond that, to say goodbye and to end; then it is killed.
    """

    def __init__(self, count: int, drain_timeout: float, grace: float) -> None:
        self.count: Final = count
        self.drain_timeout: Final = drain_timeout
        self.patience: Final = drain_timeout + grace
        self.stopping = False
        self._seats = [_Seat() for _ in range(count)]
        self._leaving: dict[Worker, float] = {}
        """Workers that leave, with the time at which they are killed."""
        self._replacing = False
        self._to_replace: list[_Seat] = []
        self._served = self._complete = False
        """True once any worker has served, and once all have at one time."""
        self._unserved: dict[str, int] = {}
        """Errors of workers that ended before any served, and their exit statuses."""
        self._said = ""
        """Last error of a worker that did not start."""
        self._status = 0

    @property
    def workers(self) -> list[Worker]:
        """All workers that have not ended."""
        seated = [worker for seat in self._seats for worker in (seat.worker, seat.successor) if worker is not None]
        return [*seated, *self._leaving]

    @property
    def deadline(self) -> float:
        """Time to call ``expire``; infinite if never."""
        times = [seat.due for seat in self._seats if seat.worker is None and not self.stopping]
        times += [one.since + SLOW for one in self.workers if one.state is State.STARTING and not one.slow]
        return min([*times, *self._leaving.values()], default=math.inf)

    def begin(self, now: float) -> list[Effect]:
        """Start all workers."""
        return [Say(text=f"supervisor: starting {_workers(self.count)}"), *self.expire(now)]

    def started(self, worker: Worker, pid: int) -> None:
        """Note the process of a worker."""
        worker.pid = pid

    def serving(self, worker: Worker, now: float) -> list[Effect]:
        """Note that a worker serves: whom it replaces leaves."""
        if worker.state is not State.STARTING:
            return []
        worker.state, worker.since = State.SERVING, now
        effects: list[Effect] = []
        self._said = ""
        if not self._served:
            self._served = True
            effects += self._start_late(now)
        for seat in self._seats:
            old = seat.worker
            if seat.successor is worker and old is not None:
                seat.worker, seat.successor = worker, None
                effects.append(Say(text=f"{worker} serves: {old} leaves"))
                effects += self._leave(old, now)
        if not self._complete and all(seat.worker and seat.worker.state is State.SERVING for seat in self._seats):
            self._complete = True
            text = f"supervisor: {_workers(self.count)} {'serves' if self.count == 1 else 'serve'}"
            effects += [Say(text=text), Announce()]
        return [*effects, *self._replace_next(now)]

    def failed(self, worker: Worker, error: str) -> None:
        """Note the error by which a worker is about to end."""
        worker.error = error

    def ended(self, worker: Worker, status: int, now: float) -> list[Effect]:
        """Deal with the end of a worker's process.

        Args:
            status: its exit status; the negative number of the signal that killed it.
        """
        if self._leaving.pop(worker, None) is not None:
            if self.stopping:
                return [] if self.workers else [Finish(status=self._status)]
            return self._replace_next(now)
        seat = next(seat for seat in self._seats if worker in (seat.worker, seat.successor))
        if worker.state is State.STARTING and status == -signal.SIGHUP:
            # The signal was for the supervisor, and went to all processes of its group: this one was loading Python.
            return self._start_same(seat, worker, now)
        if seat.successor is worker:
            seat.successor = None
            self._to_replace.clear()
            self._replacing = False
            text = f"{worker} did not start: {_cause(worker, status)}; nothing more is replaced, and who serves goes on"
            return [Say(text=text, wrong=True)]
        seat.worker, seat.successor = seat.successor, None
        if seat in self._to_replace:  # what is started there now is new
            self._to_replace.remove(seat)
        if worker.state is State.SERVING:
            effects = self._serve_again(seat, worker, status, now)
        else:
            effects = self._start_again(seat, worker, status, now)
        return [*effects, *self.expire(now), *self._replace_next(now)]

    def replace(self, now: float) -> list[Effect]:
        """Replace all workers, one after the other; what waits for its back-off is started now."""
        if self.stopping:
            return []
        self._said = ""
        self._replacing = True
        # The first port first: then the second new worker takes it, and seeds that name it lead to somebody.
        seated = [(seat.worker.place.listen, seat) for seat in self._seats if seat.worker is not None]
        self._to_replace = [seat for _, seat in sorted(seated, key=lambda one: one[0])]
        for seat in self._seats:
            if seat.worker is None:
                seat.due = now
        told = Say(text=f"supervisor: replacing {_workers(self.count)}, one after the other")
        return [told, *self.expire(now), *self._replace_next(now)]

    def stop(self, number: int, now: float) -> list[Effect]:
        """Have all workers leave; the second time kill them.

        Args:
            number: the signal.
        """
        workers = self.workers
        if self.stopping:
            return [*(Kill(worker=worker) for worker in workers), Finish(status=128 + number)]
        self.stopping = True
        if not workers:
            return [Finish(status=0)]
        name = signal.Signals(number).name
        text = f"supervisor: {name}: {_workers(len(workers))} {'leaves' if len(workers) == 1 else 'leave'} within "
        effects: list[Effect] = [Say(text=f"{text}{self.drain_timeout:g} s; a second signal ends them at once")]
        for worker in workers:
            if worker not in self._leaving:
                effects += self._leave(worker, now)
        for seat in self._seats:
            seat.worker = seat.successor = None
        return effects

    def expire(self, now: float) -> list[Effect]:
        """Start what is due, kill who had to leave by now, and name who is slow to start."""
        effects: list[Effect] = []
        for worker, deadline in self._leaving.items():
            if deadline <= now:
                self._leaving[worker] = math.inf
                self._status = FAILED if self.stopping else self._status
                text = f"{worker} has not left within {self.patience:g} s and is killed"
                effects.append(Say(text=text, wrong=True))
                effects.append(Kill(worker=worker))
        for worker in self.workers:
            if worker.state is State.STARTING and not worker.slow and worker.since + SLOW <= now:
                worker.slow = True
                effects.append(Say(text=f"{worker} does not serve after {SLOW:g} s", wrong=True))
        for seat in self._seats:
            if seat.worker is None and seat.due <= now and not self.stopping:
                seat.worker = self._started(seat, now)
                effects.append(Start(worker=seat.worker))
        return effects

    def _started(self, seat: _Seat, now: float) -> Worker:
        taken = {worker.place.listen for worker in self.workers}
        listen = next(number for number in range(len(taken) + 1) if number not in taken)
        place = Place(listen=listen, metrics=self._seats.index(seat), follows=seat.worker is not None)
        return Worker(place=place, since=now)

    def _start_same(self, seat: _Seat, worker: Worker, now: float) -> list[Effect]:
        """Start a worker again in the place of one that was starting."""
        if seat.successor is worker:
            seat.successor = None
            seat.successor = again = self._started(seat, now)
        else:
            seat.worker = None
            seat.worker = again = self._started(seat, now)
        return [Start(worker=again)]

    def _leave(self, worker: Worker, now: float) -> list[Effect]:
        worker.state, worker.since = State.LEAVING, now
        self._leaving[worker] = now + self.patience
        return [Terminate(worker=worker)]

    def _replace_next(self, now: float) -> list[Effect]:
        """Go on with the next seat, when nobody leaves or is about to replace somebody."""
        if not self._replacing or self.stopping or self._leaving or any(seat.successor for seat in self._seats):
            return []
        if self._to_replace:
            seat = self._to_replace.pop(0)
            seat.successor = self._started(seat, now)
            return [Start(worker=seat.successor)]
        self._replacing = False
        return [Say(text=f"supervisor: {_workers(self.count)} replaced")]

    def _serve_again(self, seat: _Seat, worker: Worker, status: int, now: float) -> list[Effect]:
        """Deal with the death of a worker that served."""
        healthy = now - worker.since >= HEALTHY
        seat.failures = 0 if healthy else seat.failures + 1
        if seat.worker is not None:
            return [Say(text=f"{worker} {_cause(worker, status)}; another one is starting", wrong=True)]
        delay = _delay(seat.failures)
        seat.due = now + delay
        text = f"{worker} {_cause(worker, status)}; starting another{_in(delay)}"
        return [Say(text=text, wrong=True)]

    def _start_again(self, seat: _Seat, worker: Worker, status: int, now: float) -> list[Effect]:
        """Deal with a worker that ended before it served."""
        cause = _cause(worker, status)
        if seat.worker is not None:
            return [Say(text=f"{worker} did not start: {cause}; another one is starting", wrong=True)]
        seat.failures += 1
        if self._served:
            delay = _delay(seat.failures)
            seat.due = now + delay
            return self._start_failed(f"{worker} did not start: ", cause, delay)
        seat.due = math.inf
        text = worker.error or f"{worker} {cause} before it served"
        self._unserved[text] = status
        if self.workers:
            return []
        said: list[Effect] = [Say(text=text, wrong=True) for text in self._unserved]
        return [*said, Finish(status=status if 0 < status < _OTHER_STATUSES else FAILED)]

    def _start_late(self, now: float) -> list[Effect]:
        """Start what ended before any worker served: one does, so another attempt makes sense."""
        delay, effects = _delay(1), list[Effect]()
        for seat in self._seats:
            if seat.worker is None:
                seat.due = now + delay
        for text in self._unserved:
            effects += self._start_failed("a worker did not start: ", text, delay)
        self._unserved.clear()
        return effects

    def _start_failed(self, before: str, cause: str, delay: float) -> list[Effect]:
        """Say why a worker did not start, unless that was the last thing that was said of it."""
        if cause == self._said:
            return []
        self._said = cause
        text = f"{before}{cause}; starting another{_in(delay)}, then with back-off up to {MAX_DELAY:g} s"
        return [Say(text=text, wrong=True)]


def _delay(failures: int) -> float:
    return 0.0 if failures == 0 else min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 16))


def _in(delay: float) -> str:
    return f" in {delay:g} s" if delay else ""


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _cause(worker: Worker, status: int) -> str:
    """Return how a process ended."""
    return worker.error or describe_end(status)


def describe_end(status: int) -> str:
    """Return how a process ended, in the words of a sentence about it."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}{' (out of memory?)' if -status == signal.SIGKILL else ''}"
