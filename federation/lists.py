"""What one gateway lets in and out: its own lists, and for other realms what the owners have agreed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from iris.cluster.site_contents import Contents
from iris.cluster.site_messages import CLUSTER, COMPANION, Export
from iris.federation.policy import Policy
from iris.kernel.ids import NodeId, realm_of_site
from iris.security.identity import NodeIdentity


@final
class Lists:
    """The lists in force.

    Args:
        policy: of this gateway.
        identity: returns who the gateway is now, and so whom it trusts.
    """

    def __init__(self, policy: Policy, identity: Callable[[], NodeIdentity]) -> None:
        self._policy = policy
        self._identity = identity

    def is_exported(self, exported: Contents, node: NodeId, site: str) -> bool:
        """Tell whether a node of this site serves or hears something that another site may use."""
        realm_id = realm_of_site(site)
        if not realm_id:
            return any(node in nodes for listed in (exported.clusters, exported.topics) for nodes in listed.values())
        realm = self._identity().foreign(realm_id)
        return realm is not None and any(
            node in nodes for name, nodes in exported.clusters.items() if realm.may_reach(name)
        )

    def may_tell(self, realm_id: str, export: Export) -> bool:
        """Tell whether another realm may know of something: of clusters that it may reach, and of no subscriptions."""
        realm = self._identity().foreign(realm_id)
        return realm is not None and export.kind == CLUSTER and realm.may_reach(export.name)

    def may_import(self, site: str, export: Export) -> bool:
        """Tell whether something that a site exports is taken."""
        realm_id = realm_of_site(site)
        if realm_id and export.kind != COMPANION:
            realm = self._identity().foreign(realm_id)
            if realm is None or export.kind != CLUSTER or not realm.may_use(export.name):
                return False
        return self._policy.may_import(export)
