"""Dial limits: a token bucket for dials in vain that others bring about, for each pair of source and host.  Sans-IO.

The holder of a cluster's key can make up any number of nodes, each at an address of his choice, and all nodes that hear
of them would dial that one: it may be anybody's.  So each dial takes a token from the bucket of its source and host; a
node that is found there puts it back.  Where nodes are, nothing is held up, however many they are; where none are, it
ends with the bucket.

Addresses that the user has given are dialled as often as ever, and so are the one at which a node was found and the
host from which a stranger has come.
"""

from __future__ import annotations

from typing import Final, final

from iris.kernel.slots import address_key
from iris.kernel.token_bucket import TokenBucket

_REMEMBERED: Final = 4096
"""Pairs; the one in use longest ago is forgotten first."""


@final
class DialLimits:
    """A token bucket for each pair of source and host.

    Args:
        burst: dials in a row.
        rate: and so many per second in the long run.
    """

    def __init__(self, burst: int, rate: float) -> None:
        self._burst: Final = burst
        self._rate: Final = rate
        self._left: dict[tuple[str, str], TokenBucket] = {}
        """A bucket that is not here is full."""

    def __repr__(self) -> str:
        return f"<DialLimits: {len(self._left)} hosts dialled>"

    def acquire(self, reporter: str, host: str, now: float) -> bool:
        """Spend a token for a dial; False if there is none.

        Args:
            reporter: the source of the address.
            host: IP address, or what a network has in place of that.
            now: this moment, in seconds.
        """
        key = (reporter, address_key(host))
        bucket = self._left.pop(key, None)
        if bucket is None:
            bucket = TokenBucket(self._burst, self._rate, now)
        self._left[key] = bucket
        if len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]
        return bucket.spend(now)

    def give_back(self, reporter: str, host: str) -> None:
        """A node was found there: the dial does not count."""
        bucket = self._left.get((reporter, address_key(host)))
        if bucket is not None:
            bucket.give_back()
