"""Interface of the patterns to the cluster layer: who serves a name, and which member to ask."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from iris.cluster.balancing import AtSite
from iris.kernel.errors import NoSuchCluster
from iris.kernel.names import NodeId, split_address
from iris.security.identity import NodeIdentity


class Picker(Protocol):
    """Picks among the members of one cluster, by the outcomes of earlier requests."""

    def pick(
        self,
        *,
        exclude: Collection[NodeId] = (),
        key: str | None = None,
        prefer: NodeId | AtSite | None = None,
        now: float = ...,
    ) -> NodeId | None:
        """Return the member to ask next, or None if there is none outside ``exclude``."""
        ...

    def has_other(self, exclude: Collection[NodeId]) -> bool:
        """Tell whether there is a member outside ``exclude`` to ask."""
        ...

    def started(self, node: NodeId) -> None:
        """Count a request as outstanding at ``node``."""
        ...

    def finished(
        self, node: NodeId, latency: float, *, ok: bool, answered: bool | None = ..., now: float = ...
    ) -> None:
        """Count it as ended after ``latency`` seconds; see ``Balancer.finished``."""
        ...

    def may_repeat(self, now: float, *, forced: bool = ...) -> bool:
        """Tell whether a request may be made once more, and count it."""
        ...


class MemberDirectory(Protocol):
    """Directory: from the name of a cluster to its picker."""

    def picker(self, cluster: str) -> Picker | None:
        """Return the picker of a cluster, or None if nobody serves it."""
        ...

    def had_members(self, cluster: str) -> bool:
        """Tell whether a cluster had members a moment ago, see ``Config.absence_patience``, if it has none now."""
        ...

    async def wait_news(self) -> None:
        """Wait until something may have changed in who serves what."""
        ...

    def member_ids(self, cluster: str) -> Sequence[NodeId]:
        """Return every member of a cluster that is not known to be dead, in no particular order."""
        ...


def nobody_serves(cluster: str, identity: NodeIdentity, trouble: str = "") -> NoSuchCluster:
    """Return the error for a request to a cluster without members, as seen by the node of that identity."""
    alias, name, _ = split_address(cluster)
    realm = identity.alias(alias) if alias else None
    if alias and realm is None:
        return NoSuchCluster(f"no realm is trusted here by the name of {alias!r}: nobody serves {cluster!r}")
    if realm is not None and not realm.may_use(name):
        return NoSuchCluster(f"realm {alias!r} does not export the cluster {name!r}, or it is not imported here")
    return NoSuchCluster(f"no reachable member serves the cluster {cluster!r}{trouble}")
