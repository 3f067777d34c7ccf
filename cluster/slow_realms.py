"""Realms whose nodes are not waited for: a publisher waits for subscribers there once, and not for each that is named.

The gateways of another realm say which of its nodes want events.  One that named ever new nodes which do not answer
would have each event here wait as long as a handshake may take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from iris.kernel.ids import realm_of_site

SLOW: Final = 30.0
"""Seconds for which no publisher waits for nodes of a realm, after one of them did not answer."""


@final
class SlowRealms:
    """Whom this node has waited for in vain."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, sites: Iterable[str], now: float) -> None:
        """Nodes at these sites did not answer in time; those of the own realm are waited for all the same."""
        for realm_id in filter(None, map(realm_of_site, sites)):
            self._until[realm_id] = now + SLOW

    def is_slow(self, site: str, now: float) -> bool:
        """Tell whether nodes at a site are not to be waited for."""
        return bool(self._until) and now < self._until.get(realm_of_site(site), now)
