"""Broadcast: every member of a cluster gets the message at most once, nobody replies.

Up to ``Config.relay_above`` members the sender tells each one itself.  Beyond that they tell each other, over a relay
tree (``iris.patterns.relay``), and the sender's work no longer grows with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.kernel import kinds, wire
from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.ids import NodeId, cluster_of
from iris.kernel.link import Link
from iris.patterns.counters import Tally
from iris.patterns.directory import Directory, nobody_serves
from iris.patterns.handlers import encoded
from iris.patterns.relays import Relays, Tree, stands_alone

_STALLED: Final = 0.25
"""Seconds without progress after which a link no longer slows those who broadcast."""


@final
class Broadcasts:
    """The broadcasts that this node sends."""

    def __init__(self, mesh: Mesh, directory: Directory, config: Config, relays: Relays) -> None:
        self.tally: Final = Tally()
        """Counts one for each message and member."""
        self._mesh = mesh
        self._directory = directory
        self._config = config
        self._relays = relays
        self._trees: dict[str, Tree] = {}

    async def broadcast(self, cluster: str, payload: object, *, headers: Mapping[str, str] | None = None) -> None:
        """See ``Node.broadcast``."""
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        members = self._directory.member_ids(cluster)
        if not members:
            self._trees.pop(cluster, None)
            raise nobody_serves(cluster, self._mesh.identity)
        message = (kinds.BROADCAST, cluster_of(cluster), flat, body)
        size = wire.payload_size(body) + wire.headers_size(flat)
        if len(members) <= self._config.relay_above:
            self._trees.pop(cluster, None)
            links = self._tell(members, message, size)
        else:
            # Nodes of a site are not linked to those of another: nobody there could hand the message on.
            near: list[NodeId] = []
            alone: list[NodeId] = []
            for member in members:
                (alone if stands_alone(self._mesh, member) else near).append(member)
            links = self._tell(alone, message, size)
            links += self._relays.send(self._tree(cluster, near), message, self.tally)
        await trio.lowlevel.checkpoint()
        for link in links:
            if not link.has_room() and not link.is_stalled(_STALLED):
                await link.wait_room()

    def _tell(self, members: Sequence[NodeId], message: wire.Message, size: int) -> list[Link]:
        links: list[Link] = []
        for member in members:
            self.tally.sent += 1
            peer = self._mesh.peer(member)
            if peer is None:
                self.tally.lost["no link"] += 1
                continue
            try:
                peer.link.post(message, size)
            except NotSent:
                self.tally.lost["no room on the link"] += 1
            else:
                self.tally.delivered += 1
                links.append(peer.link)
        return links

    def _tree(self, cluster: str, members: Sequence[NodeId]) -> Tree:
        """Return the tree of a cluster, which stays the same while its members do."""
        others = tuple(members)
        tree = self._trees.get(cluster)
        if tree is None or tree.receivers != others:
            tree = self._trees[cluster] = self._relays.tree(others)
        return tree
