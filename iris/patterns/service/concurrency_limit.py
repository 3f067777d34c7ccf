"""Adaptive concurrency limit: how many handlers of a service run at the same time, by AIMD on their latency (sans-IO).

More concurrency is faster only until something behind the handlers is used up; from there on each handler takes longer
and nothing is gained.  The latency of handlers shows where that point is.  As long as the latency stays near the one
with fewer handlers, the limit rises by one for each window in which all places were taken.  When the latency doubles,
the limit drops by a tenth.  Additive increase and multiplicative decrease converge, and are fair to others who do the
same (Chiu and Jain, 1989).

The latency with fewer handlers is measured now and then, with half as many for one window.  If that window gets as much
done, the limit stays there and half of it is measured next.

Rejected: the best latency ever seen would choke a service that has become slower for good; a best latency that decays
would let the limit creep upwards.
"""

from __future__ import annotations

from typing import Final, final

_TOLERANCE: Final = 2.0
"""Handlers may take so many times as long as when half as many run."""

_DECREASE: Final = 0.9
_WINDOW: Final = 20
"""Handlers whose mean time is compared, at least; otherwise as many as run at the same time."""

_AS_MUCH: Final = 0.85
"""Half the places do as well if they get this share of the work done."""

_TRIAL: Final = 50
"""After so many windows half the places are tried for one."""


@final
class AdaptiveConcurrency:
    """The limit of one service, between 1 and ``most``.

    Args:
        most: upper bound of the limit.
    """

    __slots__ = ("_base", "_before", "_count", "_full", "_limit", "_most", "_skip", "_sum", "_windows", "limit")

    def __init__(self, most: int) -> None:
        self.limit = min(most, _WINDOW)
        """Handlers that may run at the same time."""
        self._limit: int | None = None  # what it returns to after a trial
        self._most = most
        self._base = float("inf")
        self._before = 0.0  # the mean before a trial
        self._sum = 0.0
        self._count = 0
        self._skip = 0
        self._full = False
        self._windows = 0

    def __repr__(self) -> str:
        return f"<AdaptiveConcurrency: {self.limit} of {self._most}>"

    def ended(self, seconds: float, running: int) -> int:
        """Note that a handler took so long while ``running`` ran, itself included; return the limit from here on."""
        if self._skip:
            self._skip -= 1
            return self.limit
        self._sum += seconds
        self._count += 1
        self._full = self._full or running >= self.limit
        if self._count >= max(_WINDOW, self.limit):
            self._end_window(max(self._sum / self._count, 1e-9))
            self._sum = 0.0
            self._count = 0
            self._full = False
        return self.limit

    def _end_window(self, mean: float) -> None:
        if self._limit is not None:
            self._base = mean
            if self.limit / mean < _AS_MUCH * self._limit / self._before:
                self.limit = self._limit
                self._limit = None
            else:
                self._try_half(mean)
            return
        self._base = min(self._base, mean)
        if mean > _TOLERANCE * self._base:
            self.limit = max(1, int(self.limit * _DECREASE))
        elif self._full:
            self.limit = min(self._most, self.limit + 1)
        self._windows += 1
        if self._windows >= _TRIAL:
            self._windows = 0
            self._try_half(mean)

    def _try_half(self, mean: float) -> None:
        if self.limit == 1:
            self._limit = None
            return
        self._limit = self.limit
        self._before = mean
        self._skip = 2 * self.limit  # those that began while more ran
        self.limit //= 2
