"""What users give to a node, checked before anything is done with it."""

from __future__ import annotations

import math

from iris.cluster.roster import Member
from iris.cluster.site_order import AtSite
from iris.kernel.errors import ConfigError
from iris.kernel.ids import NodeId, check_name


def check_timeout(timeout: float, name: str = "timeout") -> float:
    """Return a time in seconds.

    Raises:
        ConfigError: it is none that can be waited for.
    """
    seconds = math.nan
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        try:
            seconds = float(timeout)
        except OverflowError:  # an int beyond all floats
            seconds = math.copysign(math.inf, timeout > 0 or -1)
    if math.isnan(seconds) or seconds <= 0:
        raise ConfigError(f"{name} is {timeout!r}: use seconds above 0")
    return seconds


def check_preference(prefer: Member | NodeId | None, site: str | None) -> NodeId | AtSite | None:
    """Return whom a request is to go to if that is possible: a member, or anyone at a site.

    Raises:
        ConfigError: both are given, or the site has no name of one.
    """
    if site is None:
        return prefer.node if isinstance(prefer, Member) else prefer
    if prefer is not None:
        raise ConfigError("prefer and prefer_site exclude each other: prefer names one member, at whatever site")
    return AtSite(check_name(site, "site"))
