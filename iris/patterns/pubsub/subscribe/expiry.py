"""Expiry: events that are of no use after some seconds.  The header ``expires`` says how many.

They count from the arrival at a subscriber, and in a bridge's log from when the event was stored; clocks of two
machines are never compared.  A value that is no number of seconds counts as none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, read_float, shown

EXPIRES: Final = "expires"

MAX_EXPIRES: Final = 10 * 365 * 24 * 3600.0


def expires_after(headers: Mapping[str, str]) -> float:
    """Return the seconds after which an event with these headers has expired; inf: it never does."""
    seconds = read_float(headers.get(EXPIRES, ""))
    return math.inf if math.isnan(seconds) else seconds


def with_expiry(headers: Mapping[str, str] | None, expires: float) -> dict[str, str]:
    """Return headers that say so as well.

    Raises:
        ConfigError: ``expires`` are no seconds from 0 to ten years.
    """
    seconds = as_float(expires)
    if not 0 <= seconds <= MAX_EXPIRES:
        raise ConfigError(f"expires is {shown(expires)}: use 0 to {MAX_EXPIRES:g} seconds, or None")
    return {**(headers or {}), EXPIRES: f"{seconds:.6f}".rstrip("0").rstrip(".")}
