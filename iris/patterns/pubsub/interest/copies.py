"""Copies of the log of a bridge, as publishers see them: by the clusters that their members and copies serve.

A durable subscriber that is away may be a bridge whose log has a copy.  Then nobody is advised to forget it: a copy
that is promoted has all that was confirmed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from iris.cluster.membership import Member

_COPIES: Final = ".copies-"


class ServedClusters(Protocol):
    """Directory of the clusters that are served, and of their members: ``iris.cluster.membership.Membership``."""

    def clusters(self) -> Sequence[str]:
        """Return the names of all clusters that somebody serves."""
        ...

    def members(self, cluster: str) -> Sequence[Member]:
        """Return the members of a cluster."""
        ...


def primary_cluster(bridge: str, shard: int) -> str:
    """Return the cluster at which copies find the primary of a shard."""
    return f"{bridge}.primary-{shard}"


def copies_cluster(bridge: str, shard: int) -> str:
    """Return the cluster of the copies of a shard."""
    return f"{bridge}{_COPIES}{shard}"


def promotion_advice(roster: ServedClusters, bridge: str, shards: Collection[int] = ()) -> str | None:
    """Return the advice about a bridge that is away and has copies; None if none of them is there.

    Args:
        roster: roster of the node that asks.
        bridge: name of the bridge.
        shards: shards of it that are meant; empty for any.
    """
    for cluster in roster.clusters():
        name, _, number = cluster.rpartition(_COPIES)
        if name != bridge or not number.isdecimal() or (shards and int(number) not in shards):
            continue
        copies = roster.members(cluster)
        if copies and not roster.members(primary_cluster(bridge, int(number))):
            nodes = " and ".join(f"node {member.node}" for member in copies[:3])
            return (
                f"start it again, or if it is gone for good have its copy at {nodes} go on with all that was confirmed:"
                f" 'iris bridge promote {bridge}/{number}'"
            )
    return None
