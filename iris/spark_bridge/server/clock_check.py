"""Clocks of a bridge's member: what dates its log, and whether the wall clock is trusted when it makes something old.

One rule for all that a log keeps a date of: how long ago that was, and how long something lasts, is measured by the
monotonic clock.  ``LogClock`` dates what is written, and knows when that was.  Only the wall clock has the day, for
retention and for people.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, final

import trio

_JUMP: Final = 60.0
_SETTLING: Final = 3600.0

_STEP: Final = 0.05
"""Seconds between two clocks from which on one was set; less is what it takes to read them."""
_MOST_PARTS: Final = 64
_SLOW: Final = 0.5


@final
class LogClock:
    """Dates what a log holds: never backwards and never standing still.  Sans-IO.

    It follows the wall clock.  When that is set ahead it jumps.  When that is set back, or is behind the log at the
    start, it goes at half speed until the wall clock has caught up.  When something was dated is known exactly for what
    was dated since the start; before that both clocks are taken to have run evenly.

    Args:
        newest: seconds since 1970 of the newest date in the log; None: there is none.
        wall: seconds since 1970.
        monotonic: seconds of a monotonic clock.
    """

    def __init__(self, newest: float | None, wall: float, monotonic: float) -> None:
        self._parts = [(wall if newest is None else max(wall, newest), monotonic, 1.0)]
        """Parts of the clock: the date at which each begins, the monotonic time then, and the rate from there on."""

    def read(self, wall: float, monotonic: float) -> float:
        """Return the date now, in seconds since 1970."""
        date, begun, rate = self._parts[-1]
        now = date + rate * (monotonic - begun)
        if wall > now + _STEP or (rate == _SLOW and wall >= now):
            now = self._begin(wall, monotonic, 1.0)
        elif wall < now - _STEP and rate == 1.0:
            self._begin(now, monotonic, _SLOW)
        return now

    def _begin(self, date: float, monotonic: float, rate: float) -> float:
        self._parts.append((date, monotonic, rate))
        del self._parts[:-_MOST_PARTS]
        return date

    def moment(self, date: float, now: float, monotonic: float) -> float:
        """Return the time of a date, past or to come, in seconds of the monotonic clock.

        Args:
            date: seconds since 1970.
            now: what was read at ``monotonic``.
            monotonic: seconds.
        """
        if date >= now:
            return monotonic + date - now
        # A log holds whole microseconds: what was dated when a part began may have a date a little before it.
        whole = round(date * 1_000_000)
        at = max(0, bisect_right(self._parts, whole, key=lambda part: int(part[0] * 1_000_000)) - 1)
        first, begun, rate = self._parts[at]
        # What was due at a date over which the clock has jumped is due when it would have been without that.
        return begun + (date - first) / (rate if date >= first else 1.0)


@final
class ClockCheck:
    """Decides whether the wall clock is trusted when it says that much time has passed.

    A clock that jumps ahead, because it was wrong before or is wrong now, makes everything old at once: all events
    would go, and with what is known of publishers their repeats would be new.  So after a jump nothing counts as old
    for an hour, in which the clock can be set right.

    Args:
        newest: seconds since 1970 of the newest thing that there is.  A bridge that starts more than a minute behind it
            cannot know whether so much time has passed or the clock was set wrong meanwhile, so it waits the hour, too.
    """

    def __init__(self, newest: float | None) -> None:
        self._newest = newest
        self._offset: float | None = None
        self._trusted = -math.inf
        """Clock offset before it jumped ahead, in seconds."""
        self._believed = -math.inf

    def is_believed(self, wall: float, monotonic: float) -> bool:
        """Take a look at the clock; ``monotonic`` is one that runs evenly."""
        offset = wall - monotonic
        before = self._offset
        self._offset = offset
        if before is None:
            if self._newest is not None and wall > self._newest + _JUMP:
                self._believed = monotonic + _SETTLING
        elif offset > before + _JUMP:
            if monotonic >= self._believed:
                self._trusted = before
            self._believed = monotonic + _SETTLING
        elif offset < before - _JUMP and offset <= self._trusted + _JUMP:
            self._believed = -math.inf  # it was set back to where it was, or further: less is old than before
        return monotonic >= self._believed


@final
class MemberClock:
    """The wall clock of a bridge's member, looked at by all that dates events or removes what is old.

    Args:
        wall_clock: seconds since 1970.
        newest: see ``ClockCheck``.
    """

    def __init__(self, wall_clock: Callable[[], float], newest: float | None) -> None:
        self._wall_clock = wall_clock
        self._check = ClockCheck(newest)
        self._log_clock = LogClock(newest, wall_clock(), trio.current_time())
        self.is_believed()

    def __repr__(self) -> str:
        return f"<MemberClock {self.seconds():.0f}>"

    def seconds(self) -> float:
        """Return seconds since 1970."""
        return self._wall_clock()

    def now(self) -> int:
        """Return microseconds since 1970."""
        return int(self._wall_clock() * 1_000_000)

    def date(self) -> int:
        """Return the date for what is written to the log now, in microseconds since 1970; see ``LogClock``."""
        return int(self._log_clock.read(self._wall_clock(), trio.current_time()) * 1_000_000)

    def moment(self, date: int) -> float:
        """Return the time of a date, past or to come, in seconds of the monotonic clock."""
        monotonic = trio.current_time()
        now = self._log_clock.read(self._wall_clock(), monotonic)
        return self._log_clock.moment(date / 1_000_000, now, monotonic)

    def is_believed(self) -> bool:
        """Return whether what the clock calls old may be removed now."""
        return self._check.is_believed(self._wall_clock(), trio.current_time())
