"""Subscribers at other sites: a publisher links to those that want a topic before its next event on it.

The gateways tell who wants what.  Over the session that is made then, the subscriber tells its interest as it does at
home, and from there on there is no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from iris.cluster.site_directory import Subscriber
from iris.cluster.sites import Sites
from iris.kernel.errors import ConfigError
from iris.patterns.topics import Matcher, check_topic, is_pattern
from iris.security.identity import NodeIdentity

_TOPICS: Final = 65_536
"""Topics of which it is remembered that their subscribers are linked."""


def check_own_realm(topic: str, identity: NodeIdentity) -> None:
    """Refuse a topic or pattern that is meant for another realm, as addresses of clusters may be.

    Raises:
        ConfigError: it begins with the name of a realm that is trusted here, and ``/``.
    """
    alias, slash, _ = topic.partition("/") if "/" in topic else ("", "", "")
    if slash and identity.alias(alias) is not None:
        raise ConfigError(f"{topic!r}: events do not cross between realms, and {alias!r} is one; ask its clusters")


@final
class ForeignSubscribers:
    """Who subscribes at other sites."""

    def __init__(self, sites: Sites, identity: Callable[[], NodeIdentity]) -> None:
        self._sites = sites
        self._identity = identity
        self._matcher: Matcher[Subscriber] = Matcher()
        self._known: set[Subscriber] = set()
        self._version = -1
        self._reached: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ForeignSubscribers: {len(self._known)}>"

    def pending(self, topic: str) -> bool:
        """Tell whether subscribers have to be looked for before an event; costs a look-up."""
        try:
            return self._reached.get(topic) != self._sites.subscribers_version
        except TypeError:  # a list, say: ``reach`` refuses it
            return True

    async def reach(self, topic: str) -> None:
        """Link to those who want a topic and are not linked yet; a topic of another realm is a ConfigError.

        Returns at the latest when a handshake must have ended; who could not be reached is tried again with a later
        event.  Cancelling it leaves handshakes under way that end by themselves.

        Raises:
            ConfigError: it is not a topic.
        """
        check_own_realm(check_topic(topic), self._identity())
        version = self._sites.subscribers_version
        if version != self._version:
            self._update(self._sites.directory.subscribers())
            self._version = version
        if len(self._reached) >= _TOPICS:
            self._reached.clear()
        if await self._sites.reach_nodes({(found.site, found.node) for found in self._matcher.match(topic)}):
            self._reached[topic] = version

    def _update(self, present: set[Subscriber]) -> None:
        for gone in self._known - present:
            self._matcher.remove(gone.pattern, gone)
            self._known.discard(gone)
        for found in present - self._known:
            if is_pattern(found.pattern):
                self._matcher.add(found.pattern, found)
                self._known.add(found)
