"""Subscriber links: links to those who may hear what a node publishes, before it publishes, and to those it may hear.

A node that publishes or subscribes keeps a link to every member of its site, for no event may be missed because nobody
knew of a subscription.  Subscribers at other sites are linked when a topic of theirs is published on.
"""

from __future__ import annotations

import math
from typing import Protocol, final

import trio

from iris.cluster.mesh import Mesh
from iris.kernel.names import NodeId
from iris.patterns.pubsub.interest import InterestTable
from iris.patterns.pubsub.remote import RemoteSubscribers


class LinkedMembers(Protocol):
    """Members of this site, as ``iris.cluster.membership.Membership`` links them."""

    def link_everybody(self) -> None:
        """Keep a link to every member from now on."""
        ...

    def lacks_links(self) -> bool:
        """Return whether a member that is to be kept linked is not linked yet, and may be soon."""
        ...

    async def wait_news(self) -> None:
        """Wait until something has changed in who is here, or is linked."""
        ...


@final
class SubscriberLinks:
    """Links of one node to those who may hear it.

    Args:
        interest: table of what the linked nodes subscribe to.
        remote: subscribers at other sites.  None if the node is at no site.
    """

    def __init__(
        self, mesh: Mesh, members: LinkedMembers, interest: InterestTable, remote: RemoteSubscribers | None
    ) -> None:
        self._mesh = mesh
        self._members = members
        self._interest = interest
        self._remote = remote
        self._ready = False
        self._until = math.inf
        """Time until which it waits for everybody, whoever publishes."""

    def __repr__(self) -> str:
        return f"<SubscriberLinks: {'all' if self._ready else 'some'}>"

    @property
    def is_complete(self) -> bool:
        """Whether all are linked, and will be, for any topic."""
        return self._ready and self._remote is None

    def pending(self, topic: str) -> bool:
        """Return whether subscribers may have to be linked before an event; costs a look-up."""
        return not self._ready or (self._remote is not None and self._remote.pending(topic))

    async def reach(self, topic: str, *, within: float | None = None) -> float:
        """Link to the subscribers of a topic that are not linked yet; return what is left of ``within``.

        Returns at the latest after ``Config.subscribe_timeout``, and when a handshake with another site must have
        ended.  Cancelling it leaves handshakes in progress that end by themselves.

        Args:
            topic: topic of the event.
            within: seconds in which an event is to be confirmed; None: it is not to be.

        Raises:
            ConfigError: see ``RemoteSubscribers.reach``.
        """
        if not (self._ready or self._is_ready()):
            began = trio.current_time()
            await self._wait_interest(math.inf if within is None else within / 2)
            if within is not None:
                within = max(within - (trio.current_time() - began), 0.001)
        if self._remote is not None and self._remote.pending(topic):
            return await self._remote.reach(topic, within=within)
        return math.inf if within is None else within

    def begin(self, topic: str) -> None:
        """Begin to link to the subscribers of a topic at other sites that are not linked yet, without waiting."""
        if self._remote is not None:
            self._remote.begin(topic)

    async def link_everybody(self) -> None:
        """Keep a link to every member of this site, and wait until there is one to each that answers.

        Returns at the latest after ``Config.subscribe_timeout``.
        """
        self._members.link_everybody()
        with trio.move_on_after(self._mesh.config.subscribe_timeout):
            while self._members.lacks_links():
                await self._members.wait_news()

    def _is_ready(self) -> bool:
        """Return whether everybody is linked and has said what it subscribes to: there is nothing to wait for."""
        self._members.link_everybody()
        self._ready = not (self._members.lacks_links() or self._without_interest())
        return self._ready

    def _without_interest(self) -> list[NodeId]:
        return [
            peer.node
            for peer in self._mesh.peers.values()
            if not (peer.other_realm or self._interest.is_whole(peer.node)) and self._mesh.is_between_members(peer)
        ]

    async def _wait_interest(self, within: float) -> None:
        """Hear of everybody what it subscribes to; what there is no time for now, the next event waits for."""
        now = trio.current_time()
        self._until = min(self._until, now + self._mesh.config.subscribe_timeout)
        with trio.move_on_at(min(now + within, self._until)) as scope:
            await self.link_everybody()
            async with trio.open_nursery() as nursery:
                for node in self._without_interest():
                    nursery.start_soon(self._mesh.barrier, node, self._interest.is_whole)
        if not scope.cancelled_caught or trio.current_time() >= self._until:
            self._ready = True
