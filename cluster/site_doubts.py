"""Nodes of other sites that are exported as members of clusters which they have no right to be members of."""

from __future__ import annotations

import logging
from typing import Final, final

from iris.kernel.ids import NodeId

_log: Final = logging.getLogger("iris")

_MAX_REPORTED: Final = 100
"""Sites that are reported for it, each once: gateways can make up any number of names."""


@final
class SiteDoubts:
    """What is exported of linked nodes and is not believed."""

    def __init__(self) -> None:
        self._clusters: dict[NodeId, set[str]] = {}
        self._reported: set[str] = set()

    def __repr__(self) -> str:
        return f"<SiteDoubts about {len(self._clusters)} nodes>"

    def note(self, site: str, node: NodeId, clusters: set[str]) -> int:
        """Note the clusters that a node is exported as a member of without a right to; return how many are new.

        It is reported once for each site.
        """
        fresh = clusters - self._clusters.get(node, set())
        if clusters:
            self._clusters[node] = clusters  # and no former ones: a site can name others each time
        else:
            self._clusters.pop(node, None)
        if fresh and site not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(site)
            text = "site %r exports node %s as a member of cluster %r, which it has no right to be: it is not asked"
            _log.warning(text, site, node, min(fresh))
        return len(fresh)

    def forget(self, node: NodeId) -> None:
        """A node is not linked any more."""
        self._clusters.pop(node, None)
