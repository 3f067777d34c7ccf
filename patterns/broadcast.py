"""Broadcast: every member of a cluster gets the message at most once, nobody replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.kernel import kinds, wire
from iris.kernel.config import Config
from iris.kernel.errors import NoSuchCluster, NotSent
from iris.patterns.counters import Tally
from iris.patterns.directory import Directory


@final
class Broadcasts:
    """The broadcasts that this node sends."""

    def __init__(self, mesh: Mesh, directory: Directory, config: Config) -> None:
        self.tally: Final = Tally()
        """Counts one for each message and member."""
        self._mesh = mesh
        self._directory = directory
        self._config = config

    async def broadcast(self, cluster: str, payload: object, *, headers: Mapping[str, str] | None = None) -> None:
        """See ``Node.broadcast``."""
        encoded = wire.encode_payload(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        members = self._directory.member_ids(cluster)
        if not members:
            raise NoSuchCluster(f"no reachable member serves the cluster {cluster!r}")
        message = (kinds.BROADCAST, cluster, flat, encoded)
        size = wire.payload_size(encoded)
        for member in members:
            self.tally.sent += 1
            try:
                self._mesh.post(member, message, size)
            except NotSent:
                self.tally.lost["no room on the link"] += 1
            else:
                self.tally.delivered += 1
        await trio.lowlevel.checkpoint()
        for member in members:
            peer = self._mesh.peer(member)
            if peer is not None and not peer.link.has_room() and not peer.link.is_stalled(0.25):
                await peer.link.wait_room()
