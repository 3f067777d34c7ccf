"""How many members of a large cluster the requests of one caller go to.

With ten members several requests share a frame and an encryption; spread over a thousand, each has its own, and each
meets a session and a link that no cache holds.  So a caller asks a dozen often rather than a thousand now and then, as
RPC libraries of large installations do ("deterministic aperture", "subsetting").  Rules:

- Every caller draws its own order of the members, so that all callers together ask all of them, and those in front
  stay the same while they live.
- A dozen at least, and two members for each request outstanding: two choices then find one with nothing to do.
- While the caller's own processor is the limit, more members could not answer more: it comes down to a quarter of a
  member for each outstanding request, and widens as soon as the caller waits for them again.
- Each failure lets one more in, so that a dozen that fail together are left behind; half of these are taken back with
  each look at the processor.

Nothing is narrowed for up to a dozen members, for keys and preferences, for repeats, and for tunnels, which stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

MIN_APERTURE: Final = 12
"""Members.  With 64 requests at one time 1,000 members then keep 0.83 of the rate of ten, and 0.33 if all are asked
(case ``members-64`` of ``make bench``)."""

_WIDEST: Final = 2.0
_NARROWEST: Final = 0.25
"""Members for each outstanding request."""

_STEP: Final = 1.25
_BUSY: Final = 0.8
_IDLE: Final = 0.6
"""Of one core, by this thread: above the one it is narrowed by a step, below the other it is widened."""

_REQUESTS: Final = 64
_SECONDS: Final = 0.05
"""The processor is looked at after so many requests, at most once in so many seconds: 20 ns for each request."""


@final
class Aperture:
    """How many members are asked.

    Args:
        processor_time: returns the seconds of processor time that the calling thread has had; None: it is not known,
            and nothing is narrowed below two members for each outstanding request.
    """

    __slots__ = ("_admitted", "_at", "_left", "_processor_time", "_spread", "_used")

    def __init__(self, processor_time: Callable[[], float] | None = None) -> None:
        self._processor_time = processor_time
        self._spread = _WIDEST
        self._admitted = 0
        self._left = _REQUESTS
        self._at = -math.inf
        self._used = 0.0

    def width(self, outstanding: int) -> int:
        """Return the number of members among which the next request's is drawn."""
        return max(MIN_APERTURE, int(self._spread * outstanding) + 1) + self._admitted

    def failed(self, members: int) -> None:
        """Take note that one of so many members failed."""
        if self._admitted < members:
            self._admitted += 1

    def finished(self, now: float) -> None:
        """Take note that a request ended."""
        self._left -= 1
        if self._left > 0:
            return
        self._left = _REQUESTS
        elapsed = now - self._at
        if elapsed < _SECONDS:
            return
        self._admitted //= 2
        if self._processor_time is not None:
            used = self._processor_time()
            busy = (used - self._used) / elapsed
            if busy > _BUSY:
                self._spread = max(_NARROWEST, self._spread / _STEP)
            elif busy < _IDLE:
                self._spread = min(_WIDEST, self._spread * _STEP)
            self._used = used
        self._at = now
