"""Copies that wait for a route (sans-IO): of events for sites that cannot be reached now, in the order of arrival.

While gateways replace each other a site has no route for a moment, at its publishers and at the gateways between.  A
copy for it is set aside there until there is one.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, NamedTuple, final

from iris.kernel.names import realm_of_site
from iris.kernel.wire import kinds

MAX_OF_PUBLISHER: Final = 1024 * 1024
"""Size limit of one publisher's copies for one realm, in bytes: all of them leave at once when there is a route."""

MAX_IN_ALL: Final = 4 * MAX_OF_PUBLISHER
"""Size limit of all copies, in bytes."""

_OVERHEAD: Final = 256
"""Memory that a copy takes beside its own bytes."""


class _Waiting(NamedTuple):
    since: float
    nodes: bytes
    copy: kinds.Copy


@final
class CopiesAside:
    """The copies that one node has set aside, by site."""

    def __init__(self) -> None:
        self._copies: dict[str, deque[_Waiting]] = {}
        self._sizes: Counter[tuple[str, bytes]] = Counter()
        """Size of the copies in bytes, by realm of their sites and publisher."""

    def __repr__(self) -> str:
        return f"<CopiesAside: {self._sizes.total()} bytes for {len(self._copies)} sites>"

    @property
    def sites(self) -> list[str]:
        """The sites that copies wait for."""
        return [*self._copies]

    def add(self, site: str, nodes: bytes, copy: kinds.Copy, now: float) -> bool:
        """Set a copy for some nodes of a site aside; return False if there is no room."""
        size, of = _size(nodes, copy), (realm_of_site(site), copy.source)
        if self._sizes[of] + size > MAX_OF_PUBLISHER or self._sizes.total() + size > MAX_IN_ALL:
            return False
        self._copies.setdefault(site, deque()).append(_Waiting(now, nodes, copy))
        self._sizes[of] += size
        return True

    def take(self, site: str, before: float) -> list[tuple[bytes, kinds.Copy]]:
        """Remove and return the copies for a site that were set aside until a time, each with its nodes."""
        copies = self._copies.get(site, deque())
        taken: list[tuple[bytes, kinds.Copy]] = []
        while copies and copies[0].since <= before:
            _, nodes, copy = copies.popleft()
            taken.append((nodes, copy))
            of = realm_of_site(site), copy.source
            self._sizes[of] -= _size(nodes, copy)
            if not self._sizes[of]:
                del self._sizes[of]
        if not copies:
            self._copies.pop(site, None)
        return taken


def _size(nodes: bytes, copy: kinds.Copy) -> int:
    return len(nodes) + len(copy.frame) + _OVERHEAD
