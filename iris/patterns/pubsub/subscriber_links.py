"""Subscriber links: links to those who may hear what a node publishes, before it publishes, and to those it may hear.

No event may be missed because nobody knew of a subscription.  In a realm of up to nine nodes all are linked.  In a
larger one a publisher announces the root of a topic before its first event, and is linked to those who answer that they
are interested, and to those whom the question did not reach.  Who subscribes is linked to all publishers whose roots
may match.  Subscribers at other sites are linked when a topic of theirs is published on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final, Protocol, final

import trio

from iris.cluster.membership import PARTNERS
from iris.cluster.mesh import Mesh
from iris.kernel.names import NodeId
from iris.kernel.tasks import time_left
from iris.patterns.pubsub.announcements import Announcements, AnnouncingMembers
from iris.patterns.pubsub.echo import Wave
from iris.patterns.pubsub.interest import InterestTable, is_topic
from iris.patterns.pubsub.remote import RemoteSubscribers
from iris.patterns.pubsub.roots import EVERY, MAX_ROOTS, root_of

_TOPICS: Final = 4096
"""Topics of which it is remembered that their subscribers are linked."""

_ECHO: Final = 1.0
"""Seconds within which all nodes are to answer who is interested; those that do not are asked directly."""

_COURTESY: Final = 0.25
"""Seconds that a publisher leaves it to the interested to dial it, which have heard of it before it hears of them."""


class LinkedMembers(AnnouncingMembers, Protocol):
    """Members of this site, as ``iris.cluster.membership.Membership`` links them."""

    def request_link(self, node: NodeId) -> bool:
        """Begin to link to a member; return whether it is alive."""
        ...

    def is_settled(self, node: NodeId) -> bool:
        """Return whether a node is linked, or was tried in vain, or is gone: nothing is gained by waiting for it."""
        ...

    def is_suspected(self, node: NodeId) -> bool:
        """Return whether a node is to get no new work for now."""
        ...

    async def wait_news(self) -> None:
        """Wait until something has changed in who is here, or is linked."""
        ...


@final
class _Root:
    """A root that is being announced.

    Attributes:
        until: time until which it is waited for those who may hear, whoever publishes.
        waves: questions who is interested, two at most.  Without one all are linked.
    """

    __slots__ = ("until", "waves")

    def __init__(self, until: float, *waves: Wave) -> None:
        self.until = until
        self.waves = list(waves)


@final
class SubscriberLinks:
    """Links of one node to those who may hear it, and to those it may hear.

    Args:
        interest: table of what the linked nodes subscribe to.
        announcements: what is known of who publishes what.
        remote: subscribers at other sites.  None if the node is at no site.
    """

    def __init__(
        self,
        mesh: Mesh,
        members: LinkedMembers,
        interest: InterestTable,
        announcements: Announcements,
        remote: RemoteSubscribers | None,
    ) -> None:
        self._mesh = mesh
        self._members = members
        self._interest = interest
        self._announcements = announcements
        self._remote = remote
        self._roots: dict[str, _Root | None] = {}
        """Announced roots; None: those who may hear are linked."""
        self._topics: set[str] = set()
        """Topics with such roots."""
        self.has_sites: Final = remote is not None
        """Whether there may be subscribers at other sites."""

    def __repr__(self) -> str:
        return f"<SubscriberLinks: {len(self._roots)} roots>"

    # -- publishing -----------------------------------------------------------------------------------------

    def pending(self, topic: str) -> bool:
        """Return whether subscribers may have to be linked before an event; costs a look-up."""
        try:
            if topic in self._topics or self._is_ready(topic):
                return self._remote is not None and self._remote.pending(topic)
        except TypeError:  # a list, say: ``publish`` refuses it
            pass
        return True

    def _is_ready(self, topic: str) -> bool:
        """Return whether the root of a topic is announced, and those who may hear are linked."""
        if not isinstance(topic, str) or self._roots.get(self._root_of(topic), self) is not None:
            return False
        if len(self._topics) >= _TOPICS:
            self._topics.clear()
        self._topics.add(topic)
        return True

    def _root_of(self, topic: str) -> str:
        """Return the root of a topic; the one for all if there is no room for more."""
        root = root_of(topic)
        return root if root in self._roots or len(self._roots) < MAX_ROOTS else EVERY

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
        # What may not be published on is announced to nobody; ``publish`` says so.
        rights = self._mesh.identity.certificate.rights
        if isinstance(topic, str) and is_topic(topic) and "/" not in topic and rights.may_publish(topic):
            root = self._root_of(topic)
            if root not in self._roots and self._are_all_linked():
                self._announcements.announce(root)
                self._roots[root] = None
            if not self._is_ready(topic):
                deadline = math.inf if within is None else trio.current_time() + within
                await self._announce(root, math.inf if within is None else within / 2)
                if within is not None:
                    within = time_left(deadline)
        if self._remote is not None and self._remote.pending(topic):
            return await self._remote.reach(topic, within=within)
        return math.inf if within is None else within

    def begin(self, topic: str) -> None:
        """Begin to link to the subscribers of a topic at other sites that are not linked yet, without waiting."""
        if self._remote is not None:
            self._remote.begin(topic)

    def _are_all_linked(self) -> bool:
        """Return whether all are linked, in a small realm, and have said what they subscribe to."""
        if len(self._members.others()) > PARTNERS:
            return False
        nodes, peers = self._members_and_peers(), self._mesh.peers
        return not self._unlinked(nodes) and all(node not in peers or self._interest.is_whole(node) for node in nodes)

    async def _announce(self, root: str, within: float) -> None:
        """Announce a root, and hear of all who may hear what they subscribe to.

        What there is no time for now, the next event waits for.
        """
        now = trio.current_time()
        state = self._roots.get(root)
        if state is None or state.until <= now:  # those who waited for it were cancelled
            state = self._roots[root] = self._begin(root, now + self._mesh.config.subscribe_timeout)
        with trio.move_on_at(min(now + within, state.until)) as scope:
            await self._link(await self._targets(root, state))
        if not scope.cancelled_caught or trio.current_time() >= state.until:
            self._roots[root] = None

    def _begin(self, root: str, until: float) -> _Root:
        if len(self._members.others()) > PARTNERS:
            return _Root(until, self._announcements.ask(root, _ECHO))
        self._announcements.announce(root)
        return _Root(until)

    async def _targets(self, root: str, state: _Root) -> Collection[NodeId]:
        """Return who has to be linked before an event: who is interested, and who was not reached."""
        while state.waves:
            while not (wave := state.waves[-1]).done:  # the last one may be another's by then
                await self._announcements.wait_answered(wave)
            reached = {node for wave in state.waves for node in wave.reached}
            if len(state.waves) == 2 or len(self._members_and_peers() - reached) <= PARTNERS:
                interested = {named for wave in state.waves for named in wave.interested}
                await self._wait_interested(interested)
                return self._members_and_peers() - (reached - {node for node, _ in interested})
            # Somebody in the middle is gone, and took the answers of others along.
            state.waves.append(self._announcements.ask(root, _ECHO))
        return self._members_and_peers()

    async def _wait_interested(self, interested: Collection[tuple[NodeId, NodeId]]) -> None:
        """Wait a moment for those to link that have heard of an announcement; longer for newcomers, not known yet.

        A neighbour may have made these up, or pass on what another one has: then it is waited longer no more.
        """
        announcements, members, peers = self._announcements, self._members, self._mesh.peers
        patient = {by for by in {by for _, by in interested} if announcements.is_patient(by)}
        awaited = [(node, by) for node, by in interested if by in patient or members.is_known(node)]
        began = trio.current_time()
        try:
            with trio.move_on_after(_COURTESY):
                while any(node not in peers for node, _ in awaited):
                    await members.wait_news()
            with trio.move_on_after(_ECHO if announcements.is_patient(self._mesh.node) else 0.0):
                while any(node not in peers and not members.is_known(node) for node, _ in awaited):
                    await members.wait_news()
        finally:
            vain = {by for node, by in awaited if node not in peers and not members.is_known(node)}
            announcements.waited_in_vain(vain, trio.current_time() - began)

    async def _link(self, nodes: Collection[NodeId]) -> None:
        """Link to members, as far as they answer, and hear of each what it subscribes to."""
        await self._wait_linked(nodes)
        async with trio.open_nursery() as nursery:
            for node in nodes:
                if not self._interest.is_whole(node):
                    nursery.start_soon(self._mesh.barrier, node, self._interest.is_whole)

    async def _wait_linked(self, nodes: Collection[NodeId]) -> None:
        for node in nodes:
            self._members.request_link(node)
        while self._unlinked(nodes):
            await self._members.wait_news()

    def _unlinked(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Return those of some members that are not linked yet, and may be soon."""
        members = self._members
        return [node for node in nodes if not (members.is_settled(node) or members.is_suspected(node))]

    def _members_and_peers(self) -> set[NodeId]:
        """Return the members of this site, and the linked members of any."""
        mesh = self._mesh
        peers = (peer for peer in mesh.peers.values() if not peer.other_realm and mesh.is_between_members(peer))
        return {*self._members.others(), *(peer.node for peer in peers)}

    # -- subscribing ----------------------------------------------------------------------------------------

    async def link_publishers(self, within: float, *, all_of_them: bool = False) -> None:
        """Link to those whose events this node may hear, as far as they are known, and wait for that.

        Args:
            within: seconds after which it returns at the latest.
            all_of_them: to all who publish, whatever it is.
        """
        with trio.move_on_after(within):
            await self._announcements.wait_records(self._members.wait_news)
            await self._wait_linked(self._publishers(all_of_them=all_of_them))

    def lacks_publishers(self) -> bool:
        """Return whether one of those is not linked yet, and may be soon."""
        return self._announcements.awaits_records() or bool(self._unlinked(self._publishers()))

    def _publishers(self, *, all_of_them: bool = False) -> Collection[NodeId]:
        """Return the publishers that this node may hear; of 0.9, where it is not known who publishes, all.

        So are all where so few are here that a publisher may ask nobody, for it is linked with all that it knows.
        """
        others = self._members.others()
        if len(others) <= 2 * PARTNERS:
            return others
        announced = self._announcements.publishers if all_of_them else self._announcements.followed
        return {*announced, *(node for node in others if not self._members.announces(node))}
