"""Watch: a thread beside an event loop that says when the loop stands still, and where.

The thread looks four times a second.  Where the loop is at work it asks it for a sign of life, which costs the loop one
call; where the loop waits it does nothing.  If there is no sign for half a second, the loop's thread stands in a
handler that gives no way, or nearly so: what the machine did not let it run is subtracted.

The thread needs the interpreter to speak.  Code in C that keeps it for itself is the affair of ``ProcessorAlarm``.

A handler that waits in the main thread (``time.sleep``, a socket) can be interrupted by a signal, whose handler Python
runs in that very thread: so the observers are called there, and may send.  They are called only if nothing of Iris or
trio is half-done on the stack.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, final

import trio

from iris.node.blocked.stacks import Standing, is_idle, standing_of

if TYPE_CHECKING:
    from iris.node.blocked.alarm import ProcessorAlarm

_log: Final = logging.getLogger("iris.handlers")

_PERIOD: Final = 0.25
"""Seconds between two looks."""

BLOCKED: Final = 0.5
"""Seconds for which a handler may hold up its event loop before it is named."""

_OTHERS: Final = 2.0
"""The same for code that is no handler: a program may load modules while its node is open."""

_PAUSE: Final = 60.0
"""Seconds between two entries of one cause."""

_MAX_CAUSES: Final = 256

_HARDLY: Final = 0.05
"""Seconds of processor time by which the alarm may ring early."""

_ASIDE: Final = 0.2
_STEP: Final = 0.001
"""Seconds for which code that computes is held up at most, to let the watch look, and between two looks at that."""


class BlockObserver(Protocol):
    """The node whose event loop is watched: ``BlockedHandlers``.

    Both methods are called in the thread of the loop.  They must neither block nor raise: an error would end the run of
    trio, or go to the handler that blocks.
    """

    def blocked(self, standing: Standing, seconds: float) -> None:
        """The loop has stood still for so long.

        Called from within a signal handler, while the handler that blocks waits; at most once before ``went_on``, and
        only if it can be interrupted.
        """
        ...

    def went_on(self, standing: Standing, seconds: float) -> None:
        """The loop runs again, after so long."""
        ...


async def watch_loop(observer: BlockObserver) -> None:
    """Watch the event loop that this runs in, until cancelled.  One thread serves all observers of a loop."""
    # By loop, and not by thread: one that ended in the middle of its run leaves its identifier to another.
    loop = trio.lowlevel.current_trio_token()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = LoopWatch(loop)
    watch.observers.append(observer)
    try:
        await trio.sleep_forever()
    finally:
        watch.observers.remove(observer)
        if not watch.observers:
            del _watches[loop]
            watch.close()


@final
class LoopWatch:
    """Watches the event loop of the thread that makes it.

    Attributes:
        observers: those who are told.
        thread: the thread.
    """

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.observers: Final[list[BlockObserver]] = []
        self._token: Final = token
        self.thread: Final = threading.get_ident()
        self._native: Final = threading.get_native_id()
        knows_clock = hasattr(time, "pthread_getcpuclockid")
        self._clock: Final = time.pthread_getcpuclockid(self.thread) if knows_clock else None
        self._signals: Final = _handle_signals()
        self._lock: Final = threading.Lock()
        self._ended: Final = threading.Event()
        self._asked: float | None = None
        """Time at which the loop was asked for a sign of life that has not been received yet."""
        self._starved = 0.0
        """Seconds at that time for which the machine had not let the loop's thread run."""
        self._answered: float | None = None
        self._reported: Standing | None = None
        """Place at which the loop was found standing, once that was said."""
        self._looks = 0
        self._is_logged = False
        self._is_told = False
        self._looked = time.monotonic()
        self._computed = self._processor_time()
        self._wound = -math.inf
        """Processor time of the loop's thread when the alarm was wound up."""
        self._at_asking = 0.0
        self._causes: dict[tuple[str, str | None, str, int], tuple[float, int]] = {}
        self._alarm: ProcessorAlarm | None = None
        self._worker: Final = threading.Thread(target=self._run, name="iris watch", daemon=True)
        with suppress(RuntimeError):  # no thread is left: the node runs without a watch
            self._worker.start()

    def close(self) -> None:
        """Watch no more."""
        self._ended.set()
        if self._worker.is_alive():
            self._worker.join(_PERIOD)

    # -- in the thread of the watch -------------------------------------------------------------------------

    def _run(self) -> None:
        self._alarm = self._open_alarm()
        try:
            self._wind(BLOCKED)
            while not self._ended.wait(_PERIOD):
                self._look()
                self._looks += 1
            if self._answered is not None:
                self._over(self._answered)
        finally:
            if self._alarm is not None:
                self._alarm.close()

    def _open_alarm(self) -> ProcessorAlarm | None:
        if self._signals is None or self._clock is None:
            return None
        try:
            from iris.node.blocked.alarm import ProcessorAlarm  # ctypes takes milliseconds, and not the loop's

            return ProcessorAlarm(self._clock, self._native, *self._signals)
        except (ImportError, OSError) as error:
            _log.debug("code that keeps the interpreter is named when it ends: %s", error, extra={"cause": "alarm"})
            return None

    def _wind(self, seconds: float) -> None:
        """Wind the alarm up; where the loop has hardly computed since the last time, that is still good."""
        if self._alarm is not None and not _has_signals():
            self._alarm.close()
            self._alarm = None
        if self._alarm is not None and (not seconds or self._computed > self._wound + _HARDLY):
            self._wound = self._computed if seconds else -math.inf
            self._alarm.wind(seconds)

    def _look(self) -> None:
        now, computed = time.monotonic(), self._processor_time()
        if self._ended.is_set():
            return
        late, worked = now - self._looked - _PERIOD, computed - self._computed
        self._looked, self._computed = now, computed
        if self._answered is not None:
            self._over(self._answered)
        held = 0.0
        if late > _PERIOD / 2:
            if worked >= BLOCKED - 2 * _HARDLY:
                held = worked  # the loop's thread has kept the interpreter
            elif self._asked is not None and worked < late / 2:
                self._asked += late  # this process was stopped, or had no processor
        frame = sys._current_frames().get(self.thread)
        if frame is None:
            return
        if self._asked is None:
            if is_idle(frame):
                self._wind(BLOCKED)
                return
            self._ask(now - held, computed - held)
        if self._reported is None:
            self._judge(frame, now)
        if self._reported is None:
            self._wind(BLOCKED)

    def _ask(self, since: float, computed: float) -> None:
        self._asked, self._at_asking, self._starved = since, computed, self._run_delay()
        self._is_told = False
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._answer)

    def _judge(self, frame: FrameType, now: float) -> None:
        """Say so if the loop has stood still for too long."""
        assert self._asked is not None
        seconds = now - self._asked - (self._run_delay() - self._starved)
        if seconds < BLOCKED - 2 * _HARDLY:
            return
        standing = standing_of(frame)
        if standing.pattern is None and seconds < _OTHERS:
            return
        with self._lock:
            if self._answered is not None:
                return
            self._reported = standing
        self._wind(0.0)
        self._log_blocked(standing, seconds, self._computed - self._at_asking)
        if self._signals is not None and self._signals[0] is not None and standing.interruptible and _has_signals():
            signal.pthread_kill(self.thread, self._signals[0])

    def _over(self, answered: float) -> None:
        """Forget the question, which was answered at that time."""
        with self._lock:
            asked, standing, self._asked, self._answered, self._reported = self._asked, self._reported, None, None, None
        if standing is not None and asked is not None and self._is_logged:
            _log.warning(
                "%s blocked its node for %.1f s, at %s:%d, and goes on",
                standing.handler,
                answered - asked,
                standing.file,
                standing.line,
                extra={
                    "cluster": standing.cluster or None,
                    "operation": standing.operation,
                    "pattern": standing.pattern,
                    "reason": "blocked",
                    "cause": f"{standing.file}:{standing.line}",
                },
            )

    def _log_blocked(self, standing: Standing, seconds: float, computed: float) -> None:
        cause = (standing.cluster, standing.operation, standing.file, standing.line)
        now = time.monotonic()
        logged_at, left_out = self._causes.pop(cause, (None, 0))
        self._is_logged = logged_at is None or now >= logged_at + _PAUSE
        if not self._is_logged and logged_at is not None:
            self._causes[cause] = (logged_at, left_out + 1)
            return
        if len(self._causes) >= _MAX_CAUSES:
            del self._causes[next(iter(self._causes))]
        self._causes[cause] = (now, 0)
        if computed > seconds / 2:
            what, mend = "computes", "have it compute in another process"
        else:
            what, mend = "waits", "await it, or give the handler thread=True"
        if not _log.isEnabledFor(logging.WARNING):
            return
        text = (
            "%s blocks its node: for %.1f s it %s at %s:%d, in %s, and nothing else runs here meanwhile, so callers "
            "and members take this node for dead before long; %s"
        )
        record = _log.makeRecord(
            _log.name,
            logging.WARNING,
            *(__file__, 0, text),
            (standing.handler, seconds, what, standing.file, standing.line, standing.function, mend),
            None,
            extra={
                "cluster": standing.cluster or None,
                "operation": standing.operation,
                "pattern": standing.pattern,
                "reason": "blocked",
                "left_out": left_out or None,
                "cause": f"{standing.file}:{standing.line}",
            },
            sinfo=standing.stack.rstrip(),
        )
        _log.handle(record)

    def _processor_time(self) -> float:
        """Return the seconds of processor time that the loop's thread has had; 0 where that is not known."""
        try:
            return 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:  # the thread has ended, with its loop unfinished: another one may have its identifier
            self._ended.set()
            return 0.0

    def _run_delay(self) -> float:
        """Return for how many seconds the loop's thread could have run, and had no processor; 0 if not known."""
        try:
            text = Path(f"/proc/self/task/{self._native}/schedstat").read_text()
            return int(text.split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    # -- in the thread of the loop --------------------------------------------------------------------------

    def _answer(self) -> None:
        """Give the sign of life."""
        with self._lock:
            self._answered = now = time.monotonic()
            standing, asked = self._reported, self._asked
        if standing is not None and asked is not None:
            for observer in self.observers:
                observer.went_on(standing, now - asked)

    def interrupted(self, frame: FrameType | None) -> None:
        """Tell the observers from within the handler that blocks, at a signal that found the thread at ``frame``."""
        asked = self._asked
        if self._reported is None or asked is None:
            # It computes, and the watch could not look for a long time.  Once is not enough to step aside: the watch
            # reads files, and each time this thread would have the interpreter again.
            looks, until = self._looks, time.monotonic() + _ASIDE
            while self._looks == looks and time.monotonic() < until:
                time.sleep(_STEP)
            return
        if frame is None or self._is_told or self._answered is not None:
            return
        standing = standing_of(frame)
        if standing.interruptible:
            self._is_told = True
            for observer in self.observers:
                observer.blocked(standing, time.monotonic() - asked)


_watches: Final[dict[trio.lowlevel.TrioToken, LoopWatch]] = {}
"""The watch of each event loop: signals, and the stacks of threads, are those of a process."""

_taken: Final[list[tuple[int, int]]] = []
"""The signals of this process, once it has some.  They stay handled to its end: one may be on its way, and a signal
that nobody handles ends a process."""


def _handle_signals() -> tuple[int | None, int] | None:
    """Return the signal that interrupts a handler, and the one by which the stack of a thread is written.

    The first is None in a thread other than the main one, in which Python runs no signal handlers.  None: there are
    none to be had.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not _taken and is_main:
        free = free_signals()
        if free is not None:
            _taken.append(free)
            signal.signal(free[0], _handle)
    if not _taken:
        return None
    return (_taken[0][0] if is_main else None), _taken[0][1]


def free_signals() -> tuple[int, int] | None:
    """Return two real-time signals that nobody in this process handles; None if there are none."""
    if not hasattr(signal, "SIGRTMAX"):
        return None
    numbers, caught = range(signal.SIGRTMAX - 3, signal.SIGRTMIN + 3, -1), _caught_signals()
    free = [one for one in numbers if signal.getsignal(one) is signal.SIG_DFL and not caught >> (one - 1) & 1]
    return (free[0], free[1]) if len(free) > 1 else None


def _has_signals() -> bool:
    """Return whether the signals are still this module's.  A program may take one of them later, or reset them all."""
    return bool(_taken) and signal.getsignal(_taken[0][0]) is _handle


def _caught_signals() -> int:
    """Return the signals that something handles, be it code in C of which ``signal`` knows nothing, as bits."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return int(mask, 16)
    return 0


def _handle(_: int, frame: FrameType | None) -> None:
    for watch in list(_watches.values()):
        if watch.thread == threading.get_ident():
            watch.interrupted(frame)
