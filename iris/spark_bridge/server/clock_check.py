"""Clock check: whether the wall clock is trusted when it makes something old enough to be removed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

import trio

_JUMP: Final = 60.0
_SETTLING: Final = 3600.0


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
        """What the offset was before it jumped ahead."""
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
        self.is_believed()

    def __repr__(self) -> str:
        return f"<MemberClock {self.seconds():.0f}>"

    def seconds(self) -> float:
        """Return seconds since 1970."""
        return self._wall_clock()

    def now(self) -> int:
        """Return microseconds since 1970."""
        return int(self._wall_clock() * 1_000_000)

    def is_believed(self) -> bool:
        """Tell whether what the clock calls old may be removed now."""
        return self._check.is_believed(self._wall_clock(), trio.current_time())
