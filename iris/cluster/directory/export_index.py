"""Export index: what the gateways of all sites export, by node and by cluster.  Sans-IO.

Gateways ask it for each frame that crosses a border, and nodes for each request.  Neighbours decide how much is exported,
so an answer costs one look-up, whatever there is; a change costs the entries that change.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Final, TypeVar, final

from iris.cluster.directory.messages import CLUSTER, COMPANION, TOPIC, Export
from iris.kernel.names import realm_of_site, realm_of_topic

K = TypeVar("K")


@final
class ExportIndex:
    """The exports of several origins, each entry as often as origins name it."""

    def __init__(self) -> None:
        self._by_node: dict[tuple[str, str], dict[Export, int]] = {}
        self._listening: dict[tuple[str, str, str], int] = {}
        """By site, node, and the realm of the topics: how many patterns it subscribes to."""
        self._clusters: dict[str, dict[str, int]] = {}
        """For each realm its clusters, and how many entries name each."""

    def __repr__(self) -> str:
        return f"<ExportIndex of {len(self._by_node)} nodes>"

    def count(self, site: str, export: Export, change: int) -> None:
        """Count one more origin (1) or one less (-1) that exports an entry of a site."""
        if export.kind == COMPANION:
            return
        place = (site, export.node)
        entries = self._by_node.setdefault(place, {})
        _add(entries, export, change)
        if not entries:
            del self._by_node[place]
        if export.kind == TOPIC:
            _add(self._listening, (site, export.node, realm_of_topic(export.name)), change)
        elif export.kind == CLUSTER:
            realm_id = realm_of_site(site)
            clusters = self._clusters.setdefault(realm_id, {})
            _add(clusters, export.name, change)
            if not clusters:
                del self._clusters[realm_id]

    def names(self, site: str, node: str) -> bool:
        """Tell whether a node of a site is a member of an exported cluster, or subscribes to an exported topic."""
        return (site, node) in self._by_node

    def of_node(self, site: str, node: str) -> KeysView[Export]:
        """Return what is exported of a node of a site."""
        return self._by_node.get((site, node), {}).keys()

    def subscribes(self, site: str, node: str, realm_id: str = "") -> bool:
        """Tell whether a node of a site subscribes to exported topics of a realm; empty: of this one."""
        return (site, node, realm_id) in self._listening

    def clusters(self, realm_id: str = "") -> KeysView[str]:
        """Return the name of every cluster that the sites of a realm export; empty: of this one."""
        return self._clusters.get(realm_id, {}).keys()


def _add(counts: dict[K, int], key: K, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
