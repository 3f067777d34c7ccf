"""Member reach: links to members that are not linked before they are asked, of this site and of others.

A large realm keeps a link to a few members only (``Partners``); those that a program asks are linked when it does so
for the first time, and then stay as long as they are asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from hashlib import blake2b
from heapq import nsmallest
from typing import Final, final

import trio

from iris.cluster.membership import Membership
from iris.cluster.mesh import Mesh
from iris.cluster.sites.sites import Sites
from iris.kernel.names import NodeId
from iris.kernel.tasks import time_left

_ENOUGH: Final = 16
"""Members of one cluster that are linked to ask one of them at a time: a caller gives work to a dozen."""

_AT_ONCE: Final = 3
"""Members that one call begins to link to: the first of them that is linked is asked, and further calls link more."""

_NEXT: Final = 0.5
"""Seconds after which it begins to link to as many more, while none of them can be asked."""

_REMEMBERED: Final = 4096
"""Clusters of which it is remembered that enough members, or all, are linked."""


@final
class MemberReach:
    """Links one member of a realm to those that it asks.

    Args:
        sites: other sites.  None if the node is at none.
    """

    def __init__(self, mesh: Mesh, membership: Membership, sites: Sites | None) -> None:
        self._mesh = mesh
        self._membership = membership
        self._sites = sites
        self._reached: dict[tuple[str, bool], int] = {}
        """Versions of the membership at which enough members of a cluster, or all of them, were linked."""
        self._without_link: dict[str, tuple[int, list[NodeId]]] = {}
        """Members without a link at a version of the membership, by address."""
        self._asked: dict[tuple[str, bool], None] = {}
        """Addresses that were asked since ``used_since`` was called for the last time."""
        self._asked_at: dict[tuple[str, bool], float] = {}
        self._asked_nodes: dict[NodeId, float] = {}
        """Nodes that were asked whatever they serve, and when."""

    def __repr__(self) -> str:
        return f"<MemberReach: {len(self._reached)} clusters>"

    def matters(self, address: str, *, keyed: bool = False) -> bool:
        """See ``Reach.matters``."""
        return self._lacks(address, keyed) or (self._sites is not None and self._sites.matters(address))

    def lists(self, address: str) -> bool:
        """See ``Reach.lists``."""
        return self._lacks(address, everybody=True) or (self._sites is not None and self._sites.lists(address))

    async def reach(
        self, address: str, timeout: float, *, everybody: bool, keyed: bool = False, tried: Collection[NodeId] = ()
    ) -> float:
        """See ``Reach.reach``.  Cancelling it leaves handshakes in progress that end by themselves."""
        deadline, membership, sites = trio.current_time() + timeout, self._membership, self._sites
        each = everybody or keyed
        lacking = self._lacking(address, each)
        step = max(1, len(lacking)) if each else _AT_ONCE
        await trio.lowlevel.checkpoint()
        # Those who cannot be linked must not take from the others the time in which these answer.
        with trio.move_on_after(min(timeout / 2 if each else timeout, self._mesh.config.handshake_timeout)):
            for start in range(0, len(lacking), step):
                begun = lacking[: start + step]
                for node in begun[start:]:
                    membership.request_link(node)
                with trio.move_on_after(_NEXT if len(begun) < len(lacking) else math.inf):
                    while not (
                        all(map(membership.is_settled, begun)) or (not each and self._can_be_asked(address, tried))
                    ):
                        await membership.wait_news()
                if not each and self._can_be_asked(address, tried):
                    break
        left = time_left(deadline)
        if sites is not None and (sites.lists(address) if everybody else sites.matters(address)):
            left = await sites.reach(address, left, everybody=everybody)
        return left

    async def reach_node(self, node: NodeId, timeout: float) -> float:
        """See ``Reach.reach_node``."""
        self._asked_nodes[node] = trio.current_time()
        return await self._membership.link(node, timeout)

    def without_link(self, address: str) -> list[NodeId]:
        """See ``Reach.without_link``."""
        version, known = self._membership.version, self._without_link.get(address)
        if known is None or known[0] != version:
            found = self._membership.without_link(address)
            if found or self._membership.member_ids(address):  # see ``_lacks``
                if len(self._without_link) >= _REMEMBERED:
                    self._without_link.clear()
                self._without_link[address] = version, found
        else:
            found = known[1]
        return found if self._sites is None else [*found, *self._sites.without_link(address)]

    def _lacks(self, address: str, everybody: bool) -> bool:
        """Return whether members of this site are to be linked first; where none has changed, by a look-up."""
        version, asked = self._membership.version, (address, everybody)
        if self._reached.get(asked) == version:
            self._asked[asked] = None
            return False
        if self._lacking(address, everybody):
            self._asked[asked] = None
            return True
        if not self._membership.member_ids(address):
            return False  # nothing is remembered of names that nobody serves: clients of a door can make up any
        if len(self._reached) >= _REMEMBERED:
            self._reached.clear()
        self._reached[asked] = version
        self._asked[asked] = None
        return False

    def used_since(self, time: float) -> Collection[NodeId]:
        """See ``UsedMembers``."""
        now = trio.current_time()
        self._asked_at.update(dict.fromkeys(self._asked, now))
        self._asked.clear()
        self._asked_at = {asked: at for asked, at in self._asked_at.items() if at >= time}
        self._asked_nodes = {node: at for node, at in self._asked_nodes.items() if at >= time}
        used: set[NodeId] = set(self._asked_nodes)
        for address, everybody in self._asked_at:
            members = self._membership.member_ids(address)
            used.update(members if everybody else self._chosen(members, _ENOUGH))
        return used

    def _lacking(self, address: str, everybody: bool) -> list[NodeId]:
        """Return the members that are to be linked before one, or each, is asked, as far as they can be."""
        if self._mesh.expelled() is not None:
            return []  # those who are dialled answer the handshake, and nothing after it
        unlinked = self._membership.unlinked(address)
        if everybody or not unlinked:
            return unlinked
        return self._chosen(unlinked, _ENOUGH - len(self._membership.member_ids(address)))

    def _chosen(self, members: Sequence[NodeId], count: int) -> list[NodeId]:
        return nsmallest(max(0, count), members, self._rank)

    def _rank(self, node: NodeId) -> bytes:
        """Return the rank of a member for this node: another one at each, so that all members have as many callers."""
        return blake2b(f"{self._mesh.node}{node}".encode(), digest_size=8).digest()

    def _can_be_asked(self, address: str, tried: Collection[NodeId]) -> bool:
        picker = self._membership.picker(address)
        return picker is not None and picker.has_other(tried)
