"""What is left of the time that an operation may take."""

from __future__ import annotations

from typing import Final

import trio

_LEAST: Final = 0.001
"""Seconds for what comes after a wait that has used up all of the time: it is tried, and tells what is wrong."""


def time_left(deadline: float) -> float:
    """Return the seconds until a deadline; above 0 also when it has passed."""
    return max(deadline - trio.current_time(), _LEAST)
