"""Remote subscribers: a publisher links to the nodes of other sites that want a topic before its next event on it.

The gateways advertise the nodes and their topics.  Over the session that is opened then, the subscriber sends its
interest as it does at home.  From there on a remote subscriber differs in nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final, Protocol, final

import trio

from iris.cluster.directory import RemoteSubscriber
from iris.cluster.mesh import Mesh
from iris.cluster.sites import Sites
from iris.kernel.errors import ConfigError, NotAllowed
from iris.kernel.names import NodeId, qualified
from iris.kernel.tasks import time_left
from iris.patterns.pubsub.interest import (
    InterestTable,
    Matcher,
    Shape,
    check_topic,
    check_wildcards,
    is_pattern,
    shape_of,
)
from iris.security.identity import NodeIdentity, OtherRealm

_TOPICS: Final = 65_536
"""Topics of which it is remembered that their subscribers are linked."""


MAX_SITE_SHAPES: Final = 256
"""Shapes of patterns with wildcards that the nodes of one site may want: each match looks at all of them."""


def other_realm_of(topic: str, identity: NodeIdentity) -> OtherRealm | None:
    """Return the realm whose alias and ``/`` are before a topic or pattern; None if it is of the own realm."""
    alias, slash, _ = topic.partition("/") if "/" in topic else ("", "", "")
    return identity.alias(alias) if slash else None


def check_own_realm(topic: str, identity: NodeIdentity) -> None:
    """Refuse to publish on a topic of another realm.

    Raises:
        ConfigError: it begins with the name of a realm that is trusted here, and ``/``.
    """
    realm = other_realm_of(topic, identity)
    if realm is not None:
        raise ConfigError(
            f"{topic!r}: {realm.alias!r} is another realm, and each publishes on topics of its own: publish on "
            f"{topic.partition('/')[2]!r}, and have nodes there subscribe to it"
        )


def check_other_realm(pattern: str, realm: OtherRealm, *, at_site: bool, plain: bool) -> None:
    """Check that topics of another realm can be subscribed to in the requested form.

    Raises:
        ConfigError: they cannot; the text says why.
        NotAllowed: the two owners have not agreed on them.
    """
    theirs = pattern.partition("/")[2]
    check_wildcards(theirs)
    if not is_pattern(theirs) or theirs[0] in "*>" or not is_pattern(qualified(realm.id, theirs)):
        raise ConfigError(
            f"{pattern!r} is no pattern of topics of another realm: use {realm.alias}/TOKEN, perhaps with further "
            "tokens, '*' and a last '>' behind, at most 223 bytes in all"
        )
    if not at_site:
        raise ConfigError(f"{pattern!r}: a node hears other realms through gateways: open it with site='NAME'")
    if not plain:
        raise ConfigError(
            f"{pattern!r}: a subscription to topics of another realm has no group, is not durable, and overflow='wait' "
            "is not for it: its publishers wait for nobody here"
        )
    if not realm.may_listen(theirs):
        raise NotAllowed(
            f"events of all topics that match {theirs!r} are not exported by realm {realm.alias!r}, or not imported "
            f"here: its owner exports {', '.join(realm.bundle.topics) or 'none'}"
        )


class UnlinkedCounter(Protocol):
    """Publisher of events for other sites."""

    def count_unlinked(self, topic: str, nodes: int) -> None:
        """Count an event that so many nodes want which could not be linked.  Does not block."""
        ...


@final
class RemoteSubscribers:
    """The subscribers at other sites.

    Args:
        interest: table of the nodes that are linked and subscribe.
        losses: publisher that counts the events which did not wait for them.
    """

    def __init__(self, sites: Sites, mesh: Mesh, interest: InterestTable, losses: UnlinkedCounter) -> None:
        self._sites = sites
        self._mesh = mesh
        self._interest = interest
        self._losses = losses
        self._matcher: Matcher[RemoteSubscriber] = Matcher()
        self._known: dict[RemoteSubscriber, RemoteSubscriber] = {}
        """Objects that stand in the matcher, which distinguishes its values by identity."""
        self._refused: set[RemoteSubscriber] = set()
        """Known subscribers that no event is published for."""
        self._shapes: dict[str, Counter[Shape]] = {}
        """Number of subscribers by site and shape of their patterns."""
        self._version = -1
        self._reached: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<RemoteSubscribers: {len(self._known)}>"

    def pending(self, topic: str) -> bool:
        """Return whether subscribers have to be linked before an event; costs a look-up."""
        try:
            return self._reached.get(topic) != self._sites.subscribers_version
        except TypeError:  # a list, say: ``reach`` refuses it
            return True

    async def reach(self, topic: str, *, within: float | None = None) -> float:
        """Link to the subscribers of a topic that are not linked yet; return what is left of ``within``.

        Returns at the latest when a handshake must have ended; a node that could not be reached is tried again with a
        later event.  Cancelling it leaves handshakes in progress that end by themselves.

        Args:
            topic: topic of the event.
            within: seconds in which an event is to be confirmed: half of them may be spent here, as long as there is
                patience with the sites for such events; None: as there is for others.

        Raises:
            ConfigError: it is not a topic, or one of another realm.
        """
        deadline = math.inf if within is None else trio.current_time() + within
        if isinstance(topic, str):
            check_own_realm(topic, self._mesh.identity)
        check_topic(topic)
        if len(self._reached) >= _TOPICS:
            self._reached.clear()
        version = self._sites.subscribers_version
        nodes = self._nodes(topic)
        missing = await self._sites.reach_nodes(
            nodes, self._interest.is_whole, within=None if within is None else within / 2
        )
        if missing:
            self._losses.count_unlinked(topic, missing)
        else:
            self._reached[topic] = version
        return time_left(deadline)

    def begin(self, topic: str) -> None:
        """Begin to link to the subscribers of a topic that are not linked yet, without waiting."""
        self._sites.begin_nodes(self._nodes(topic))

    def _nodes(self, topic: str) -> set[tuple[str, NodeId]]:
        version = self._sites.subscribers_version
        if version != self._version:
            self._update(self._sites.resubscriptions())
            self._version = version
        return {(found.site, found.node) for found in self._matcher.match(topic)}

    @property
    def shapes(self) -> int:
        """Number of shapes of the patterns: the cost of a match."""
        return len(self._matcher.shapes)

    def _update(self, changes: dict[RemoteSubscriber, bool]) -> None:
        for gone in [self._known.pop(found) for found, wants in changes.items() if not wants]:
            if gone in self._refused:
                self._refused.discard(gone)
            else:
                self._matcher.remove(gone.pattern, gone)
                self._count(gone, -1)
        for found in (found for found, wants in changes.items() if wants):
            self._known[found] = found
            if self._may_add(found):
                self._matcher.add(found.pattern, found)
                self._count(found, 1)
            else:
                self._refused.add(found)
                self._mesh.refusals["subscriber of another site beyond its patterns"] += 1

    def _may_add(self, found: RemoteSubscriber) -> bool:
        shape, shapes = shape_of(found.pattern), self._shapes.get(found.site)
        return shape is None or shapes is None or shape in shapes or len(shapes) < MAX_SITE_SHAPES

    def _count(self, found: RemoteSubscriber, sign: int) -> None:
        shape = shape_of(found.pattern)
        if shape is not None:
            shapes = self._shapes.setdefault(found.site, Counter())
            shapes[shape] += sign
            if not shapes[shape]:
                del shapes[shape]
            if not shapes:
                del self._shapes[found.site]
