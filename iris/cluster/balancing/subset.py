"""Subsetting (Finagle's aperture): how many members of a large cluster one caller spreads its requests over.

With ten members several requests share a frame and an encryption; spread over a thousand, each has its own, and each
meets a session and a link that no cache holds.  So a caller asks a dozen often rather than a thousand now and then, as
RPC libraries of large installations do ("deterministic aperture", "subsetting").  Rules:

- Every caller draws its own order of the members, so that all callers together ask all of them, and those in front
  stay the same while they live.
- A dozen at least, and four members for each request outstanding: of two that are drawn, one has nothing to do nearly
  always.
- While the caller's own processor is the limit, and it is requests that keep it busy, more members could not answer
  more: it comes down to a quarter of a member for each outstanding request.  It widens as soon as the processor has
  time left, because then it is members that are waited for.  Time in which nothing was outstanding says neither.
- Each failure lets one more in, so that a dozen that fail together are left behind; half of these are taken back with
  each look at the processor.

Nothing is narrowed for up to a dozen members, for keys and preferences, for repeats, and for tunnels, which stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

MIN_APERTURE: Final = 12
"""Members.  With 64 requests at one time 1,000 members then keep 0.77 of the rate of ten, and 0.33 if all are asked
(case ``members-64`` of ``make bench``)."""

_WIDEST: Final = 4.0
_NARROWEST: Final = 0.25
"""Members for each outstanding request.  64 requests at members that do one at a time take 1.03 times as long as each
of them alone with four, and 1.11 times with two."""

_STEP: Final = 1.5
_BUSY: Final = 0.8
_IDLE: Final = 0.75
"""Shares of one core, used by this thread: above the first the subset is narrowed by a step, below the second it is
widened.  They are close to each other: too few members leave the processor in between, and it would stay there."""

_MANY: Final = 1000.0
"""Requests that end in a second: with fewer, the processor is busy with something else, and members may be slow."""

_SECONDS: Final = 0.05
"""The processor is looked at when a request ends, at most once in so many seconds."""

_REQUESTS: Final = 64
"""Requests after which half of the members that failures let in are taken back."""


@final
class Aperture:
    """The size of the subset that is asked.

    Args:
        processor_time: returns the seconds of processor time that the calling thread has had; None: it is not known,
            and nothing is narrowed below four members for each outstanding request.
    """

    __slots__ = ("_admitted", "_at", "_due", "_ended", "_idled", "_left", "_processor_time", "_spread", "_used")

    def __init__(self, processor_time: Callable[[], float] | None = None) -> None:
        self._processor_time = processor_time
        self._spread = _WIDEST
        self._admitted = 0
        self._left = _REQUESTS
        self._ended = 0
        self._idled = True
        self._at = -math.inf
        self._due = -math.inf
        self._used = 0.0

    def width(self, outstanding: int) -> int:
        """Return the number of members among which the next request's is drawn."""
        if not outstanding:
            self._idled = True
        return max(MIN_APERTURE, int(self._spread * outstanding) + 1) + self._admitted

    def failed(self, members: int) -> None:
        """Note that one of so many members failed."""
        if self._admitted < members:
            self._admitted += 1

    def finished(self, now: float) -> None:
        """Note that a request ended."""
        self._ended += 1
        if now >= self._due:
            self._look(now)

    def _look(self, now: float) -> None:
        elapsed, ended = now - self._at, self._ended
        self._at, self._due, self._ended = now, now + _SECONDS, 0
        self._left -= ended
        if self._left <= 0:
            self._left = _REQUESTS
            self._admitted //= 2
        if self._processor_time is not None:
            before, self._used = self._used, self._processor_time()
            if self._idled:
                self._idled = False
                return
            busy, many = (self._used - before) / elapsed, ended >= _MANY * elapsed
            if busy > _BUSY and many:
                self._spread = max(_NARROWEST, self._spread / _STEP)
            elif busy < _IDLE or not many:
                self._spread = min(_WIDEST, self._spread * _STEP)
