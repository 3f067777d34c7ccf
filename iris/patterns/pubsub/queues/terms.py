"""Terms of work queues: names, limits and the headers of jobs, the same for workers and bridges."""

from __future__ import annotations

import math
from typing import Final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, as_whole, shown
from iris.kernel.topic_syntax import is_own_topic

DEAD_SUFFIX: Final = ".dead"
"""Behind the name of a queue: the topic of its dead letters, unless another one is given."""

DELAY: Final = "job-delay"
PRIORITY: Final = "job-priority"
"""Headers of jobs: seconds, -9 to 9.  ``expires`` is as for any event."""

DEAD_QUEUE: Final = "dead-queue"
DEAD_ATTEMPTS: Final = "dead-attempts"
DEAD_ERROR: Final = "dead-error"
DEAD_PLACE: Final = "dead-place"
"""Headers of dead letters, beside those of the job: its queue, how often it was tried, the last error, where it stood
in the log (shard:offset)."""

OWN_HEADERS: Final = frozenset({DEAD_QUEUE, DEAD_ATTEMPTS, DEAD_ERROR, DEAD_PLACE})

MAX_PRIORITY: Final = 9
MAX_DELAY: Final = 10 * 365 * 24 * 3600.0


def check_queue(text: str, what: str) -> None:
    """Raise ConfigError unless a text can name a queue."""
    if not is_own_topic(text):
        raise ConfigError(f"{what} is {shown(text)}: use a topic, tokens joined by dots, without '/', '+' or '#'")


def check_whole(value: object, name: str, least: int, most: int) -> int:
    """Return a whole number; raise ConfigError unless it is one from ``least`` to ``most``."""
    whole = as_whole(value)
    if whole is None or not least <= whole <= most:
        raise ConfigError(f"{name} is {shown(value)}: use a whole number from {least} to {most}")
    return whole


def check_seconds(value: object, name: str, least: float, most: float) -> float:
    """Return seconds; raise ConfigError unless they are from ``least`` to ``most``."""
    seconds = as_float(value)
    if not least <= seconds <= most:
        raise ConfigError(f"{name} is {shown(value)}: use {least:g} to {most:g} seconds")
    return seconds


def seconds_text(value: float) -> str:
    """Return seconds as a header."""
    assert math.isfinite(value)
    return f"{value:.6f}".rstrip("0").rstrip(".")
