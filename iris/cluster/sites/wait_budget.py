"""Wait budget: how long publishers wait in all for subscribers at other sites to be linked.  Sans-IO.

Gateways say which nodes elsewhere want events, and could name ever new ones that do not answer, or answer late.  So one
site is waited for no longer than ``WaitBudget.limit`` seconds in ``WINDOW``, and all of the own realm no longer than
twice that, since a gateway may make up names of sites as well; another realm counts as one site.  After that events do
not wait: who is linked gets them, and who is not yet misses them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from iris.kernel.names import realm_of_site

WINDOW: Final = 30.0
"""Seconds for which the limit is, from the first time that a site was waited for."""

_ALL: Final = ""
_KEPT: Final = 1024
"""Sites that are remembered before those whose time is over are forgotten."""


class _Spent(NamedTuple):
    since: float
    seconds: float
    until: float
    """Time at which waiting ended: a publisher that waits at the same time as others holds up nothing more."""


@final
class WaitBudget:
    """The seconds that this node's publishers have waited, by site.

    Args:
        limit: seconds in a window for one site, or another realm.
    """

    def __init__(self, limit: float) -> None:
        self.limit: Final = limit
        self._spent: dict[str, _Spent] = {}

    def __repr__(self) -> str:
        return f"<WaitBudget with {len(self)} sites>"

    def __len__(self) -> int:
        """Sites that were waited for in the present window."""
        return len(self._spent)

    def left(self, site: str, now: float) -> float:
        """Return for how many seconds nodes at a site may be waited for."""
        realm_id = realm_of_site(site)
        if realm_id:
            return self.limit - self._seconds(realm_id, now)
        return min(self.limit - self._seconds(site, now), 2 * self.limit - self._seconds(_ALL, now))

    def _seconds(self, key: str, now: float) -> float:
        spent = self._spent.get(key)
        return 0.0 if spent is None or now - spent.since >= WINDOW else spent.seconds

    def spend(self, site: str, since: float, until: float) -> None:
        """Nodes at a site were waited for."""
        realm_id = realm_of_site(site)
        for key in (realm_id,) if realm_id else (site, _ALL):
            known = self._spent.get(key)
            if known is None or since - known.since >= WINDOW:
                if len(self._spent) >= _KEPT:
                    self._spent = {name: spent for name, spent in self._spent.items() if until - spent.since < WINDOW}
                self._spent[key] = _Spent(since, until - since, until)
            elif until > known.until:
                seconds = known.seconds + until - max(since, known.until)
                self._spent[key] = _Spent(known.since, seconds, until)
