"""Export index: what the gateways of all sites export, by node and by cluster.  Sans-IO.

Gateways ask it for each frame that crosses a border, and nodes for each request.  Neighbours decide how much is
exported, so an answer costs one look-up, whatever there is; a change costs the entries that change.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import TypeVar, final

from iris.cluster.directory.messages import CLUSTER, TOPIC, Export
from iris.kernel.names import realm_of_site, realm_of_topic

G = TypeVar("G")
K = TypeVar("K")


@final
class ExportIndex:
    """The exports of several origins, each entry as often as origins name it."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], dict[Export, int]] = {}
        """Entries that name a node as a member, by site and node."""
        self._subscribers: dict[tuple[str, str], int] = {}
        """Number of patterns of this realm's topics to which a node subscribes, by site and node."""
        self._remote: dict[tuple[str, str], dict[str, int]] = {}
        """Number of patterns of each other realm's topics to which a node subscribes, by site and node."""
        self._clusters: dict[str, dict[str, int]] = {}
        """Clusters of each realm, with the number of entries that name each."""

    def __repr__(self) -> str:
        return f"<ExportIndex of {len(self._members)} members and {len(self._subscribers)} subscribers>"

    def count(self, site: str, export: Export, change: int) -> None:
        """Count one more origin (1) or one less (-1) that exports an entry of a site."""
        place = (site, export.node)
        if export.kind == TOPIC:
            realm_id = realm_of_topic(export.name)
            if realm_id:
                _add(self._remote, place, realm_id, change)
            else:
                self._subscribers[place] = count = self._subscribers.get(place, 0) + change
                if not count:
                    del self._subscribers[place]
        elif export.kind == CLUSTER:
            _add(self._members, place, export, change)
            _add(self._clusters, realm_of_site(site), export.name, change)

    def names(self, site: str, node: str) -> bool:
        """Return whether a node of a site is a member of an exported cluster, or subscribes to an exported topic."""
        place = (site, node)
        return place in self._members or place in self._subscribers or place in self._remote

    def memberships(self, site: str, node: str) -> KeysView[Export]:
        """Return the entries that name a node of a site as a member of a cluster."""
        return self._members.get((site, node), {}).keys()

    def subscribes(self, site: str, node: str, realm_id: str = "") -> bool:
        """Return whether a node of a site subscribes to exported topics of a realm; empty: of this one."""
        return realm_id in self._remote.get((site, node), ()) if realm_id else (site, node) in self._subscribers

    def clusters(self, realm_id: str = "") -> KeysView[str]:
        """Return the name of every cluster that the sites of a realm export; empty: of this one."""
        return self._clusters.get(realm_id, {}).keys()


def _add(counts: dict[G, dict[K, int]], group: G, key: K, change: int) -> None:
    members = counts.setdefault(group, {})
    members[key] = members.get(key, 0) + change
    if not members[key]:
        del members[key]
        if not members:
            del counts[group]
