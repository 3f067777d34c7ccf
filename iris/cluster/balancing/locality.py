"""Locality: the order in which sites are asked.  Own site first, then the nearest, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, final

from iris.kernel.errors import ConfigError
from iris.kernel.names import check_name
from iris.kernel.numerals import as_whole, shown

FIRST: Final = 1
LAST: Final = 16
"""Priorities, as nanomsg has them: 1 is asked before 2."""

_OWN: Final = FIRST
_OTHERS: Final = 8
"""The priority of sites that are not named; also nanomsg's default."""

_REMOTE: Final = 256


class AtSite(NamedTuple):
    """A preference for the members at one site."""

    site: str


@final
class SiteOrder:
    """The order of sites for one node.

    Args:
        own: the site of the node.
        preferred: a site that is asked before all others, the own one included; or priorities from 1 to 16 of some
            sites.  By default the own site has 1 and every other one 8; of sites with the same priority the nearest is
            asked first.

    Raises:
        ConfigError: something is no site or no priority.
    """

    def __init__(self, own: str = "", preferred: str | Mapping[str, int] | None = None) -> None:
        self._own: Final = own
        if isinstance(preferred, str):
            preferred = {preferred: FIRST} if preferred == own else {preferred: FIRST, own: FIRST + 1}
        if preferred is not None and not isinstance(preferred, Mapping):
            raise ConfigError(f"prefer_site is {preferred!r}: use the name of a site, or a priority for each")
        self._priorities: Final[dict[str, int]] = {}
        for site, given in (preferred or {}).items():
            if site != own:
                check_name(site, "site")
            priority = as_whole(given)
            if priority is None or not FIRST <= priority <= LAST:
                raise ConfigError(
                    f"the priority of site {site!r} is {shown(given)}: use a number from {FIRST} to {LAST}"
                )
            self._priorities[site] = priority

    def __repr__(self) -> str:
        return f"<SiteOrder of {self._own!r}: {self._priorities}>"

    def rank(self, site: str, distance: int) -> int:
        """Return a number that is lower for sites that are asked earlier.

        Args:
            site: the name of the site.
            distance: gateways on the way; nothing for the own site.
        """
        own = site == self._own
        priority = self._priorities.get(site, _OWN if own else _OTHERS)
        return priority * _REMOTE + (0 if own else min(distance, _REMOTE - 1))
