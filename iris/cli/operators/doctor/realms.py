"""Realms of other owners that the credential trusts: whether gateways lead to them from the site of this node."""

from __future__ import annotations

import iris
from iris.cli.operators.doctor.findings import Diagnosis, ok, warning
from iris.kernel.names import realm_of_site
from iris.security.identity import CLOCK_TOLERANCE


def examine_realms(node: iris.Node) -> list[Diagnosis]:
    """Return a finding for each realm that the node's credential trusts; none for a node without a site."""
    parts = node._parts
    if parts.sites is None:
        return []
    reached = set(map(realm_of_site, parts.sites.directory.sites()))
    return [
        _examine(trusted.realm.alias, trusted.realm.id in reached, node.site) for trusted in parts.mesh.identity.trusted
    ]


def _examine(alias: str, is_reached: bool, site: str) -> Diagnosis:
    if is_reached:
        return ok("realm-ok", f"realm {alias}: gateways lead there from site {site}")
    cause = (
        f"realm {alias}: no gateway of site {site} is linked to one of it; its owner may not trust this realm, or the "
        f"clocks of the two gateways differ by more than {CLOCK_TOLERANCE} s"
    )
    return warning("realm-unlinked", cause, "on the machine of each gateway: iris gateway --status FILE; timedatectl")
