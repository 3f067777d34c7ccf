"""Members of a document's cluster, as its replica reaches them: by broadcast, survey and tunnel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, final

from iris.cluster.sites import Sites, open_with_all
from iris.kernel.errors import NotSent
from iris.kernel.names import NodeId
from iris.kernel.tasks import protected_context
from iris.patterns.multicast import Answers, Broadcasts, StopRules, Surveys
from iris.patterns.picker import MemberDirectory
from iris.patterns.service import Tunnels
from iris.patterns.tunnel import Tunnel

_HANDSHAKE: Final = 5.0
"""Seconds that an edit waits for links to members at other sites."""


@final
class StateMembers:
    """The members of one cluster.

    Args:
        cluster: its name.
        own: this node.
        members: who serves a cluster now, at whatever site.
        sites: links members at other sites before they are asked; None without sites.
    """

    def __init__(
        self,
        cluster: str,
        own: NodeId,
        directory: MemberDirectory,
        broadcasts: Broadcasts,
        surveys: Surveys,
        tunnels: Tunnels,
        *,
        members: Callable[[str], Sequence[NodeId]],
        sites: Sites | None,
    ) -> None:
        self.cluster: Final = cluster
        self.own: Final = own
        self._directory = directory
        self._broadcasts = broadcasts
        self._surveys = surveys
        self._tunnels = tunnels
        self._members = members
        self._sites = sites

    def others(self) -> list[NodeId]:
        """Return every member but this node."""
        return [member for member in self._members(self.cluster) if member != self.own]

    def has(self, node: NodeId) -> bool:
        """Tell whether a node is a member: it has proved its right to serve the cluster."""
        return node in self._members(self.cluster)

    async def wait_news(self) -> None:
        """Wait until something may have changed in who is a member."""
        await self._directory.wait_news()

    async def broadcast(self, payload: object) -> None:
        """Tell every member; see ``Node.broadcast``."""
        await self._reach(_HANDSHAKE)
        await self._broadcasts.broadcast(self.cluster, payload)

    @protected_context
    async def open_tunnel(self, member: NodeId, operation: str, timeout: float) -> AsyncIterator[Tunnel]:
        """Open a tunnel to one member; see ``Node.open_tunnel``.

        Raises:
            NotSent: that one cannot be reached now; others are not asked in its place.
        """
        await self._reach(timeout)
        async with self._tunnels.open(self.cluster, timeout=timeout, operation=operation, prefer=member) as tunnel:
            if tunnel.sender.node != member:
                raise NotSent(f"node {member} of cluster {self.cluster!r} cannot be reached now")
            yield tunnel

    async def _reach(self, timeout: float) -> None:
        """Link to the members at other sites."""
        if self._sites is not None and self._sites.foreigners.ids(self.cluster):
            await self._sites.reach(self.cluster, timeout, everybody=True)

    def survey(
        self, operation: str, payload: object, *, timeout: float, count: int
    ) -> AbstractAsyncContextManager[Answers]:
        """Ask every member; see ``Node.survey``."""
        rules = StopRules(timeout=timeout, count=count)
        survey = partial(self._surveys.open, self.cluster, payload, rules, operation, None, None)
        return open_with_all(self._sites, self.cluster, survey, timeout)
