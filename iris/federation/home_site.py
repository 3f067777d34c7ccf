"""Home site: what a gateway knows of its own site.  What is exported, who has gone, and whether it knows all by now."""

from __future__ import annotations

from typing import Final, final

import trio

from iris.cluster.directory import ExportIndex, SiteDirectory
from iris.cluster.membership import Membership
from iris.federation.advertising import Advertiser
from iris.federation.policy import Lists
from iris.kernel.names import NodeId


@final
class GatewaySite:
    """The site of one gateway; see ``HomeSite``.

    Args:
        settling: seconds for which a gateway may not know its site, or another one, after it was started.
    """

    def __init__(
        self,
        membership: Membership,
        directory: SiteDirectory,
        lists: Lists,
        advertising: Advertiser,
        settling: float,
    ) -> None:
        self.exports: Final[ExportIndex] = advertising.index
        """Exports of this gateway, by node."""
        self._membership = membership
        self._directory = directory
        self._lists = lists
        self._advertising = advertising
        self._settling = settling
        self._settles = trio.current_time() + settling

    def __repr__(self) -> str:
        return f"<GatewaySite {self._directory.own.site}>"

    def is_exported(self, node: NodeId, site: str) -> bool:
        """See ``HomeSite.is_exported``."""
        return self._lists.is_exported(self._advertising.exported, self.exports, node, site)

    def is_settled(self, site: str) -> bool:
        """See ``HomeSite.is_settled``."""
        now = trio.current_time()
        return now >= self._settles and (not site or now >= self._directory.settles(site, self._settling))

    def is_gone(self, node: NodeId) -> bool | None:
        """See ``HomeSite.is_gone``."""
        known = self._membership.knows(node) or self._membership.is_gone(node)
        return self._membership.is_gone(node) if known else None
