"""Circuit breaker of one member: it is not asked after it left several requests in a row unanswered.  Sans-IO.

States: *closed* (asked as others are), *open* (not asked for a while), *half open* (one request is in progress that
decides).  Only silence counts as a failure: a handler's error is an answer, and a member that refuses work because it
is full says so at once and is asked less by its latency.  Source: Nygard, "Release It!", 2007.
"""

from __future__ import annotations

import enum
from typing import Final, final

FAILURES: Final = 5
"""Unanswered requests in a row that open a circuit: more than one slow request of each of a few callers."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
"""Seconds for which a circuit is open: doubled each time that the request which was to decide was not answered."""


@final
class CircuitState(enum.Enum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


@final
class CircuitBreaker:
    """Circuit breaker of one member.  Made with its first failure; a member without one is closed."""

    __slots__ = ("_failures", "_pause", "state", "until")

    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self.until = 0.0
        """Time at which an open circuit may be tried."""
        self._failures = 0
        self._pause = FIRST_PAUSE

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state.value}, {self._failures} failures>"

    def failed(self, now: float) -> bool:
        """Note a request that was not answered; return whether that changed the state."""
        self._failures += 1
        if self.state is CircuitState.HALF_OPEN:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        elif self.state is CircuitState.OPEN or self._failures < FAILURES:
            return False  # sent before it opened, or not enough yet
        self.state = CircuitState.OPEN
        self.until = now + self._pause
        return True

    def answered(self) -> bool:
        """Note an answer, whatever it says; return whether that changed the state."""
        self._failures = 0
        self._pause = FIRST_PAUSE
        changed = self.state is not CircuitState.CLOSED
        self.state = CircuitState.CLOSED
        return changed

    def undecided(self, now: float) -> bool:
        """The request that was to decide ended without showing anything: another one may try at once."""
        if self.state is not CircuitState.HALF_OPEN:
            return False
        self.state = CircuitState.OPEN
        self.until = now
        return True

    def begin_trial(self) -> None:
        """One request goes to the member of an open circuit whose time is over."""
        self.state = CircuitState.HALF_OPEN
