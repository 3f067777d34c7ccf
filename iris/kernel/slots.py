"""Slot table: slots for unauthenticated peers, bounded in number (in all and for one address) and in time.  Sans-IO.

When no slot is free, the newest evicts the oldest.  What is honest lasts milliseconds: to keep a node from being
reached, an attacker would have to come thousands of times a second, not once in five.

Groups hold values by key, so that what concerns one key costs what it has, and not all that there is.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar, final

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


_G = TypeVar("_G")
_V = TypeVar("_V")


@final
class SlotTable(Generic[K]):
    """A bounded number of slots, each for a bounded time; the newest evicts the oldest.

    Args:
        limit: slots in all.
        per_address: slots that one address may have.
        timeout: seconds for which one may be kept.
    """

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
        """Return the keys that have a slot, as a view."""
        return self._taken.keys()

    def allocate(self, key: K, address: str | None, now: float) -> list[K]:
        """Give ``key`` a slot; return the keys that are evicted for it."""
        if key in self._taken:
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
            # After the limit of one address, so that an address which has too many loses its own first.
            losers.append(next(iter(self._taken)))
            self.leave(losers[-1])
        return losers

    def leave(self, key: K) -> bool:
        """Free the slot of ``key``; return whether it had one."""
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
        """The time at which to call ``expire``; infinity if no slot is taken."""
        for _, deadline in self._taken.values():
            return deadline
        return math.inf

    def expire(self, now: float) -> list[K]:
        """Free the slots whose time is over; return their keys."""
        expired: list[K] = []
        while self.deadline <= now:
            key = next(iter(self._taken))
            self.leave(key)
            expired.append(key)
        return expired


@final
class Groups(Generic[_G, _V]):
    """Values by key, each once, in the order in which they were added.  A key without values takes no memory."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[_G, dict[_V, None]] = {}

    def __repr__(self) -> str:
        return f"<Groups: {len(self._groups)} keys>"

    def of(self, key: _G) -> Collection[_V]:
        """Return the values of a key as they are now."""
        return tuple(self._groups.get(key, ()))

    def add(self, key: _G, value: _V) -> None:
        """Put a value under a key, if it is not there."""
        self._groups.setdefault(key, {})[value] = None

    def remove(self, key: _G, value: _V) -> None:
        """Remove a value from under a key, if it is there."""
        group = self._groups.get(key)
        if group is not None:
            group.pop(value, None)
            if not group:
                del self._groups[key]

    def pop(self, key: _G) -> Collection[_V]:
        """Remove all values of a key, and return them."""
        return tuple(self._groups.pop(key, ()))
