"""Export and import filter of this node's site: what may cross its border, enforced by every node itself.

Gateways decide who may begin a session with whom, and cannot see what goes through it.  So each node holds the lists
that its gateways have sent: it answers nodes of other sites for exported clusters only, and lets only those events in
and out that a gateway would.
"""

from __future__ import annotations

from typing import Final, final

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.topic_syntax import is_pattern
from iris.kernel.wire import kinds
from iris.security.identity import covers

_MAX_ASKED: Final = 256
"""Clusters of which it is remembered whether they may be used: that is asked for every request from another site."""


@final
class Border:
    """The union of the lists of every gateway of this site.  What none of them allows is refused."""

    def __init__(self) -> None:
        self._lists: Final[dict[NodeId, kinds.Allowed]] = {}
        self._asked: Final[dict[str, bool]] = {}

    def __repr__(self) -> str:
        return f"<Border of {len(self._lists)} gateways>"

    def receive_untrusted(self, gateway: NodeId, allowed: kinds.Allowed) -> None:
        """Receive the lists of a gateway; raise RemoteProtocolError unless they are lists of patterns."""
        if not all(map(is_pattern, (*allowed.clusters, *allowed.out, *allowed.into))):
            raise RemoteProtocolError("what is allowed is patterns")
        self._asked.clear()
        self._lists[gateway] = allowed

    def forget(self, gateway: NodeId) -> None:
        """A gateway is gone."""
        self._asked.clear()
        self._lists.pop(gateway, None)

    def may_ask(self, cluster: str) -> bool:
        """Return whether nodes of other sites may use a cluster of this one."""
        known = self._asked.get(cluster)
        if known is None:
            known = any(covers(pattern, cluster) for allowed in self._lists.values() for pattern in allowed.clusters)
            if len(self._asked) >= _MAX_ASKED:  # other nodes choose the names
                self._asked.clear()
            self._asked[cluster] = known
        return known

    def may_leave(self, pattern: str) -> bool:
        """Return whether events of all topics that match a pattern may leave."""
        return any(covers(listed, pattern) for allowed in self._lists.values() for listed in allowed.out)

    def may_enter(self, topic: str) -> bool:
        """Return whether events of a topic may come in."""
        return any(covers(listed, topic) for allowed in self._lists.values() for listed in allowed.into)
