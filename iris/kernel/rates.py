"""Rates: messages, and bytes of their payloads, that may go each second.  Sans-IO.

Two token buckets with the tokens of a second each.  A message may go while neither owes anything, and then costs both
what it has, which may leave them owing: so one of any size goes, and those behind it wait the longer.
"""

from __future__ import annotations

from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, shown
from iris.kernel.token_bucket import TokenBucket

_LEAST: Final = 0.001
_MOST: Final = 1e12


@final
class Rates:
    """The rates of one source of messages.

    Args:
        messages: messages a second; None: any number.
        octets: bytes a second of their payloads; None: any number.
        now: this moment.
    """

    __slots__ = ("_buckets", "_messages", "_octets")

    def __init__(self, messages: float | None, octets: float | None, now: float) -> None:
        self._messages = None if messages is None else TokenBucket(max(1.0, messages), messages, now)
        self._octets = None if octets is None else TokenBucket(octets, octets, now)
        needed = ((self._messages, messages, 1.0), (self._octets, octets, 0.0))
        self._buckets = [(bucket, rate, least) for bucket, rate, least in needed if bucket is not None and rate]

    def delay(self, now: float) -> float:
        """Return the seconds until the next message may go; 0: now."""
        return max((max(0.0, least - bucket.level(now)) / rate for bucket, rate, least in self._buckets), default=0.0)

    def owe(self, messages: int, octets: int) -> None:
        """Count messages that go, and bytes."""
        if self._messages is not None:
            self._messages.owe(messages)
        if self._octets is not None:
            self._octets.owe(octets)


def check_rate(value: object, name: str) -> float:
    """Return a rate; raise ConfigError if it is none from 0.001 to 1e12 a second."""
    rate = as_float(value)
    if not _LEAST <= rate <= _MOST:
        raise ConfigError(f"{name} is {shown(value)}: use {_LEAST:g} to {_MOST:g} a second, or None")
    return rate
