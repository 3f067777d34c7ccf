"""Which requests a busy member refuses at once, so that those it takes are answered in time (sans-IO).

A queue is good for bursts and bad for load: under constant overload it only makes everybody wait.  So the measure is
not how long the queue is but how long it has been there.  A queue that has not been empty for ``interval`` *stands*;
while it does, and for a second after the last refusal, a request that would wait longer than the target is refused, low
priority first: the newest one, which has the most time left to go elsewhere.

The target is the configured one or the mean time that handlers take, whichever is longer: who takes a second may let
others wait as long.  The time a request would wait is the number that wait times the mean time between two beginnings.

Source: Nichols and Jacobson, "Controlling Queue Delay", 2012, in the form of Maurer, "Fail at Scale", 2015.
"""

from __future__ import annotations

import enum
from typing import Final, Literal, final

from iris.kernel.errors import ConfigError

_INTERVALS: Final = 3
"""A queue stands after so many times the target: 60 ms with the default target."""

_HOLD: Final = 1.0
"""Seconds after a refusal for which no other queue is given the time of a burst: else one would follow the other."""

_SAMPLES: Final = 64
"""Beginnings that the mean time between two of them is taken over."""


@final
class Priority(enum.IntEnum):
    """What a request is worth when not all can be served.  The numbers are on the wire."""

    NORMAL = 0
    HIGH = 1
    LOW = 2


PriorityName = Literal["low", "normal", "high"]


def check_priority(name: str | None) -> Priority | None:
    """Return the priority of that name; None stands for that of the request that is served.

    Raises:
        ConfigError: there is none.
    """
    if name is None:
        return None
    for priority in Priority:
        if priority.name.lower() == name:
            return priority
    raise ConfigError(f"priority is {name!r}: use 'low', 'normal' or 'high'")


@final
class Shedding:
    """Decides for one queue.  Told of nothing while no request waits."""

    __slots__ = ("_gap", "_held", "_last", "_refused_at", "_samples", "_since", "_target", "busy", "shed")

    def __init__(self, target: float) -> None:
        self._target = target
        self._gap = 0.0
        self._samples = 0
        self._last = 0.0
        self._since: float | None = None
        self._refused_at = -float("inf")
        self._held = False
        self.busy = False
        """Whether it has to be asked and told: there is a queue, or a request was refused lately."""
        self.shed = 0
        """Requests refused because of the time they would have waited, or had waited."""

    def begun(self, now: float, waiting: int) -> None:
        """A handler has begun with a request from the queue, in which ``waiting`` are left."""
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
        """Tell whether the queue is one that bursts do not explain."""
        if self._held and now - self._refused_at <= _HOLD:
            return True
        return self._since is not None and now - self._since > _INTERVALS * self.target(running)

    def refuses(self, priority: int, now: float, waiting: int, running: int) -> bool:
        """Tell whether a request that has just come is to be refused; only while the queue stands."""
        if priority == Priority.HIGH or not self.stands(now, running):
            return False
        if priority != Priority.LOW and self.wait(now, waiting) <= self.target(running):
            return False
        self._refused_at = now
        self.busy = self._held = True
        self.shed += 1
        return True

    def gives_up(self, waited: float, now: float, waiting: int, running: int) -> bool:
        """Tell whether a request that has waited so long is to be refused instead of begun.

        Only while newer ones are refused, too: a burst that nothing follows is served to its end.
        """
        target = self.target(running)
        if waited <= 2 * target or now - self._refused_at > _INTERVALS * target or not self.stands(now, running):
            return False
        if not waiting:
            self._empty(now)
        self.shed += 1
        return True
