"""Nodes that may be linked to directly, by the sites that both state."""

from __future__ import annotations

import pytest

from iris.cluster.directory import SiteTag
from iris.kernel.errors import AuthenticationError

NORTH, SOUTH, NOWHERE = SiteTag(site="north"), SiteTag(site="south"), SiteTag()
CLIENT = SiteTag(site="north", client=True)
NORTH_GATE, SOUTH_GATE = SiteTag(site="north", between=True), SiteTag(site="south", between=True)


@pytest.mark.parametrize(
    ("own", "other", "same_realm"),
    [
        (NORTH, NORTH, True),
        (NOWHERE, NOWHERE, True),
        (NORTH, CLIENT, True),
        (CLIENT, NORTH, True),
        (NORTH_GATE, SOUTH_GATE, True),
        (NORTH_GATE, SOUTH_GATE, False),
        (NORTH_GATE, NORTH_GATE, False),
    ],
)
def test_these_may_be_linked(own: SiteTag, other: SiteTag, same_realm: bool) -> None:
    own.check(other.text, same_realm=same_realm)


@pytest.mark.parametrize(
    ("own", "other", "same_realm", "reason"),
    [
        (NORTH, NORTH, False, "different realms"),
        (NORTH, SOUTH, True, "different sites"),
        (NORTH, NOWHERE, True, "different sites"),
        (NORTH, NORTH_GATE, True, "different sites"),
        (CLIENT, CLIENT, True, "two clients"),
        (NORTH_GATE, SOUTH, True, "no gateway has dialled"),
        (NORTH_GATE, NORTH_GATE, True, "another gateway calls its site 'north'"),
    ],
)
def test_these_may_not(own: SiteTag, other: SiteTag, same_realm: bool, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        own.check(other.text, same_realm=same_realm)
