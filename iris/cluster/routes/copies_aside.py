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

MAX_OF_OWNER: Final = 2 * MAX_OF_PUBLISHER
"""Size limit of all that nodes of one owner have handed over, in bytes: the holder of its key can come as any number
of publishers, and a gateway of another site can name any."""

MAX_IN_ALL: Final = 4 * MAX_OF_PUBLISHER
"""Size limit of all copies, in bytes."""

_OVERHEAD: Final = 256
"""Memory that a copy takes beside its own bytes."""


class Waiting(NamedTuple):
    """A copy that waits for a route."""

    since: float
    """Time at which it was set aside first."""
    owner: str
    """Owner of the node that has handed it over; see ``PeerIdentity.owner``."""
    nodes: bytes
    """The nodes of the site that it is for."""
    copy: kinds.Copy

    @property
    def size(self) -> int:
        """Memory that it takes, in bytes."""
        return len(self.nodes) + len(self.copy.frame) + _OVERHEAD


@final
class CopiesAside:
    """The copies that one node has set aside, by site."""

    def __init__(self) -> None:
        self._copies: dict[str, deque[Waiting]] = {}
        self._sizes: Counter[tuple[str, str, str, bytes]] = Counter()
        """Size of the copies in bytes, by realm of their sites, owner, and publisher with its site."""
        self._of_owner: Counter[str] = Counter()
        self.bytes = 0
        """Size of all copies in bytes."""

    def __repr__(self) -> str:
        return f"<CopiesAside: {self.bytes} bytes for {len(self._copies)} sites>"

    @property
    def sites(self) -> list[str]:
        """The sites that copies wait for."""
        return [*self._copies]

    def add(self, site: str, waiting: Waiting) -> bool:
        """Set a copy for some nodes of a site aside; return False if there is no room."""
        sizes = self._sizes[_publisher(site, waiting)], self._of_owner[waiting.owner], self.bytes
        bounds = MAX_OF_PUBLISHER, MAX_OF_OWNER, MAX_IN_ALL
        if any(size + waiting.size > bound for size, bound in zip(sizes, bounds, strict=True)):
            return False
        self._copies.setdefault(site, deque()).append(waiting)
        self._count(site, waiting, waiting.size)
        return True

    def pop(self, site: str, before: float) -> list[Waiting]:
        """Remove and return the copies for a site that were set aside until a time."""
        copies = self._copies.get(site, deque())
        taken: list[Waiting] = []
        while copies and copies[0].since <= before:
            waiting = copies.popleft()
            taken.append(waiting)
            self._count(site, waiting, -waiting.size)
        if not copies:
            self._copies.pop(site, None)
        return taken

    def _count(self, site: str, waiting: Waiting, size: int) -> None:
        self.bytes += size
        publisher = _publisher(site, waiting)
        self._sizes[publisher] += size
        if not self._sizes[publisher]:
            del self._sizes[publisher]
        self._of_owner[waiting.owner] += size
        if not self._of_owner[waiting.owner]:
            del self._of_owner[waiting.owner]


def _publisher(site: str, waiting: Waiting) -> tuple[str, str, str, bytes]:
    return realm_of_site(site), waiting.owner, waiting.copy.source_site, waiting.copy.source
