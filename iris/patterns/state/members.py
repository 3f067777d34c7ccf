"""Members of a document's cluster, as its replica reaches them: by broadcast, survey and tunnel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, final

from msgspec import Struct

from iris.cluster.sites import Reach, open_with_all, reach_all
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
class StateMembers(Struct, frozen=True):
    """The members of one cluster."""

    cluster: str
    own: NodeId
    """This node."""
    directory: MemberDirectory
    broadcasts: Broadcasts
    surveys: Surveys
    tunnels: Tunnels
    reach: Reach
    """Links members that are not linked before they are asked."""
    all: Callable[[], Sequence[NodeId]]
    """Function that returns the members of the cluster now, at whatever site."""

    def others(self) -> list[NodeId]:
        """Return every member but this node."""
        return [member for member in self.all() if member != self.own]

    def has(self, node: NodeId) -> bool:
        """Return whether a node is a member: it has proved its right to serve the cluster."""
        return node in self.all()

    async def wait_news(self) -> None:
        """Wait until something may have changed in who is a member."""
        await self.directory.wait_news()

    async def broadcast(self, payload: object) -> None:
        """Send to every member; see ``Node.broadcast``."""
        _, without_link = await reach_all(self.reach, self.cluster, _HANDSHAKE)
        await self.broadcasts.broadcast(self.cluster, payload, without_link=without_link)

    @protected_context
    async def open_tunnel(self, member: NodeId, operation: str, timeout: float) -> AsyncIterator[Tunnel]:
        """Open a tunnel to one member; see ``Node.open_tunnel``.

        Raises:
            NotSent: that one cannot be reached now; others are not asked in its place.
        """
        await reach_all(self.reach, self.cluster, timeout)
        async with self.tunnels.open(self.cluster, timeout=timeout, operation=operation, prefer=member) as tunnel:
            if tunnel.sender.node != member:
                raise NotSent(f"node {member} of cluster {self.cluster!r} cannot be reached now")
            yield tunnel

    def survey(
        self, operation: str, payload: object, *, timeout: float, count: int
    ) -> AbstractAsyncContextManager[Answers]:
        """Ask every member; see ``Node.survey``."""
        rules = StopRules(timeout=timeout, count=count)
        survey = partial(self.surveys.open, self.cluster, payload, rules, operation, None, None)
        return open_with_all(self.reach, self.cluster, survey, timeout)
