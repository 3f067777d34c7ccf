"""Addresses of nodes at other sites, which may come from peers."""

from __future__ import annotations

import pytest

from iris.cluster.routes.gateway import parse_site_url
from iris.kernel.errors import ConfigError

NODE = "0123456789abcdef" * 2
REALM = "f" * 32


@pytest.mark.parametrize("site", ["eu", f"{REALM}/eu"])
def test_an_address_has_a_site_and_a_node(site: str) -> None:
    assert parse_site_url(f"site://{site}/{NODE}") == (site, NODE)


@pytest.mark.parametrize(
    "url",
    [f"tcp://eu/{NODE}", f"eu/{NODE}", f"site://{NODE}", f"site:///{NODE}", f"site://eu west/{NODE}", f"site://x/eu/{NODE}",
     "site://eu/node", "site://eu/", "site://"],
)  # fmt: skip
def test_what_is_no_such_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not an address of a node at another site"):
        parse_site_url(url)
