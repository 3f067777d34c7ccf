"""Order in which sites are asked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iris.cluster.balancing.locality import SiteOrder
from iris.kernel.errors import ConfigError

PLACES = {"own": 0, "near": 1, "far": 3, "farther": 4}


def order(preferred: str | Mapping[str, int] | None = None) -> list[str]:
    ranked = SiteOrder("own", preferred)
    return sorted(PLACES, key=lambda site: ranked.rank(site, PLACES[site]))


@pytest.mark.parametrize(
    ("preferred", "expected"),
    [
        (None, ["own", "near", "far", "farther"]),
        ("far", ["far", "own", "near", "farther"]),
        ("own", ["own", "near", "far", "farther"]),
        ({}, ["own", "near", "far", "farther"]),
        ({"farther": 2}, ["own", "farther", "near", "far"]),
        ({"far": 3, "farther": 3}, ["own", "far", "farther", "near"]),
        ({"near": 16, "far": 9}, ["own", "farther", "far", "near"]),
        ({"own": 16}, ["near", "far", "farther", "own"]),
        ({"far": 1, "own": 1}, ["own", "far", "near", "farther"]),
        ({"unknown": 1}, ["own", "near", "far", "farther"]),
    ],
)
def test_priorities_come_first_and_then_the_nearest(
    preferred: str | Mapping[str, int] | None, expected: list[str]
) -> None:
    assert order(preferred) == expected


def test_a_site_beyond_all_distances_is_still_of_its_priority() -> None:
    ranked = SiteOrder("own", {"a": 2})
    assert ranked.rank("a", 10_000) < ranked.rank("b", 1)


@pytest.mark.parametrize("preferred", ["", "no site!", {"eu": 0}, {"eu": 17}, {"eu": True}, {"eu": "1"}, {"a b": 1}])
def test_what_is_no_order_is_refused(preferred: str | Mapping[str, int]) -> None:
    with pytest.raises(ConfigError):
        SiteOrder("own", preferred)
