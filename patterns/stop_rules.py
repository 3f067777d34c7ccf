"""When a survey is over before everybody has answered (sans-IO)."""

from __future__ import annotations

import math
from typing import Literal, final

from iris.kernel.errors import ConfigError
from iris.kernel.values import dataclass

StopReason = Literal["all", "count", "quiet", "deadline"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """What ends a survey; whichever comes first, besides that all have answered or failed."""

    timeout: float
    """Seconds since it began."""
    count: int | None = None
    """Answers."""
    quiet: float | None = None
    """Seconds since the last answer; before the first one only the timeout counts."""

    def __post_init__(self) -> None:
        count, quiet = self.count, self.quiet
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ConfigError(f"count is {count!r}: use a whole number above 0, or None")
        if quiet is not None and (
            isinstance(quiet, bool) or not isinstance(quiet, int | float) or math.isnan(quiet) or quiet <= 0
        ):
            raise ConfigError(f"quiet is {quiet!r}: use seconds above 0, or None")

    def end(self, began: float, answered: int, last: float) -> float:
        """Return when the survey ends if no further answer comes.

        Args:
            began: when it began.
            answered: so many have answered.
            last: when the last of them did.
        """
        if self.count is not None and answered >= self.count:
            return last
        end = began + self.timeout
        return end if self.quiet is None or not answered else min(end, last + self.quiet)

    def reason(self, began: float, answered: int, now: float) -> StopReason:
        """Return what ended a survey in which not all have answered or failed."""
        if self.count is not None and answered >= self.count:
            return "count"
        return "quiet" if now < began + self.timeout else "deadline"
