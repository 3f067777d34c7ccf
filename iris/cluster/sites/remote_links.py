"""Remote links: handshakes with nodes of other sites that are in progress or failed lately, and the wait for them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final, final

import trio

from iris.cluster.directory import RemoteMember, SitePath
from iris.cluster.mesh import Mesh, TurnedAway
from iris.cluster.routes import site_url
from iris.cluster.sites.wait_budget import WaitBudget
from iris.kernel.config import Config
from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId

_log: Final = logging.getLogger("iris")

_AT_A_TIME: Final = 32
"""Handshakes with nodes of other sites that one broadcast, survey or event has in progress at the same time."""

_AGAIN: Final = 1.0
"""Seconds before a node that could not be linked to is tried again."""

_MAX_PUT_OFF: Final = 1024
"""Such nodes that are remembered before those whose time has come are forgotten."""

Subscribing = tuple[str, NodeId]
"""The site of a node that wants events, and the node."""


@final
class RemoteLinks:
    """The links of this node to nodes of other sites.

    Args:
        nursery: the nursery of handshakes that nobody waits for any more.
        path: returns the best route to a site; None if there is none.
        ended: called when one has ended.
    """

    def __init__(
        self,
        mesh: Mesh,
        nursery: trio.Nursery,
        config: Config,
        path: Callable[[str], SitePath | None],
        ended: Callable[[], None],
    ) -> None:
        self._mesh = mesh
        self._nursery = nursery
        self._path = path
        self._ended = ended
        self._in_progress: dict[NodeId, trio.Event] = {}
        self._put_off: dict[NodeId, tuple[float, SitePath | None]] = {}
        """Nodes that could not be linked to: the time of the next attempt, and the route of the last one."""
        self._has_interest_of: set[NodeId] = set()
        """Linked nodes whose subscriptions have come, and that have answered: they know of the link, too."""
        self._patience: Final = WaitBudget(config.handshake_timeout)
        self._patience_to_confirm: Final = WaitBudget(config.handshake_timeout)
        """Budget of events that are to be confirmed, which wait also where others have just waited in vain."""

    def __repr__(self) -> str:
        return f"<RemoteLinks: {len(self._in_progress)} in progress>"

    def may_try(self, site: str, node: NodeId) -> bool:
        """Return whether a node has not failed to answer just now, over the route that there is."""
        until, path = self._put_off.get(node, (0.0, None))
        return until <= trio.current_time() or self._path(site) != path

    def put_off(self, site: str, node: NodeId) -> None:
        """Try a node that could not be linked to again later; gateways elsewhere may name ever new ones."""
        now = trio.current_time()
        if len(self._put_off) >= _MAX_PUT_OFF:
            self._put_off = {known: tried for known, tried in self._put_off.items() if tried[0] > now}
        self._put_off[node] = now + _AGAIN, self._path(site)

    def linked(self, node: NodeId) -> None:
        """A node is linked."""
        self._put_off.pop(node, None)

    def lost(self, node: NodeId) -> None:
        """A node is not linked any more."""
        self._has_interest_of.discard(node)

    def begin(self, member: RemoteMember) -> trio.Event:
        """Begin a handshake if none is in progress; return what is set when it has ended, well or not."""
        done = self._in_progress.get(member.node)
        if done is None:
            done = self._in_progress[member.node] = trio.Event()
            self._nursery.start_soon(self._link, member, done)
        return done

    async def _link(self, member: RemoteMember, done: trio.Event) -> None:
        try:
            await self._connect(member)
        except IrisError as error:
            self.put_off(member.site, member.node)
            _log.debug(
                "cannot link to node %s of site %s: %s",
                member.node,
                member.site,
                error,
                extra={"peer": member.node, "site": member.site},
            )
        finally:
            del self._in_progress[member.node]
            done.set()
            self._ended()

    async def _connect(self, member: RemoteMember) -> None:
        """Link to a node; where another route has taken the place of that of the handshake, it is begun again."""
        while True:
            path = self._path(member.site)
            try:
                await self._mesh.connect([site_url(member.site, member.node)], expected=member.node)
            except TurnedAway:
                if self._path(member.site) in (None, path):
                    raise
            else:
                return

    async def all(self, members: list[RemoteMember]) -> None:
        """Link to each of some nodes; cancelling it leaves handshakes in progress that end by themselves."""
        limit = trio.CapacityLimiter(_AT_A_TIME)

        async def link(member: RemoteMember) -> None:
            async with limit:
                await self.begin(member).wait()

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(link, member)

    # -- subscribers ----------------------------------------------------------------------------------------

    async def reach_subscribers(
        self, nodes: Collection[Subscribing], has_interest_of: Callable[[NodeId], bool], *, within: float | None = None
    ) -> int:
        """Link to nodes and learn what they subscribe to; return with how many of them it did not work.

        They are waited for as far as there is ``WaitBudget`` with their sites.

        Args:
            nodes: with their sites.
            has_interest_of: tells whether a node is linked, and all its subscriptions were received.
            within: seconds at most, for an event that is to be confirmed: for these there is a patience of its own.
        """
        fresh = [(site, node) for site, node in nodes if node not in self._has_interest_of]
        if not fresh:
            return 0
        now = trio.current_time()
        limit = trio.CapacityLimiter(_AT_A_TIME)
        took: dict[str, float] = {}
        try:
            async with trio.open_nursery() as nursery:
                for site, node in _in_turns(fresh):
                    if within is None:
                        patience = self._patience.left(site, now)
                    else:
                        patience = min(within, self._patience_to_confirm.left(site, now))
                    if patience > 0:
                        nursery.start_soon(self._reach, site, node, has_interest_of, now + patience, limit, took)
                    else:
                        self.begin_subscribers([(site, node)])
        finally:
            for site, until in took.items():
                self._patience.spend(site, now, until)
                if within is not None:
                    self._patience_to_confirm.spend(site, now, until)
        return sum(not has_interest_of(node) for _, node in fresh)

    def begin_subscribers(self, nodes: Collection[Subscribing]) -> None:
        """Begin handshakes with nodes that are not linked, as many as may be in progress at a time; wait for none."""
        for site, node in _in_turns(nodes):
            if self._is_missing(site, node) and len(self._in_progress) < _AT_A_TIME:
                self.begin(RemoteMember(site, node, b"", 0))

    async def _reach(
        self,
        site: str,
        node: NodeId,
        has_interest_of: Callable[[NodeId], bool],
        deadline: float,
        limit: trio.CapacityLimiter,
        took: dict[str, float],
    ) -> None:
        try:
            with trio.move_on_at(deadline):
                if self._is_missing(site, node):
                    async with limit:
                        await self.begin(RemoteMember(site, node, b"", 0)).wait()
                await self._mesh.barrier(node, has_interest_of)
                if has_interest_of(node):
                    self._has_interest_of.add(node)
        finally:
            took[site] = trio.current_time()

    def _is_missing(self, site: str, node: NodeId) -> bool:
        return node not in self._mesh.peers and self.may_try(site, node)


def _in_turns(nodes: Iterable[Subscribing]) -> Iterable[Subscribing]:
    """Yield one node of each site, then a second one of each: a site that names very many keeps no other waiting."""
    by_site: dict[str, list[Subscribing]] = {}
    for site, node in nodes:
        by_site.setdefault(site, []).append((site, node))
    for turn in itertools.zip_longest(*by_site.values()):
        yield from (found for found in turn if found is not None)
