"""Alarm: a timer of the kernel on the processor time of one thread, for code in C that keeps the interpreter to itself.

While such code runs (a regular expression that backtracks, a power of large numbers), no other thread of Python does,
and so no watch can speak.  The watch winds this timer up each time that it runs.  If the loop's thread computes for
half a second and the watch has not run, the kernel interrupts the thread itself:

- First by a signal that Python handles.  Much of such code looks for signals now and then; the handler steps aside, and
  the watch speaks.
- A moment later by a signal that ``faulthandler`` handles, in C: it writes the stack of this thread to standard error,
  also where the code looks for no signals.  It reads the frames of the very thread that it has interrupted, which is
  why it is safe where ``faulthandler.dump_traceback_later`` is not: that reads frames of threads that run.

Processor time, and not time: a process that is stopped or gets no processor has no alarm.  The timer of
``dump_traceback_later``, of which a process has one, stays the program's.  Source: timer_create(2), Linux only.
"""

from __future__ import annotations

import ctypes
import faulthandler
from typing import Final, final

_THREAD_ID: Final = 4
"""``SIGEV_THREAD_ID``: the signal is for one thread."""

_STANDARD_ERROR: Final = 2

_LATER: Final = 0.25
"""Seconds of processor time from the first signal to the second one."""


class _Event(ctypes.Structure):
    """``struct sigevent``, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_int * 11),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``."""

    _fields_ = (
        ("interval", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


@final
class ProcessorAlarm:
    """Interrupts a thread that has computed for some time since the alarm was wound up last.

    Args:
        clock: clock of the thread's processor time.
        native: identifier of the thread in the kernel.
        handled: the signal that Python handles.  None: it handles none in that thread.
        written: the signal by which the stack is written.  From here on ``faulthandler`` handles it in this process.

    Raises:
        OSError: this system has no such timers, none is left, or the thread has ended.
    """

    def __init__(self, clock: int, native: int, handled: int | None, written: int) -> None:
        faulthandler.register(written, file=_STANDARD_ERROR, all_threads=False)
        self._timers: list[tuple[ctypes.c_void_p, float]] = []
        try:
            self._library: Final = ctypes.CDLL(None)
            for number, more in ((handled, 0.0), (written, _LATER)):
                if number is None:
                    continue
                event, timer = _Event(None, number, _THREAD_ID, native), ctypes.c_void_p()
                if self._library.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)):
                    raise OSError("no timer is left")
                self._timers.append((timer, more))
        except AttributeError as error:
            raise OSError(f"this system has no timers on processor time: {error}") from None
        except OSError:
            self.close()
            raise

    def wind(self, seconds: float) -> None:
        """Ring after so many seconds of processor time from now on, not from the last call; 0: never."""
        for timer, more in self._timers:
            after = seconds + more if seconds else 0.0
            times = _Times(0, 0, int(after), int(after % 1 * 1e9))
            self._library.timer_settime(timer, 0, ctypes.byref(times), None)

    def close(self) -> None:
        """Ring no more.  May be called twice."""
        for timer, _ in self._timers:
            self._library.timer_delete(timer)
        self._timers.clear()
