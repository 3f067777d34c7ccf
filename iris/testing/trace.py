"""Trace: everything that a simulation does, as a digest, and its last part as a timeline."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from contextvars import ContextVar
from typing import Final, NamedTuple, final

from iris.testing.machine import HOST, JumpingClock

TRACE: Final[ContextVar[Trace]] = ContextVar("TRACE")
"""The trace of the simulation that runs."""

_KEPT: Final = 20_000


class TraceEntry(NamedTuple):
    """Something that happened."""

    time: float
    """Seconds after the start."""
    kind: str
    """``fault``, ``host``, ``log``, ``note``, ``failure``; of a message that was received, ``message`` or, of links and
    membership, ``upkeep``; of a frame, ``sent``, ``held`` or ``lost``."""
    host: str
    text: str
    """Text of the event.  Of a frame: its target.  Of a message: its sender and its kind."""


@final
class Trace:
    """The record of one simulation.

    Args:
        clock: the clock of the simulation.
        detailed: note frames and messages one by one; they are in the digest in any case.
    """

    def __init__(self, clock: JumpingClock, *, detailed: bool) -> None:
        self._clock = clock
        self._detailed = detailed
        self._digest = hashlib.blake2b(digest_size=16)
        self.entries: Final[deque[TraceEntry]] = deque(maxlen=_KEPT)
        self.frames = 0
        self.failed: float | None = None
        """Time at which the test failed; later events are no cause of it, and not kept."""

    @property
    def digest(self) -> str:
        """Digest of all that has happened: when, on which host, and of frames how long they are.

        What is in frames is not in it: it is encrypted, and with other keys each time.
        """
        return self._digest.hexdigest()

    def note(self, kind: str, host: str, text: str) -> None:
        """Note something."""
        now = self._clock.now
        self._digest.update(f"{now!r} {kind} {host} {text}\n".encode())
        self._keep(now, kind, host, text)

    def fail(self, error: BaseException) -> None:
        """Note that the test has failed."""
        if self.failed is None:
            text = f"{type(error).__name__}: {error}"
            self.note("failure", HOST.get(), text)
            self.failed = self._clock.now

    def frame(self, source: str, target: str, size: int, fate: str) -> None:
        """Note a frame; a ``FrameObserver``."""
        now = self._clock.now
        self.frames += 1
        self._digest.update(f"{now!r} {source} {target} {size} {fate}\n".encode())
        if self._detailed:
            self._keep(now, fate, source, target)

    def note_for_timeline(self, kind: str, host: str, text: str) -> None:
        """Note something for the timeline alone: a message that was received, or a line of the log."""
        self._keep(self._clock.now, kind, host, text)

    def _keep(self, now: float, kind: str, host: str, text: str) -> None:
        if self.failed is None:
            self.entries.append(TraceEntry(now, kind, host, text))


@final
class LogTrace(logging.Handler):
    """Puts what is logged into a trace, with the host that logged it."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self._trace.note_for_timeline("log", HOST.get(), f"{record.levelname.lower()}: {record.getMessage()}")
