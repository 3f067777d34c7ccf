"""Limits on strangers, before anybody is authenticated.  Sans-IO.

Use, for each first handshake frame and each connection that others open::

    if not admission.may_begin(address, now):  # too many from there: drop the frame
        return
    hello = responder.receive_first_untrusted(frame)  # the sender knows the gate secret
    for index in admission.open(responder.index, address, now):
        ...  # forget this other handshake: it was the oldest, and there are too many
    admission.close(responder.index)  # when it is finished, has failed, or has taken too long

    for other in connections.open(connection, address, now):
        ...  # close this other connection, likewise
    connections.authenticate(connection)  # a genuine frame came through it: it is no stranger's any more
    if connections.refuse(connection):
        ...  # a frame that came through it was refused, and no genuine one before: close it
    connections.close(connection)  # it is gone

and at ``deadline``, ``connections.expire(now)`` returns the connections that have taken too long and are to be closed.

Where there are too many, the oldest makes place for the newest, because honest handshakes last milliseconds: to keep
a node from being reached, an attacker would have to come thousands of times a second, not once in five.

An address is what strangers cannot choose freely: ``address_key`` makes it of an IP address.  None stands for peers
that the operating system vouches for (ipc sockets in a directory of this user): they share only the limit in all.

The rate of an address counts handshakes that were begun, which cost a node half a millisecond.  Junk is not counted
there, or one who knows nothing could keep out the honest ones behind his address; it costs 15 us, and its connection.

Every table here is bounded.  What is refused is counted by reason.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable
from typing import Final, Generic, TypeVar, final

from iris.kernel.config import Config

MAX_ADDRESSES: Final = 4096
"""Addresses whose rate is remembered, 200 bytes each.  Beyond it the one heard of longest ago is forgotten, which
gives it a fresh burst: with so many addresses an attacker gains nothing from that."""

K = TypeVar("K", bound=Hashable)


def address_key(host: str) -> str:
    """Return whose limits count for an IP address: itself, or for IPv6 its network of 64 bits, which one owner has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


@final
class _Places(Generic[K]):
    """A bounded number of places for strangers, each for a bounded time."""

    __slots__ = ("_by_address", "_limit", "_per_address", "_taken", "_timeout")

    def __init__(self, *, limit: int, per_address: int, timeout: float) -> None:
        self._limit = limit
        self._per_address = per_address
        self._timeout = timeout
        # both in order of arrival, which is the order of deadlines
        self._taken: OrderedDict[K, tuple[str | None, float]] = OrderedDict()
        self._by_address: dict[str, OrderedDict[K, None]] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def keys(self) -> Collection[K]:
        """Return who has a place, as a view."""
        return self._taken.keys()

    def take(self, key: K, address: str | None, now: float) -> list[K]:
        """Give a place to ``key``; return who loses his."""
        self.leave(key)
        losers: list[K] = []
        if address is not None:
            neighbours = self._by_address.get(address)
            if neighbours is not None and len(neighbours) >= self._per_address:
                losers.append(next(iter(neighbours)))
                self.leave(losers[-1])
            self._by_address.setdefault(address, OrderedDict())[key] = None
        self._taken[key] = (address, now + self._timeout)
        if len(self._taken) > self._limit:
            losers.append(next(iter(self._taken)))
            self.leave(losers[-1])
        return losers

    def leave(self, key: K) -> bool:
        """Take back the place of ``key``; tell whether it had one."""
        place = self._taken.pop(key, None)
        if place is None:
            return False
        address, _ = place
        if address is not None:
            neighbours = self._by_address[address]
            del neighbours[key]
            if not neighbours:
                del self._by_address[address]
        return True

    @property
    def deadline(self) -> float:
        for _, deadline in self._taken.values():
            return deadline
        return math.inf

    def expire(self, now: float) -> list[K]:
        """Take back the places that have been taken for too long; return whose they were."""
        expired: list[K] = []
        while self.deadline <= now:
            key = next(iter(self._taken))
            self.leave(key)
            expired.append(key)
        return expired


@final
@dataclasses.dataclass(slots=True)
class _Bucket:
    """Tokens at a moment; they come back at a steady rate."""

    tokens: float
    filled: float


@final
class Admission:
    """Who may begin a handshake now.  Limits come from ``Config``.

    Args:
        refusals: where first frames and handshakes that are refused or dropped are counted, by reason.
    """

    __slots__ = ("_buckets", "_burst", "_handshakes", "_rate", "_refusals")

    def __init__(self, config: Config, refusals: Counter[str]) -> None:
        self._rate = config.handshake_rate
        self._burst = config.handshake_burst
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._handshakes: _Places[int] = _Places(
            limit=config.half_open_handshakes,
            per_address=config.half_open_per_address,
            timeout=config.handshake_timeout,
        )
        self._refusals = refusals

    @property
    def half_open(self) -> int:
        """Handshakes under way."""
        return len(self._handshakes)

    def may_begin(self, address: str | None, now: float) -> bool:
        """Tell whether a first frame from ``address`` may be looked at."""
        if address is None or self._bucket(address, now).tokens >= 1.0:
            return True
        self._refusals["handshake rate of one address"] += 1
        return False

    def _bucket(self, address: str, now: float) -> _Bucket:
        bucket = self._buckets.get(address)
        if bucket is None:
            if len(self._buckets) >= MAX_ADDRESSES:
                self._buckets.popitem(last=False)
            bucket = self._buckets[address] = _Bucket(self._burst, now)
        else:
            self._buckets.move_to_end(address)
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.filled) * self._rate)
            bucket.filled = now
        return bucket

    def open(self, index: int, address: str | None, now: float) -> list[int]:
        """Count a handshake as under way, and against the rate of its address.

        Returns:
            Those, older ones, that are to be forgotten for it.
        """
        if address is not None:
            self._bucket(address, now).tokens -= 1.0
        dropped = self._handshakes.take(index, address, now)
        if dropped:
            self._refusals["too many half-open handshakes"] += len(dropped)
        return dropped

    def close(self, index: int) -> None:
        """Count a handshake as over, whatever its outcome.  One that is not under way is passed over."""
        self._handshakes.leave(index)


@final
class Connections(Generic[K]):
    """Connections that others have opened and that have not shown a genuine frame yet.

    One that is silent, or stands still inside its first frame, is closed after ``Config.handshake_timeout``, or
    earlier if its place is needed; one that sends junk is closed for it.  One address has three quarters of the
    places that it has for handshakes, because the network may hold a whole frame for each.

    Args:
        refusals: where connections that are to be closed are counted, by reason.

    Attributes:
        waiting: the connections; not a copy, so that it costs little to see with each frame whether there are any.
    """

    __slots__ = ("_refusals", "_strangers", "waiting")

    def __init__(self, config: Config, refusals: Counter[str]) -> None:
        self._strangers: _Places[K] = _Places(
            limit=config.half_open_handshakes,
            per_address=max(1, config.half_open_per_address * 3 // 4),
            timeout=config.handshake_timeout,
        )
        self._refusals = refusals
        self.waiting: Final[Collection[K]] = self._strangers.keys()

    def open(self, connection: K, address: str | None, now: float) -> list[K]:
        """Take note of a connection; return those, older ones, that are to be closed for it."""
        losers = self._strangers.take(connection, address, now)
        if losers:
            self._refusals["too many connections"] += len(losers)
        return losers

    def authenticate(self, connection: K) -> None:
        """A genuine frame came through ``connection``: it is under no limit any more."""
        self._strangers.leave(connection)

    def refuse(self, connection: K) -> bool:
        """Tell whether ``connection`` is to be closed, because a frame that came through it was refused."""
        junk = self._strangers.leave(connection)
        if junk:
            self._refusals["junk from a stranger"] += 1
        return junk

    def close(self, connection: K) -> None:
        """The connection is gone.  May be called for any, and twice."""
        self._strangers.leave(connection)

    @property
    def deadline(self) -> float:
        """When to call ``expire``; infinity if there are no strangers."""
        return self._strangers.deadline

    def expire(self, now: float) -> list[K]:
        """Return the connections that have taken too long and are to be closed."""
        expired = self._strangers.expire(now)
        if expired:
            self._refusals["no genuine frame in time"] += len(expired)
        return expired
