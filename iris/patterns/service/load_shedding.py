"""Load shedding by queue delay (CoDel): which requests a busy member refuses, and which delay it reports (sans-IO).

A queue is good for bursts and bad for load: under constant overload it only makes everybody wait.  So the measure is
not the length of the queue but how long it has been non-empty.  A queue that has not been empty for ``interval`` is
*standing*.  While it is, and for a second after the last refusal, a request that would wait longer than the target is
refused.  Low priority goes first, and the newest request first, which has the most time left to go elsewhere.

The target is the configured one or the mean service time of the handlers, whichever is longer: a service that takes a
second may let callers wait as long.  The expected wait of a request is the queue length times the mean time between two
starts.

Source: Nichols and Jacobson, "Controlling Queue Delay", 2012, in the form of Maurer, "Fail at Scale", 2015.

``QueueDelay`` is the queue delay as reported to callers: recent waits, at least the age of the oldest queued request,
decaying while no request begins.  A caller gives no work to a member with a queue delay of a second.  Without the
minimum no caller would learn that a queue is stuck; without the decay none would learn that it is gone.
"""

from __future__ import annotations

from typing import Final, final

from iris.patterns.priority import Priority

_INTERVALS: Final = 3
"""A queue stands after so many times the target: 60 ms with the default target."""

_HOLD: Final = 1.0
"""Seconds after a refusal for which no other queue is given the time of a burst: else one would follow the other."""

_SAMPLES: Final = 64
"""Starts over which the mean time between two of them is taken."""


@final
class LoadShedder:
    """Load shedder of one queue.  It is not called while no request waits."""

    __slots__ = ("_gap", "_held", "_last", "_refused_at", "_samples", "_since", "_target", "busy", "patience", "shed")

    def __init__(self, target: float) -> None:
        self._target = target
        self.patience: Final = 2 * target
        """Seconds that a request may wait without being given up, whatever runs."""
        self._gap = 0.0
        self._samples = 0
        self._last = 0.0
        self._since: float | None = None
        self._refused_at = -float("inf")
        self._held = False
        self.busy = False
        """True while the load shedder has to be called: there is a queue, or a request was refused lately."""
        self.shed = 0
        """Requests refused because of the time they would have waited, or had waited."""

    def begun(self, now: float, waiting: int) -> None:
        """Note that a handler has begun with a request from the queue, in which ``waiting`` are left."""
        if not waiting:
            self._empty(now)
            return
        if self._since is None:
            self._since = self._last = now
            self.busy = True
            if not self._held:
                self._samples = 0
            return
        self._samples = min(self._samples + 1, _SAMPLES)
        self._gap += (now - self._last - self._gap) / self._samples
        self._last = now

    def _empty(self, now: float) -> None:
        self._since = None
        self.busy = self._held = self._held and now - self._refused_at <= _HOLD

    def wait(self, now: float, waiting: int) -> float:
        """Return how long a request that comes now behind ``waiting`` others would wait, in seconds."""
        return waiting * self._gap if self._since is None else max(waiting * self._gap, now - self._last)

    def target(self, running: int) -> float:
        """Return the longest time that a request should wait."""
        return max(self._target, running * self._gap)

    def stands(self, now: float, running: int) -> bool:
        """Return whether the queue is one that bursts do not explain."""
        if self._held and now - self._refused_at <= _HOLD:
            return True
        return self._since is not None and now - self._since > _INTERVALS * self.target(running)

    def refuses(self, priority: int, now: float, waiting: int, running: int) -> bool:
        """Return whether a request that has just come is to be refused; only while the queue stands."""
        if priority == Priority.HIGH or not self.stands(now, running):
            return False
        if priority != Priority.LOW and self.wait(now, waiting) <= self.target(running):
            return False
        self._refused_at = now
        self.busy = self._held = True
        self.shed += 1
        return True

    def gives_up(self, waited: float, now: float, waiting: int, running: int) -> bool:
        """Return whether a request that has waited so long is to be refused instead of begun.

        Only while newer ones are refused, too: a burst that nothing follows is served to its end.
        """
        if waited <= self.patience:
            return False
        target = self.target(running)
        if waited <= 2 * target or now - self._refused_at > _INTERVALS * target or not self.stands(now, running):
            return False
        if not waiting:
            self._empty(now)
        self.shed += 1
        return True


_WEIGHT: Final = 0.2
"""Share of the newest wait in the average."""

_HALVED: Final = 0.25
"""Seconds without a request that begins after which former waits count half."""

_NOTHING: Final = 1e-6

_AT_ONCE: Final = 0.001
"""Seconds in which former waits fade by less than 0.3 %, which is left out."""


@final
class QueueDelay:
    """Queue delay of one member's requests.  All times in seconds."""

    __slots__ = ("_at", "lately")

    def __init__(self) -> None:
        self.lately = 0.0
        """Average wait of requests when the last one began."""
        self._at = 0.0

    def begun(self, arrived: float, now: float) -> None:
        """Note that a request begins that came at ``arrived``."""
        waited = self.lately
        if now - self._at > _AT_ONCE:
            waited, self._at = self._faded(now), now
        self.lately = waited + _WEIGHT * (now - arrived - waited)

    def delay(self, oldest: float | None, now: float) -> float:
        """Return how long requests wait; ``oldest``: when the first of those arrived that wait now, if any do."""
        faded = self._faded(now)
        return faded if oldest is None else max(faded, now - oldest)

    def _faded(self, now: float) -> float:
        return float(self.lately * 0.5 ** ((now - self._at) / _HALVED)) if self.lately > _NOTHING else 0.0
